"""The admin screens for what lets a user in beside the password: addresses and sessions.

In place of allauth's own, which change rows unrecorded, delete a session's row and leave the session, and search by
what has no index.
"""

from typing import Any

from allauth.account import signals
from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

admin.site.unregister((EmailAddress, UserSession))


@admin.register(EmailAddress)
class EmailAddressAdmin(admin.ModelAdmin[EmailAddress]):
    list_display = ("email", "user", "primary", "verified")
    list_select_related = ("user",)
    ordering = ("-id",)
    search_fields = ("=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id."
    raw_id_fields = ("user",)
    actions = ("make_verified",)

    @admin.action(description="Mark selected e-mail addresses as verified", permissions=["change"])
    def make_verified(self, request: HttpRequest, queryset: QuerySet[EmailAddress]) -> None:
        verified = 0
        for address in queryset.filter(verified=False):
            with transaction.atomic():
                self.log_change(request, address, [{"changed": {"fields": ["verified"]}}])
                if address.set_verified():
                    verified += 1
                    signals.email_confirmed.send(sender=EmailAddress, request=request, email_address=address)
                else:
                    text = "An address is verified already for somebody else, and stays as it was."
                    self.message_user(request, text, messages.ERROR)
        self.message_user(request, f"{verified} verified.")


@admin.register(UserSession)
class UserSessionAdmin(admin.ModelAdmin[UserSession]):
    """To delete a row is to log that session out."""

    list_display = ("user", "created_at", "last_seen_at", "ip", "user_agent")
    list_select_related = ("user",)
    ordering = ("-id",)
    search_fields = ("=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id."
    fields = readonly_fields = ("user", "created_at", "last_seen_at", "ip", "user_agent")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def delete_model(self, request: HttpRequest, obj: UserSession) -> None:
        obj.end()

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[UserSession]) -> None:
        for session in queryset:
            session.end()
