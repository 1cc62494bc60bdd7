"""Noting how far token budgets are used, so that rebuilding an account reads little of the ledger."""

from collections import defaultdict
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

import structlog

from billing import api as billing
from inference.models import Run

log = structlog.get_logger(__name__)

# A rebuild reads what was charged since the last checkpoint: some hours of one user's answers are little.
EVERY = timedelta(hours=1)
# A settlement is timed when it begins and may be committed some seconds later; nothing is as late as this.
SETTLED = timedelta(minutes=5)
BATCH = 500
# Of every 5 minutes.
SECONDS = 30.0


def checkpoint(*, now: datetime, seconds: float = SECONDS) -> int:
    """Note the debts of those whose last note is old and who were charged since, while there is time; how many were."""
    until = monotonic() + seconds
    noted = 0
    while True:
        due, done = _batch(now=now)
        noted += done
        if due < BATCH or not done or monotonic() >= until:
            return noted


def _batch(*, now: datetime) -> tuple[int, int]:
    """How many were due, and how many of them were noted."""
    due = billing.due_for_checkpoint(older_than=now - EVERY, limit=BATCH)
    live: defaultdict[UUID, list[UUID]] = defaultdict(list)
    active = Run.objects.filter(owner_id__in=due, status__in=Run.ACTIVE)
    for owner_id, admission_id in active.values_list("owner_id", "admission_id"):
        live[owner_id].append(admission_id)
    return len(due), sum(_noted(user_id, live_admissions=live[user_id], now=now) for user_id in due)


def _noted(user_id: UUID, *, live_admissions: list[UUID], now: datetime) -> bool:
    """One that cannot be helped must not keep the others waiting."""
    try:
        limits = billing.limits_for(user_id=user_id, now=now)
        return billing.checkpoint(
            user_id=user_id,
            until=now - SETTLED,
            refill_per_hour=limits.refill_per_hour,
            live_admissions=live_admissions,
        )
    except Exception:
        log.exception("not_noted", user_id=str(user_id))
        return False
