"""Admin screens for pools, runs and attempts."""

from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms import CheckboxSelectMultiple
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path
from django.utils import timezone

from inference import api, pools
from inference.errors import RunNotFound
from inference.models import Attempt, ModelPool, PoolWeight, Run
from inference.prompt_pages import PromptPages


class PoolWeightInline(admin.TabularInline[PoolWeight, ModelPool]):
    model = PoolWeight
    extra = 0
    verbose_name_plural = "Weights here, in place of the plans' own"


@admin.register(ModelPool)
class ModelPoolAdmin(admin.ModelAdmin[ModelPool]):
    """A pool's slug names its queue and stands in runs and charges: it stays. One pool, always, is the default."""

    list_display = ("name", "slug", "model", "is_default", "is_open", "mode", "context_window", "max_output_tokens")
    fieldsets = (
        (None, {"fields": ("name", "slug", "model", "is_default", "is_open")}),
        ("Limits", {"fields": ("context_window", "max_output_tokens", "max_concurrent_runs")}),
        (
            "Context",
            {
                "fields": ("reserve_tokens", "high_water", "low_water"),
                "description": "What of the window a chat may take, and when its oldest turns are summarised. Changes "
                "count from the next message on.",
            },
        ),
        ("Deadlines", {"fields": ("queue_wait_s", "generation_s", "max_epochs", "stall_s")}),
        (
            "Queue",
            {
                "fields": (
                    "mode",
                    "queue_depth",
                    "free_floor",
                    "prompt_weight",
                    "output_weight",
                    "affinity_delay_ms",
                    "fairness_slack",
                ),
                "description": "How those share the pool who wait for it: by their plans' weights, in tokens. Changes "
                "count within 2 s.",
            },
        ),
        (
            "Overflow",
            {
                "fields": ("overflow_to", "short_prompt_tokens"),
                "description": "Only for plans that take a smaller model's answer, which is labelled, and paid at that "
                "pool's prices. That pool needs not be offered to them by name.",
            },
        ),
        ("Who may use it", {"fields": ("plans",)}),
        (
            "Prices",
            {
                "fields": ("prompt_price", "cached_price", "output_price"),
                "description": "What is settled from now on costs this; what has been charged stays as it was.",
            },
        ),
        ("Generation", {"fields": ("system_prompt", "temperature", "top_p", "engine_options")}),
    )
    inlines = (PoolWeightInline,)
    actions = ("open", "close", "mode_normal", "mode_shed_free", "mode_drain", "make_default")

    def get_readonly_fields(self, request: HttpRequest, obj: ModelPool | None = None) -> tuple[str, ...]:
        return ("slug", "is_default") if obj else ("is_default",)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Plans to tick, of which there are few, and prices with their currency."""
        if db_field.name == "plans":
            kwargs["widget"] = CheckboxSelectMultiple()
        if db_field.name == "prompt_price":
            kwargs["help_text"] = f"{db_field.help_text} 150000 is 0.15 {settings.CURRENCY}."
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    @admin.action(description="Open to new messages", permissions=["change"])
    def open(self, request: HttpRequest, queryset: QuerySet[ModelPool]) -> None:
        self._switch(request, queryset.filter(is_open=False), is_open=True)

    @admin.action(description="Close to new messages (answers under way go on)", permissions=["change"])
    def close(self, request: HttpRequest, queryset: QuerySet[ModelPool]) -> None:
        self._switch(request, queryset.filter(is_open=True), is_open=False)
        if queryset.filter(is_default=True).exists():
            text = "The default pool is closed: messages that name no pool are refused."
            self.message_user(request, text, messages.WARNING)

    @admin.action(description="Mode: normal, everybody is served", permissions=["change"])
    def mode_normal(self, request: HttpRequest, queryset: QuerySet[ModelPool]) -> None:
        self._set_mode(request, queryset, ModelPool.Mode.NORMAL)

    @admin.action(description="Mode: shed free, free plans go elsewhere", permissions=["change"])
    def mode_shed_free(self, request: HttpRequest, queryset: QuerySet[ModelPool]) -> None:
        self._set_mode(request, queryset, ModelPool.Mode.SHED_FREE)

    @admin.action(description="Mode: drain, nothing new (what waits is served)", permissions=["change"])
    def mode_drain(self, request: HttpRequest, queryset: QuerySet[ModelPool]) -> None:
        self._set_mode(request, queryset, ModelPool.Mode.DRAIN)

    def _set_mode(self, request: HttpRequest, queryset: QuerySet[ModelPool], mode: ModelPool.Mode) -> None:
        switched = 0
        for pool in list(queryset.exclude(mode=mode)):
            self.log_change(request, pool, mode.value)
            switched += pools.set_mode(pool_id=pool.pk, mode=mode)
        self.message_user(request, f"{switched} switched: {mode.label}.")

    @admin.action(description="Make the default pool", permissions=["change"])
    def make_default(self, request: HttpRequest, queryset: QuerySet[ModelPool]) -> None:
        chosen = list(queryset)
        if len(chosen) != 1:
            self.message_user(request, "Choose one pool: there is one default.", messages.ERROR)
            return
        self.log_change(request, chosen[0], [{"changed": {"fields": ["is default"]}}])
        pools.make_default(pool_id=chosen[0].pk)
        self.message_user(request, f"{chosen[0]} is the default pool.")

    def _switch(self, request: HttpRequest, chosen: Iterable[ModelPool], *, is_open: bool) -> None:
        switched = 0
        for pool in list(chosen):
            self.log_change(request, pool, "open" if is_open else "close")
            switched += pools.set_open(pool_id=pool.pk, is_open=is_open)
        self.message_user(request, f"{switched} {'opened' if is_open else 'closed'}.")

    def get_deleted_objects(  # type: ignore[override]  # the stubs want a model's name where a model goes
        self, objs: QuerySet[ModelPool] | list[ModelPool], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """The reasons in place of Django's own list of what is in the way: that would name every run."""
        kept = [reason for pool in objs for reason in pools.reasons_to_keep(pool=pool)]
        return [str(pool) for pool in objs], {"pools": len(objs)}, set(), kept


