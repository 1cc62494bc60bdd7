"""The audit trail's screen: to read and to search, for nobody to change."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(admin.ModelAdmin[AuditEntry]):
    list_display = ("at", "actor_email", "action", "about", "detail")
    list_filter = ("action",)
    search_fields = ("=actor_email", "=object_id")
    search_help_text = (
        "The e-mail address of who did it, or the id of what it was done to: of a user, a run, a message."
    )
    fields = readonly_fields = (
        "at",
        "actor_email",
        "actor_id",
        "action",
        "about",
        "object_id",
        "detail",
        "request_id",
    )

    @admin.display(description="what")
    def about(self, entry: AuditEntry) -> str:
        """Type and id, with a link to the object's page as long as there is a screen for its type."""
        app_label, _, model = entry.object_type.partition(".")
        text = f"{model} {entry.object_id}".rstrip()
        try:
            url = reverse(f"admin:{app_label}_{model}_change", args=(entry.object_id,))
        except NoReverseMatch:
            return text
        return format_html('<a href="{}">{}</a>', url, text)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        """An address finds what its user did, under whatever address, or what a user did who is gone.

        One condition each, which an index has in order: of two with `or` all that they find would have to be sorted.
        """
        if "@" not in search_term:
            return super().get_search_results(request, queryset, search_term)
        address = User.objects.normalize_email(search_term)
        actor = User.objects.filter(email=address).first()
        return queryset.filter(Q(actor_email=address) if actor is None else Q(actor_id=actor.pk)), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
