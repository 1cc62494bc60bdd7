"""Which limits apply to a user: those of the current plan, and in their place what the user alone may."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from billing.contracts import Limits, PlanInfo, Tier
from billing.models import LimitOverride, Plan, Subscription

# What a user may have another number of than the plan.
_OWN = (
    "budget_tokens",
    "refill_per_hour",
    "messages_per_hour",
    "concurrent_runs",
    "max_prompt_tokens",
    "max_output_tokens",
)
_LIMITS = (
    *_OWN,
    "weight",
    "output_floor",
    "queue_wait_s",
    "overflow",
    "unwatched",
    "unwatched_tokens",
    "unwatched_s",
    "long_memory",
)
_SHOWN = (*_OWN, "queue_wait_s", "history_days")


def limits_for(*, user_id: UUID, now: datetime) -> Limits:
    """The limits of the user's current subscription, or of the default plan, as changed for the user."""
    numbers = _effective(("slug", *_LIMITS), user_id=user_id, now=now)
    return Limits(plan=numbers.pop("slug"), **numbers)


def tiers() -> list[Tier]:
    """Every plan as one that shares busy pools."""
    columns = ("slug", "weight", "is_free", "queue_wait_s")
    return [
        Tier(plan=slug, weight=weight, is_free=is_free, queue_wait_s=wait)
        for slug, weight, is_free, wait in Plan.objects.order_by("slug").values_list(*columns)
    ]


def plan_for(*, user_id: UUID, now: datetime) -> PlanInfo:
    """The plan of the user's current subscription, or the default one, with the numbers that apply to the user."""
    return PlanInfo(**_effective(("slug", "name", *_SHOWN), user_id=user_id, now=now))


def _effective(columns: tuple[str, ...], *, user_id: UUID, now: datetime) -> dict[str, Any]:
    # Plain columns of plain queries: on the path of every send, where one query for all takes 2 ms to compose.
    row = (
        Subscription.objects.filter(user_id=user_id, starts_at__lte=now)
        .filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now))
        .order_by("-starts_at")
        .values_list(*(f"plan__{name}" for name in columns))
        .first()
    )
    if row is None:
        row = Plan.objects.filter(is_default=True).values_list(*columns).get()
    numbers = dict(zip(columns, row, strict=True))
    own = LimitOverride.objects.filter(user_id=user_id).order_by("pk").values_list("until", *_OWN).first()
    if own is not None and (own[0] is None or own[0] > now):
        numbers |= {name: number for name, number in zip(_OWN, own[1:], strict=True) if number is not None}
    return numbers
