"""Users, their API keys and how accounts come to be, as stored."""

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.crypto import salted_hmac
from uuid_utils.compat import uuid7


class UserManager(BaseUserManager["User"]):
    """Creates users and finds them by e-mail, whatever its case."""

    use_in_migrations = False

    @classmethod
    def normalize_email(cls, email: str | None) -> str:
        """The one spelling of an address that is stored: trimmed, in lower case."""
        return (email or "").strip().lower()

    def get_by_natural_key(self, username: str | None) -> "User":
        return self.alias(email_lower=Lower("email")).get(email_lower=self.normalize_email(username))

    def create_user(self, *, email: str, password: str | None = None, **fields: Any) -> "User":
        """Without a password nobody can log in to the account; an API key still works."""
        user = self.model(email=self.normalize_email(email), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, *, email: str, password: str | None = None, **fields: Any) -> "User":
        return self.create_user(email=email, password=password, **(fields | {"is_staff": True, "is_superuser": True}))


class User(AbstractBaseUser, PermissionsMixin):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    email = models.EmailField("e-mail", unique=True)
    name = models.CharField(max_length=150, blank=True)
    is_active = models.BooleanField("active", default=True, help_text="Unset this instead of deleting an account.")
    is_staff = models.BooleanField("staff", default=False, help_text="May log in to the admin site.")
    date_joined = models.DateTimeField(default=timezone.now, editable=False)
    closing_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Deleted by its owner; goes when its last answer has ended."
    )

    session_generation = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="Sessions begun under an older one are refused."
    )

    objects: ClassVar[UserManager] = UserManager()

    EMAIL_FIELD = "email"
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                Lower("email"),
                name="accounts_user_email_any_case",
                violation_error_message="A user with this e-mail already exists.",
            ),
        ]
        # The few among many, newest first: for the lists that administrators filter.
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["id"], condition=models.Q(is_staff=True), name="accounts_user_staff"),
            models.Index(fields=["id"], condition=models.Q(is_superuser=True), name="accounts_user_superuser"),
            models.Index(fields=["id"], condition=models.Q(is_active=False), name="accounts_user_suspended"),
        ]

    def __str__(self) -> str:
        return self.email

    def clean(self) -> None:
        super().clean()
        self.email = type(self).objects.normalize_email(self.email)

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """What a session keeps of its user, and is refused when it differs: also after its generation has ended."""
        value = f"{self.session_generation}:{self.password}"
        return salted_hmac("chatsite.accounts.session", value, secret=secret, algorithm="sha256").hexdigest()

    def get_full_name(self) -> str:
        return self.name or self.email

    def get_short_name(self) -> str:
        return self.name or self.email.partition("@")[0]


class ApiKey(models.Model):
    """A bearer token of one user. Only its hash is stored: the key itself is shown once, when it is made."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100, blank=True)
    prefix = models.CharField(max_length=16, help_text="How the key begins, to tell it from others.")
    sha256 = models.CharField(max_length=64, unique=True, help_text="Hexadecimal SHA-256 of the key.")
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="Exact to a minute.")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API key"
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["prefix"], name="accounts_apikey_prefix")]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})" if self.name else f"{self.prefix}…"


class FirstAdministrator(models.Model):
    """The claim of the account that became administrator by being the first. There is one row, ever."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    claimed_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=models.Q(id=1), name="accounts_one_first_administrator"),
        ]

    def __str__(self) -> str:
        return f"first administrator since {self.claimed_at:%Y-%m-%d}"


class Registration(models.Model):
    """Who may open an account, as administrators decided it. There is at most one row."""

    class Mode(models.TextChoices):
        OPEN = "open", "open: everybody"
        INVITATION = "invitation", "invitation: who has one"
        CLOSED = "closed", "closed: nobody"

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    mode = models.CharField(
        max_length=16, choices=Mode, blank=True, help_text="Empty: as the REGISTRATION setting says."
    )

    class Meta:
        verbose_name_plural = "registration"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=models.Q(id=1), name="accounts_one_registration"),
        ]

    def __str__(self) -> str:
        return self.mode or "as the REGISTRATION setting says"


class Invitation(models.Model):
    """Lets one person open an account. Only the hash of its link's token is stored: the link is shown once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    email = models.EmailField("e-mail", blank=True, help_text="Empty: whoever has the link may use any address.")
    note = models.CharField(max_length=200, blank=True, help_text="For administrators.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True, editable=False)
    used_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]

    def __str__(self) -> str:
        return f"invitation for {self.email or 'anybody'}"
