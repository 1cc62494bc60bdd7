"""Admin screens for API keys, invitations and the registration mode; users and their ways in have their own modules."""

from typing import Any

from allauth.account.decorators import secure_admin_login
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from chatsite.accounts import invitations, keys
from chatsite.accounts.access_screens import EmailAddressAdmin, UserSessionAdmin
from chatsite.accounts.models import ApiKey, Invitation, Registration, User
from chatsite.accounts.user_screen import UserAdmin

__all__ = [
    "ApiKeyAdmin",
    "EmailAddressAdmin",
    "InvitationAdmin",
    "RegistrationAdmin",
    "UserAdmin",
    "UserSessionAdmin",
]

# The admin's own form knows neither second factors nor limits: everybody logs in on the site's page.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]


@admin.register(ApiKey)
class ApiKeyAdmin(admin.ModelAdmin[ApiKey]):
    """Keys can be seen and revoked here, not made: a key is shown to its owner only."""

    list_display = ("prefix", "name", "user", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    ordering = ("-id",)
    search_fields = ("=prefix", "=id", "=user__id", "=user__email")
    search_help_text = "The owner's e-mail address or id, or how the key begins."
    fields = readonly_fields = ("id", "user", "name", "prefix", "created_at", "last_used_at", "revoked_at")
    actions = ("revoke",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @admin.action(description="Revoke selected API keys", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        now = timezone.now()
        revoked = 0
        for api_key in queryset.filter(revoked_at=None):
            self.log_change(request, api_key, "revoke")
            revoked += keys.revoke(api_key=api_key, now=now)
        self.message_user(request, f"{revoked} revoked.")


@admin.register(Registration)
class RegistrationAdmin(admin.ModelAdmin[Registration]):
    """One row, made when it is first looked for."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        row, _ = Registration.objects.get_or_create(pk=1)
        return redirect("admin:accounts_registration_change", row.pk)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Registration | None = None) -> bool:
        return False


@admin.register(Invitation)
class InvitationAdmin(admin.ModelAdmin[Invitation]):
    """Invitations are made and withdrawn here, never changed."""

    list_display = ("__str__", "note", "created_by", "created_at", "expires_at", "used_at", "used_by")
    list_select_related = ("created_by", "used_by")
    search_fields = ("email", "note", "created_by__email", "used_by__email")
    fields = ("email", "note", "expires_at")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"expires_at": timezone.now() + invitations.LIFETIME}

    def has_change_permission(self, request: HttpRequest, obj: Invitation | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Invitation, form: ModelForm[Invitation], change: bool) -> None:
        """Make the invitation and show its link, this once."""
        assert isinstance(request.user, User)
        new = invitations.create(
            created_by=request.user,
            now=timezone.now(),
            email=obj.email,
            note=obj.note,
            expires_at=obj.expires_at,
        )
        obj.pk = new.invitation.pk
        obj._state.adding = False
        link = f"{request.build_absolute_uri(reverse('account_signup'))}?invitation={new.token}"
        text = "Send this link, it is shown this once: {}"
        self.message_user(request, format_html(text, link), messages.WARNING)
