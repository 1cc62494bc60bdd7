"""How django-allauth is bent to this site: its writes go through `accounts`, its mail may fail."""

import smtplib
from typing import Any

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.core.internal.httpkit import is_headless_request
from allauth.headless.adapter import DefaultHeadlessAdapter
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.shortcuts import render
from django.utils import timezone

from chatsite.accounts import accounts, first_account, registration
from chatsite.accounts.models import Registration, User

log = structlog.get_logger(__name__)

MAX_EMAIL_LENGTH = 254
# Said by the page itself, or not worth saying.
_QUIET = {"account/messages/logged_in.txt", "account/messages/logged_out.txt"}
# Without this mail the person cannot go on, so that they must hear that it was not sent.
_NEEDED = ("account/email/password_reset_key", "account/email/unknown_account")


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth ships no types
    error_messages = DefaultAccountAdapter.error_messages | {
        "email_password_mismatch": "E-mail and password do not match an account. The password is case-sensitive.",
        "email_taken": "There is an account with this e-mail address already.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """By invitation, the page is for those who bring one; API clients learn from the answer that they need one."""
        match registration.mode():
            case Registration.Mode.OPEN:
                return True
            case Registration.Mode.INVITATION:
                brought = request.GET.get("invitation") or request.POST.get("invitation")
                return bool(brought) or bool(is_headless_request(request))
            case _:
                return False

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        """Raises what `accounts.sign_up` does."""
        data = form.cleaned_data
        return accounts.sign_up(
            email=data["email"],
            password=data.get("password1") or data["password"],
            name=data.get("name", ""),
            invitation=data.get("invitation", ""),
            may_administer=first_account.may_be_claimed(request),
            now=timezone.now(),
        )

    def clean_email(self, email: str) -> str:
        """allauth's fields take longer addresses than the database does."""
        if len(email) > MAX_EMAIL_LENGTH:
            raise ValidationError(f"At most {MAX_EMAIL_LENGTH} characters.", code="max_length")
        return str(super().clean_email(email))

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """A mail server that is away must not keep anybody from signing up or changing a password."""
        try:
            super().send_mail(template_prefix, email, context)
        except (OSError, smtplib.SMTPException) as error:
            log.error("mail_failed", template=template_prefix, error=str(error))
            if template_prefix in _NEEDED and not is_headless_request(self.request):
                page = render(self.request, "accounts/mail_failed.html", status=503)
                page.headers["Retry-After"] = "300"
                raise ImmediateHttpResponse(page) from error

    def add_message(
        self, request: HttpRequest, level: int, message_template: str | None = None, *args: Any, **kw: Any
    ) -> None:
        if message_template not in _QUIET:
            super().add_message(request, level, message_template, *args, **kw)

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return "/account/"

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        """The account alone: allauth's own key also holds the Host header, which whoever guesses can vary."""
        return User.objects.normalize_email(credentials.get("email"))


class MobileAdapter(DefaultHeadlessAdapter):  # type: ignore[misc]  # allauth ships no types
    def serialize_user(self, user: User) -> dict[str, Any]:
        return {
            "id": str(user.pk),
            "email": user.email,
            "name": user.name,
            "display": user.get_full_name(),
            "has_usable_password": user.has_usable_password(),
        }
