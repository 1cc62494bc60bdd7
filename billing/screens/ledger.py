"""Admin screens for quota accounts, the ledger of runs, and adjustments beside it."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from uuid_utils.compat import uuid7

from billing import adjustments, money
from billing.models import Account, Adjustment, UsageEntry
from billing.screens.csv_export import Column, CsvExport, identifier, moment, number, text
from billing.screens.filters import DaysFilter, PoolFilter


class _Kept:
    """Changed and deleted by nobody."""

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Account)
class AccountAdmin(_Kept, admin.ModelAdmin[Account]):
    """An account stays as long as its user: one begun anew would accept what its old generation has voided."""

    list_display = ("user", "quota_gen")
    search_fields = ("=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id."
    list_select_related = ("user",)
    ordering = ("-user",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(UsageEntry)
class UsageEntryAdmin(_Kept, CsvExport):
    """The ledger; nobody edits it. In the order of settlement, which is what its indexes are in."""

    list_display = (
        "created_at",
        "user",
        "pool",
        "purpose",
        "reason",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "wasted_tokens",
        "costs",
    )
    list_filter = ("reason", "purpose", PoolFilter, DaysFilter)
    list_select_related = ("user",)
    ordering = ("-created_at",)
    sortable_by = ("created_at",)
    search_fields = ("=run_id", "=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id, or the id of a run."
    fields = (
        "id", "created_at", "user", "run_id", "epoch", "admission_id", "pool", "purpose", "reason",
        "prompt_tokens", "cached_tokens", "output_tokens", "wasted_tokens",
        "prompt_costs", "cached_costs", "output_costs", "costs",
    )  # fmt: skip
    csv_columns = (
        Column(name="id", field="id", written=identifier),
        Column(name="created_at", field="created_at", written=moment),
        Column(name="user_id", field="user_id", written=identifier),
        Column(name="user_email", field="user__email", written=text),
        Column(name="run_id", field="run_id", written=identifier),
        Column(name="epoch", field="epoch", written=number),
        Column(name="pool", field="pool", written=text),
        Column(name="reason", field="reason", written=text),
        Column(name="purpose", field="purpose", written=text),
        Column(name="prompt_tokens", field="prompt_tokens", written=number),
        Column(name="cached_tokens", field="cached_tokens", written=number),
        Column(name="output_tokens", field="output_tokens", written=number),
        Column(name="wasted_tokens", field="wasted_tokens", written=number),
        Column(name="prompt_price", field="prompt_price", written=money.decimal),
        Column(name="cached_price", field="cached_price", written=money.decimal),
        Column(name="output_price", field="output_price", written=money.decimal),
        Column(name="cost", field="cost", written=money.decimal),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @admin.display(description="cost")
    def costs(self, entry: UsageEntry) -> str:
        return money.amount(entry.cost)

    @admin.display(description="a million prompt tokens")
    def prompt_costs(self, entry: UsageEntry) -> str:
        return money.amount(entry.prompt_price)

    @admin.display(description="a million cached tokens")
    def cached_costs(self, entry: UsageEntry) -> str:
        return money.amount(entry.cached_price)

    @admin.display(description="a million output tokens")
    def output_costs(self, entry: UsageEntry) -> str:
        return money.amount(entry.output_price)


class AdjustmentForm(forms.ModelForm[Adjustment]):
    # Made with the form, so that a form that is sent twice adjusts once.
    key = forms.UUIDField(widget=forms.HiddenInput)

    class Meta:
        model = Adjustment
        fields = ("user", "tokens", "cost", "reason")
        help_texts = {"reason": "The user can read it."}  # noqa: RUF012 - as Django's forms are written

    def clean_key(self) -> Any:
        key = self.cleaned_data["key"]
        if Adjustment.objects.filter(pk=key).exists():
            raise ValidationError("This adjustment has been made already: it is in the list.")
        return key


@admin.register(Adjustment)
class AdjustmentAdmin(_Kept, CsvExport):
    """Made here once, and then as fixed as the ledger: a wrong one is put right by another."""

    form = AdjustmentForm
    list_display = ("created_at", "user", "tokens", "costs", "reason", "author_email")
    list_filter = (DaysFilter,)
    list_select_related = ("user",)
    ordering = ("-created_at",)
    sortable_by = ("created_at",)
    search_fields = ("=id", "=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id, or the id of an adjustment."
    autocomplete_fields = ("user",)
    csv_columns = (
        Column(name="id", field="id", written=identifier),
        Column(name="created_at", field="created_at", written=moment),
        Column(name="user_id", field="user_id", written=identifier),
        Column(name="user_email", field="user__email", written=text),
        Column(name="tokens", field="tokens", written=number),
        Column(name="cost", field="cost", written=money.decimal),
        Column(name="reason", field="reason", written=text),
        Column(name="author_id", field="author_id", written=identifier),
        Column(name="author_email", field="author_email", written=text),
    )

    @admin.display(description="cost")
    def costs(self, adjustment: Adjustment) -> str:
        return money.amount(adjustment.cost)

    def get_fields(self, request: HttpRequest, obj: Adjustment | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("user", "tokens", "cost", "reason", "key")
        return ("id", "user", "tokens", "costs", "reason", "author_email", "created_at")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {**super().get_changeform_initial_data(request), "key": uuid7()}

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "cost":
            kwargs["help_text"] = (
                f"Millionths of {settings.CURRENCY}: 1500000 is {money.amount(1_500_000)}; negative gives back."
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Adjustment, form: AdjustmentForm, change: bool) -> None:
        assert obj.user_id is not None
        made = adjustments.adjust(
            user_id=obj.user_id,
            tokens=obj.tokens,
            cost=obj.cost,
            reason=obj.reason,
            author_id=request.user.pk,
            author_email=request.user.get_username(),
            now=timezone.now(),
            key=form.cleaned_data["key"],
        )
        obj.pk = made.pk
        obj._state.adding = False
