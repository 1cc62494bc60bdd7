"""Corrections: what people add to a user's charges, or take off them, beside the ledger of runs."""

from datetime import datetime
from functools import partial
from uuid import UUID

from django.db import transaction
from uuid_utils.compat import uuid7

from billing import api
from billing.models import Adjustment
from billing.signals import account_adjusted


def adjust(
    *,
    user_id: UUID,
    tokens: int,
    cost: int,
    reason: str,
    author_id: UUID | None,
    author_email: str,
    now: datetime,
    key: UUID | None = None,
) -> Adjustment:
    """Add tokens and cost, in millionths of the currency, to what the user is charged; negative ones give back.

    Every admission in flight becomes void, and the account's counters in Redis are rebuilt with this in them. The same
    key adjusts once. Raises IntegrityError for a key that was used, and for what the table does not take: nothing at
    all, no reason, more than its bounds.
    """
    with transaction.atomic():
        api.advance_generation(user_id=user_id)
        transaction.on_commit(partial(account_adjusted.send, sender=Adjustment, user_id=user_id, now=now), robust=True)
        return Adjustment.objects.create(
            id=key or uuid7(),
            user_id=user_id,
            tokens=tokens,
            cost=cost,
            reason=reason,
            author_id=author_id,
            author_email=author_email,
            created_at=now,
        )