class _ReadOnly:
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

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return super().get_queryset(request).defer("text")


@admin.register(Run)
class RunAdmin(_ReadOnly, PromptPages):
    """Runs are written by the state machine alone; here they can be stopped, as their owner would."""

    list_display = (
        "id",
        "owner",
        "kind",
        "pool",
        "status",
        "error_code",
        "epoch",
        "prompt_tokens",
        "output_tokens",
        "accepted",
    )
    list_filter = ("status", "kind", "pool")
    sortable_by = ("accepted",)
    search_fields = ("=id", "=chat_id", "=owner__id", "=owner__email")
    search_help_text = "An owner's e-mail address, or the id of a run, a chat or an owner."
    list_select_related = ("owner", "pool")
    exclude = ("carry_text",)
    inlines = (AttemptInline,)
    actions = ("cancel",)
    change_form_template = "admin/inference/run/change_form.html"

    # Ids are made in the order of time, and have an index.
    @admin.display(description="accepted", ordering="id")
    def accepted(self, run: Run) -> Any:
        return run.created_at

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Without prompts and answers under way: they can be large, and are not shown."""
        return super().get_queryset(request).defer("prompt_ids", "carry_ids", "carry_text", "context")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("inference.cancel_run")

    @admin.action(description="Stop selected answers", permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        stopped = sum(self._stop(request, run) for run in queryset.filter(status__in=Run.ACTIVE) if run.is_turn)
        self.message_user(request, f"{stopped} stopped or asked to stop.")

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.cancel_view)
        return [path("<uuid:run_id>/cancel/", view, name="inference_run_cancel"), *super().get_urls()]

    def cancel_view(self, request: HttpRequest, run_id: Any) -> HttpResponse:
        """The button of a run's page."""
        if request.method != "POST" or not self.has_cancel_permission(request):
            raise PermissionDenied
        run = self.get_object(request, str(run_id))
        if run is None:
            raise Http404
        if not run.is_turn:
            self.message_user(
                request, "The system's own work is not stopped here: it would begin anew.", messages.WARNING
            )
        elif run.is_active:
            self._stop(request, run)
            self.message_user(request, "The answer was stopped, or its worker asked to stop it.")
        else:
            self.message_user(request, "The answer had ended before.", messages.WARNING)
        return redirect("admin:inference_run_change", run_id)

    def _stop(self, request: HttpRequest, run: Run) -> bool:
        self.log_change(request, run, "cancel")
        try:
            api.cancel(owner_id=run.owner_id, run_id=run.id, now=timezone.now())
        except RunNotFound:
            # Erased with its chat since it was listed.
            return False
        return True

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        shown = {
            "may_cancel": self.has_cancel_permission(request),
            "may_read_prompt": self.may_read_prompts(request),
        }
        return super().change_view(request, object_id, form_url, shown | (extra_context or {}))


@admin.register(Attempt)
class AttemptAdmin(_ReadOnly, admin.ModelAdmin[Attempt]):
    list_display = ("id", "run_id", "epoch", "worker", "outcome", "output_tokens", "started", "ended_at")
    list_filter = ("outcome",)
    sortable_by = ("started",)
    ordering = ("-id",)
    search_fields = ("=id", "=run__id")
    search_help_text = "The id of an attempt or a run."
    exclude = ("text",)

    @admin.display(description="started", ordering="id")
    def started(self, attempt: Attempt) -> Any:
        return attempt.started_at

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        """Without what an answer said before it was made anew."""
        return super().get_queryset(request).defer("text")
