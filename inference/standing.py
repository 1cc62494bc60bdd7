"""Where a user stands in the limits that refill: token budget and messages."""

import math
from datetime import UTC, datetime, timedelta
from uuid import UUID

from billing.contracts import Debt, Limits
from inference import accounts, store
from inference.cell import admission
from inference.cell.admission import MESSAGES_WINDOW_MS, Counters
from inference.cell.errors import StoreUnavailable
from inference.contracts import BudgetStanding, QuotaStanding, WindowStanding

# A refill that takes longer is as good as none, and may lie beyond what a date can say.
_FAR = timedelta(days=3650)


def quota_standing(*, user_id: UUID, limits: Limits, now: datetime) -> QuotaStanding | None:
    """Where the user stands; None while Redis is away. Of an account that Redis has lost the database tells."""
    now_ms = int(now.timestamp() * 1000)
    try:
        counted = store.connector().run(
            lambda cell: cell.run(lambda client: admission.counters(client, cell.keys, user_id=user_id, now_ms=now_ms))
        )
    except StoreUnavailable:
        return None
    if counted is None:
        counted = _from_database(user_id=user_id, limits=limits, now=now)
    return QuotaStanding(
        budget=_budget(counted, limits=limits, now=now), messages=_messages(counted, maximum=limits.messages_per_hour)
    )


def _from_database(*, user_id: UUID, limits: Limits, now: datetime) -> Counters:
    account = accounts.recall(user_id=user_id, limits=limits, now=now)
    return Counters(
        debt=account.debt.tokens,
        debt_at_ms=int(account.debt.at.timestamp() * 1000),
        refill_per_hour=None,
        held=account.held,
        messages=len(account.messages),
        oldest_ms=min((int(at.timestamp() * 1000) for at in account.messages.values()), default=None),
    )


def _budget(counted: Counters, *, limits: Limits, now: datetime) -> BudgetStanding | None:
    capacity, refill = limits.budget_tokens, limits.refill_per_hour
    if capacity is None or refill is None:
        return None
    hour = timedelta(hours=1)
    debt = Debt(tokens=counted.debt, at=_moment(counted.debt_at_ms)).later(
        refill_per_hour=max(refill, counted.refill_per_hour or 0), now=now
    )
    return BudgetStanding(
        capacity=capacity,
        remaining=max(0, math.floor(capacity - counted.held - debt.tokens)),
        held=counted.held,
        refill_per_hour=refill,
        full_at=max(now, debt.at) + hour * min((debt.tokens + counted.held) / refill, _FAR / hour),
    )


def _messages(counted: Counters, *, maximum: int | None) -> WindowStanding | None:
    if maximum is None:
        return None
    resets_at = None if counted.oldest_ms is None else _moment(counted.oldest_ms + MESSAGES_WINDOW_MS)
    return WindowStanding(maximum=maximum, used=counted.messages, resets_at=resets_at)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
