"""Subscriptions in time: of one user's no two overlap, and one that goes on can be ended."""

from datetime import datetime
from uuid import UUID

from django.db.models import Q

from billing.errors import SubscriptionInTheWay
from billing.models import Account, Subscription


def ensure_free(*, user_id: UUID, starts_at: datetime, ends_at: datetime | None, but: UUID | None = None) -> None:
    """See that the user has no subscription in this time, `but` that one; end None = for ever. What ends when another
    starts is not in its way.

    Within the transaction that stores it: the account's row is held until that ends, so that of two writers the second
    sees what the first has stored. Who stores without asking is refused by the database. Raises SubscriptionInTheWay.
    """
    Account.objects.get_or_create(user_id=user_id)
    Account.objects.select_for_update().get(user_id=user_id)
    overlapping = Subscription.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=starts_at), user_id=user_id)
    if ends_at is not None:
        overlapping = overlapping.filter(starts_at__lt=ends_at)
    if but is not None:
        overlapping = overlapping.exclude(pk=but)
    other = overlapping.select_related("plan").order_by("starts_at").first()
    if other is not None:
        raise SubscriptionInTheWay(plan=other.plan.name, starts_at=other.starts_at, ends_at=other.ends_at)


def end(*, subscription_id: UUID, now: datetime) -> bool:
    """Let a subscription that goes on end now. False for one that has ended, or has not begun."""
    current = Subscription.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now), starts_at__lt=now)
    return current.filter(pk=subscription_id).update(ends_at=now) == 1
