"""How far token budgets are used, replayed from the ledger, and the checkpoints that keep the replay short.

A budget is a bucket kept as debt: what was charged and has not been refilled (docs/quotas.md).
"""

import heapq
import math
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Exists, F, Min, OuterRef, Q, QuerySet

from billing.contracts import Debt
from billing.models import Account, Adjustment, UsageEntry


def debt_of(
    *, user_id: UUID, refill_per_hour: int | None, now: datetime, except_admissions: Collection[UUID] = ()
) -> Debt:
    """The debt at the last charge, leaving out admissions whose reservation still covers them.

    Refilled at today's rate since the last checkpoint. Without a budget (no refill) nothing is owed.
    """
    if refill_per_hour is None:
        return Debt(tokens=0, at=now)
    debt = _checkpoint_of(user_id)
    for at, tokens in _charges(user_id, since=debt, except_admissions=except_admissions):
        debt = _charged(debt, at=at, tokens=tokens, refill_per_hour=refill_per_hour)
    return debt or Debt(tokens=0, at=now)


def checkpoint(
    *, user_id: UUID, until: datetime, refill_per_hour: int | None, live_admissions: Collection[UUID]
) -> bool:
    """Note the debt at `until`, so that what was charged before need not be read again. False when it is noted already.

    `until` must lie so far back that no row of a time before it can still be committed. Of a live admission nothing may
    go into the note: its rows count when its reservation is gone. So the note ends before the first of them.
    """
    before = _checkpoint_of(user_id)
    live = _since(UsageEntry.objects.filter(user_id=user_id, admission_id__in=live_admissions), before)
    first_live: datetime | None = live.aggregate(first=Min("created_at"))["first"]
    if first_live is not None:
        until = min(until, first_live)
    if before is not None and until <= before.at:
        return False
    tokens = 0.0
    if refill_per_hour is not None:
        debt = before
        for at, charged in _charges(user_id, since=before, until=until):
            debt = _charged(debt, at=at, tokens=charged, refill_per_hour=refill_per_hour)
        if debt is not None:
            tokens = debt.later(refill_per_hour=refill_per_hour, now=until).tokens
    here = Account.objects.filter(user_id=user_id, debt_at=None if before is None else before.at)
    return here.update(debt_tokens=math.ceil(tokens), debt_at=until) == 1


def due_for_checkpoint(*, older_than: datetime, limit: int) -> list[UUID]:
    """Users who were charged since their last checkpoint, which is missing or older than that; the oldest first."""
    oldest = F("debt_at").asc(nulls_first=True)
    old = Account.objects.filter(Q(debt_at=None) | Q(debt_at__lt=older_than))
    return list(_charged_since_checkpoint(old).order_by(oldest, "user_id").values_list("user_id", flat=True)[:limit])


def charged_lately(*, after: UUID | None, limit: int) -> list[UUID]:
    """Users who were charged something since their last checkpoint, by their ids, from the one after `after` on."""
    rest = Account.objects.all() if after is None else Account.objects.filter(user_id__gt=after)
    return list(_charged_since_checkpoint(rest).order_by("user_id").values_list("user_id", flat=True)[:limit])


def ever_charged() -> list[UUID]:
    """Everybody who stands in the ledger."""
    accounts = Account.objects.filter(Exists(UsageEntry.objects.filter(user_id=OuterRef("user_id"))))
    return list(accounts.order_by("user_id").values_list("user_id", flat=True))


def _checkpoint_of(user_id: UUID) -> Debt | None:
    row = Account.objects.filter(user_id=user_id, debt_at__isnull=False).values_list("debt_tokens", "debt_at").first()
    if row is None:
        return None
    tokens, at = row
    assert at is not None  # asked for so
    return Debt(tokens=tokens, at=at)


def _charged(debt: Debt | None, *, at: datetime, tokens: int, refill_per_hour: int) -> Debt:
    """The debt after one charge or, where `tokens` is negative, after something was given back."""
    refilled = Debt(tokens=0, at=at) if debt is None else debt.later(refill_per_hour=refill_per_hour, now=at)
    return Debt(tokens=max(0.0, refilled.tokens + tokens), at=refilled.at)


def _charges(
    user_id: UUID,
    *,
    since: Debt | None,
    until: datetime | None = None,
    except_admissions: Collection[UUID] = (),
) -> Iterator[tuple[datetime, int]]:
    """When and how many tokens: the user's rows of the ledger and what people adjusted, oldest first."""
    rows = UsageEntry.objects.filter(user_id=user_id).exclude(admission_id__in=except_admissions)
    adjusted = Adjustment.objects.filter(user_id=user_id).exclude(tokens=0)
    found = [
        _since(rows, since).values_list("created_at", F("prompt_tokens") + F("output_tokens")),
        _since(adjusted, since).values_list("created_at", "tokens"),
    ]
    if until is not None:
        found = [charges.filter(created_at__lt=until) for charges in found]
    return heapq.merge(*(charges.order_by("created_at").iterator() for charges in found), key=lambda charge: charge[0])


def _since(rows: QuerySet[Any, Any], debt: Debt | None) -> QuerySet[Any, Any]:
    """What a checkpoint does not contain: it ends before the rows of its own moment."""
    return rows if debt is None else rows.filter(created_at__gte=debt.at)


def _charged_since_checkpoint(accounts: QuerySet[Account]) -> QuerySet[Account]:
    rows = UsageEntry.objects.filter(user_id=OuterRef("user_id"))
    # Two looks, each of which an index answers.
    return accounts.filter(Q(Exists(rows), debt_at=None) | Q(Exists(rows.filter(created_at__gte=OuterRef("debt_at")))))
