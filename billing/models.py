"""Plans, who has them, and the append-only usage ledger.

Reservations (tokens held between admission and settlement) live in Redis; a run's row carries the admission
id and the amount held, from which they can be rebuilt.
"""

from typing import Any, ClassVar, NoReturn

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from uuid_utils.compat import uuid7

from billing.errors import LedgerIsAppendOnly


class Plan(models.Model):
    """A tier: what its subscribers may use. Tokens are prompt plus output tokens."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=80)
    is_default = models.BooleanField(default=False, help_text="Given to users without a subscription.")
    concurrent_runs = models.PositiveIntegerField(default=2, help_text="Answers one user may have in progress.")
    max_prompt_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Per answer; empty = whatever fits the pool's window."
    )
    max_output_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Per answer; empty = the pool's maximum."
    )
    weight = models.PositiveIntegerField(default=1, help_text="Share of a busy pool relative to other plans.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-weight", "slug"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="plan_one_default"),
            models.CheckConstraint(condition=Q(concurrent_runs__gte=1), name="plan_concurrent_runs_positive"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="plan_weight_positive"),
            models.CheckConstraint(
                condition=Q(max_output_tokens__isnull=True) | Q(max_output_tokens__gte=1),
                name="plan_max_output_positive",
            ),
            models.CheckConstraint(
                condition=Q(max_prompt_tokens__isnull=True) | Q(max_prompt_tokens__gte=1),
                name="plan_max_prompt_positive",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Subscription(models.Model):
    """A user has a plan from `starts_at` until `ends_at` (open when null)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="subscriptions")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="subscriptions")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-starts_at"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
                name="subscription_ends_after_start",
            ),
            models.UniqueConstraint(
                fields=["user"], condition=Q(ends_at__isnull=True), name="subscription_one_open_per_user"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.plan} from {self.starts_at:%Y-%m-%d}"


class Account(models.Model):
    """A user's quota account.

    `quota_gen` counts rebuilds of its Redis counters: an acceptance made under an older generation is void.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="quota_account"
    )
    quota_gen = models.PositiveBigIntegerField(default=1)

    def __str__(self) -> str:
        return f"account of {self.user_id}"


class _Ledger(models.QuerySet["UsageEntry"]):
    """Reads and inserts. (A deleted user's rows are anonymised by Django itself, past this.)"""

    def update(self, **kwargs: Any) -> NoReturn:
        """Never. Raises LedgerIsAppendOnly."""
        raise LedgerIsAppendOnly

    def delete(self) -> NoReturn:
        """Never. Raises LedgerIsAppendOnly."""
        raise LedgerIsAppendOnly


class UsageEntry(models.Model):
    """One settled attempt's tokens; written once, never changed.

    `prompt_tokens` (cached ones included) stand on the run's terminal row only; `output_tokens` are this epoch's
    own tokens that are part of the answer; `wasted_tokens` were computed and are paid by nobody.
    """

    class Reason(models.TextChoices):
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"
        FAILED = "failed"
        LOST = "lost"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="usage_entries"
    )
    run_id = models.UUIDField()
    epoch = models.PositiveIntegerField()
    admission_id = models.UUIDField()
    pool = models.SlugField()
    reason = models.CharField(max_length=16, choices=Reason)
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    wasted_tokens = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()

    objects = _Ledger.as_manager()

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        verbose_name_plural = "usage entries"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run_id", "epoch"], name="usage_one_row_per_attempt"),
            models.CheckConstraint(
                condition=Q(cached_tokens__lte=F("prompt_tokens")), name="usage_cached_within_prompt"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["user", "created_at"], name="usage_user_created"),
            models.Index(fields=["admission_id"], name="usage_admission"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch}: {self.reason}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert only. Raises LedgerIsAppendOnly for a row that exists."""
        if not self._state.adding:
            raise LedgerIsAppendOnly
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Never. Raises LedgerIsAppendOnly."""
        raise LedgerIsAppendOnly
