"""What a user can take away of billing: plans, limits, the ledger, adjustments and days, a page of rows at a time."""

from typing import Any
from uuid import UUID

from django.db.models import Model

from billing.models import Adjustment, DailyUsage, LimitOverride, Subscription, UsageEntry

_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens", "wasted_tokens")
_LIMITS = (
    "budget_tokens",
    "refill_per_hour",
    "messages_per_hour",
    "concurrent_runs",
    "max_prompt_tokens",
    "max_output_tokens",
)
_PRICES = ("prompt_price", "cached_price", "output_price", "cost")
# Of each section its rows and which of their columns, under the names of a reader. An override's note and an
# adjustment's author are staff's.
_SECTIONS: dict[str, tuple[type[Model], tuple[str, ...], dict[str, str]]] = {
    "plans": (Subscription, ("starts_at", "ends_at"), {"plan": "plan__slug", "plan_name": "plan__name"}),
    "limit_overrides": (LimitOverride, (*_LIMITS, "until"), {}),
    "usage": (
        UsageEntry,
        ("run_id", "epoch", "admission_id", "pool", "reason", *_TOKENS, *_PRICES),
        {"at": "created_at"},
    ),
    "adjustments": (Adjustment, ("tokens", "cost", "reason"), {"at": "created_at"}),
    "daily_usage": (DailyUsage, ("day", "pool", "runs", *_TOKENS, "cost"), {}),
}
SECTIONS = tuple(_SECTIONS)


def page_of(*, section: str, user_id: UUID, after: UUID | None, limit: int) -> list[dict[str, Any]]:
    """The next of the user's rows in one of SECTIONS, in the order of their `id`."""
    model, columns, renamed = _SECTIONS[section]
    rows = model._default_manager.filter(user_id=user_id)
    if after is not None:
        rows = rows.filter(pk__gt=after)
    names = ("id", *columns, *renamed)
    found = rows.order_by("pk").values_list("pk", *columns, *renamed.values())[:limit]
    return [dict(zip(names, row, strict=True)) for row in found]
