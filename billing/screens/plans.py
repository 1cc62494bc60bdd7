"""Admin screens for plans, and for the limits of single users that stand in their place."""

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from billing import plans
from billing.models import LimitOverride, Plan


@admin.register(Plan)
class PlanAdmin(admin.ModelAdmin[Plan]):
    """One plan, always, is the default: limits of users without a subscription are its own."""

    list_display = (
        "name",
        "slug",
        "is_default",
        "weight",
        "is_free",
        "budget_tokens",
        "refill_per_hour",
        "messages_per_hour",
        "concurrent_runs",
        "max_output_tokens",
    )
    readonly_fields = ("is_default",)
    fieldsets = (
        (None, {"fields": ("name", "slug", "is_default")}),
        (
            "Token budget",
            {
                "fields": ("budget_tokens", "refill_per_hour", "output_floor"),
                "description": "A bucket that refills until it is full again. Give both numbers, or neither.",
            },
        ),
        (
            "Messages",
            {"fields": ("messages_per_hour", "concurrent_runs", "max_prompt_tokens", "max_output_tokens")},
        ),
        ("When a pool is busy", {"fields": ("weight", "is_free", "queue_wait_s", "overflow")}),
        ("Answers that nobody follows", {"fields": ("unwatched", "unwatched_tokens", "unwatched_s")}),
        ("Chats", {"fields": ("history_days", "long_memory")}),
    )
    actions = ("make_default",)

    @admin.action(description="Make the default plan", permissions=["change"])
    def make_default(self, request: HttpRequest, queryset: QuerySet[Plan]) -> None:
        chosen = list(queryset)
        if len(chosen) != 1:
            self.message_user(request, "Choose one plan: there is one default.", messages.ERROR)
            return
        self.log_change(request, chosen[0], [{"changed": {"fields": ["is default"]}}])
        plans.make_default(plan_id=chosen[0].pk)
        self.message_user(request, f"{chosen[0]} is the default plan.")

    def get_deleted_objects(  # type: ignore[override]  # the stubs want a model's name where a model goes
        self, objs: QuerySet[Plan] | list[Plan], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """The reasons in place of Django's own list of what is in the way: that would name every subscription."""
        kept = [reason for plan in objs for reason in plans.reasons_to_keep(plan=plan)]
        return [str(plan) for plan in objs], {"plans": len(objs)}, set(), kept


@admin.register(LimitOverride)
class LimitOverrideAdmin(admin.ModelAdmin[LimitOverride]):
    """What one user may in place of the plan's numbers, for good or for a time."""

    list_display = (
        "user",
        "budget_tokens",
        "refill_per_hour",
        "messages_per_hour",
        "concurrent_runs",
        "max_prompt_tokens",
        "max_output_tokens",
        "until",
    )
    list_select_related = ("user",)
    ordering = ("-user",)
    search_fields = ("=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id."
    autocomplete_fields = ("user",)
    fieldsets = (
        (None, {"fields": ("user", "until", "note")}),
        (
            "In place of the plan's",
            {
                "fields": (
                    "budget_tokens",
                    "refill_per_hour",
                    "messages_per_hour",
                    "concurrent_runs",
                    "max_prompt_tokens",
                    "max_output_tokens",
                ),
                "description": "What is empty stays as in the plan. Of budget and refill give both, or neither.",
            },
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: LimitOverride | None = None) -> tuple[str, ...]:
        return ("user",) if obj else ()
