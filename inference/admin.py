"""Admin screens for pools, runs and attempts."""

from django.contrib import admin
from django.http import HttpRequest

from inference.models import Attempt, ModelPool, Run


@admin.register(ModelPool)
class ModelPoolAdmin(admin.ModelAdmin[ModelPool]):
    """A pool's slug names its queue and stands in runs and charges: it stays."""

    list_display = ("name", "slug", "model", "is_default", "is_open", "context_window", "max_output_tokens")

    def get_readonly_fields(self, request: HttpRequest, obj: ModelPool | None = None) -> tuple[str, ...]:
        return ("slug",) if obj else ()


class _ReadOnly:
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class AttemptInline(_ReadOnly, admin.TabularInline[Attempt, Run]):
    model = Attempt
    exclude = ("text",)
    extra = 0


@admin.register(Run)
class RunAdmin(_ReadOnly, admin.ModelAdmin[Run]):
    """Runs are written by the state machine alone."""

    list_display = ("id", "owner", "pool", "status", "epoch", "prompt_tokens", "output_tokens", "created_at")
    list_filter = ("status", "pool")
    search_fields = ("=id", "=chat_id", "owner__email")
    list_select_related = ("owner", "pool")
    exclude = ("carry_text",)
    inlines = (AttemptInline,)


@admin.register(Attempt)
class AttemptAdmin(_ReadOnly, admin.ModelAdmin[Attempt]):
    list_display = ("run", "epoch", "worker", "outcome", "output_tokens", "started_at", "ended_at")
    list_filter = ("outcome",)
    search_fields = ("=run__id", "worker")
    list_select_related = ("run",)
    exclude = ("text",)
