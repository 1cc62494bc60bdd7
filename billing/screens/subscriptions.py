"""The admin screen for subscriptions: begun, ended, and otherwise left as they were."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from billing import subscriptions
from billing.errors import SubscriptionInTheWay
from billing.models import Subscription


class SubscriptionForm(forms.ModelForm[Subscription]):
    class Meta:
        model = Subscription
        fields = ("user", "plan", "starts_at", "ends_at")
        help_texts = {"ends_at": "Empty = goes on."}  # noqa: RUF012 - as Django's forms are written

    def clean(self) -> dict[str, Any]:
        """Called within the transaction that saves."""
        values: dict[str, Any] = super().clean() or {}
        if self.errors:
            return values
        # Once it is stored only its end can be changed.
        user_id = values["user"].pk if "user" in values else self.instance.user_id
        starts_at = values.get("starts_at", self.instance.starts_at)
        ends_at = values["ends_at"]
        if ends_at is not None and ends_at <= starts_at:
            return values  # the model's own check says so
        try:
            subscriptions.ensure_free(user_id=user_id, starts_at=starts_at, ends_at=ends_at, but=self.instance.pk)
        except SubscriptionInTheWay as error:
            # At a field, so that what the table's own constraints would say of it is left out.
            raise ValidationError({"user" if "user" in values else "ends_at": _in_words(error)}) from error
        return values


def _in_words(error: SubscriptionInTheWay) -> str:
    until = "without an end" if error.ends_at is None else f"until {_moment(error.ends_at)}"
    return (
        f"The user's subscription to {error.plan} from {_moment(error.starts_at)} {until} is in the way. "
        "Of two the second may begin when the first ends, not before."
    )


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


@admin.register(Subscription)
class SubscriptionAdmin(admin.ModelAdmin[Subscription]):
    """Whose and which plan's it is, and since when, stays: another plan is another subscription."""

    form = SubscriptionForm
    list_display = ("user", "plan", "starts_at", "ends_at")
    list_filter = ("plan",)
    list_select_related = ("user", "plan")
    ordering = ("-id",)
    search_fields = ("=user__id", "=user__email")
    search_help_text = "A user's e-mail address or id."
    autocomplete_fields = ("user",)
    fields = ("user", "plan", "starts_at", "ends_at")
    actions = ("end_now",)

    def get_readonly_fields(self, request: HttpRequest, obj: Subscription | None = None) -> tuple[str, ...]:
        return ("user", "plan", "starts_at") if obj else ()

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"starts_at": timezone.now(), **super().get_changeform_initial_data(request)}

    @admin.action(description="End selected subscriptions now", permissions=["change"])
    def end_now(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        # To the second, as forms have it: the next one may begin in the same.
        now = timezone.now().replace(microsecond=0)
        chosen = list(queryset)
        ended = sum(self._end(request, subscription, now=now) for subscription in chosen)
        self.message_user(request, f"{ended} ended.")
        if ended < len(chosen):
            text = "The others have ended before, or have not begun: those can be deleted."
            self.message_user(request, text, messages.WARNING)

    def _end(self, request: HttpRequest, subscription: Subscription, *, now: datetime) -> bool:
        with transaction.atomic():
            ended = subscriptions.end(subscription_id=subscription.pk, now=now)
            if ended:
                self.log_change(request, subscription, [{"changed": {"fields": ["ends at"]}}])
        return ended
