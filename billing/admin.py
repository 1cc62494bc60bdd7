"""Admin screens for plans, subscriptions, accounts and the read-only ledger."""

from django.contrib import admin
from django.http import HttpRequest

from billing.models import Account, Plan, Subscription, UsageEntry


@admin.register(Plan)
class PlanAdmin(admin.ModelAdmin[Plan]):
    list_display = ("name", "slug", "is_default", "weight", "concurrent_runs", "max_output_tokens")


@admin.register(Subscription)
class SubscriptionAdmin(admin.ModelAdmin[Subscription]):
    list_display = ("user", "plan", "starts_at", "ends_at")
    list_filter = ("plan",)
    search_fields = ("user__email",)
    autocomplete_fields = ("user",)


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin[Account]):
    list_display = ("user", "quota_gen")
    search_fields = ("user__email",)
    readonly_fields = ("user", "quota_gen")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(UsageEntry)
class UsageEntryAdmin(admin.ModelAdmin[UsageEntry]):
    """The ledger; nobody edits it, and counting its rows would scan it."""

    list_display = (
        "created_at",
        "user",
        "pool",
        "reason",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "wasted_tokens",
    )
    list_filter = ("reason", "pool")
    search_fields = ("=run_id", "=user__email")
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: UsageEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: UsageEntry | None = None) -> bool:
        return False
