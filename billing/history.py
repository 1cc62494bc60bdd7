"""How long plans keep chats that nobody uses."""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from django.db.models import Min, Q

from billing.models import Plan, Subscription


def shortest_history() -> int | None:
    """The fewest days for which any plan keeps an unused chat; None where all keep all."""
    shortest: int | None = Plan.objects.aggregate(days=Min("history_days"))["days"]
    return shortest


def history_days_of(*, user_ids: Collection[UUID], now: datetime) -> dict[UUID, int | None]:
    """For each of the users, how many days the present plan keeps an unused chat; None = for good."""
    default = Plan.objects.filter(is_default=True).values_list("history_days", flat=True).get()
    current = (
        Subscription.objects.filter(user_id__in=user_ids, starts_at__lte=now)
        .filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now))
        .values_list("user_id", "plan__history_days")
    )
    return dict.fromkeys(user_ids, default) | dict(current)
