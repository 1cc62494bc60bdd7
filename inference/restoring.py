"""After Redis was lost: the quota accounts of everybody who was charged lately come back, a batch at a time.

A send or a running answer brings back its own account at once; these are the others', whose level would be unknown.
"""

from datetime import datetime
from time import monotonic
from uuid import UUID

import structlog

from billing import api as billing
from inference import admission, store
from inference.cell import admission as cell_admission
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell, Reply

log = structlog.get_logger(__name__)

# Users looked at between two looks at the clock; a rebuild takes some ms.
BATCH = 50
# Of every 5 s: the jobs process has other things to do.
SECONDS = 2.0
_ALL = "all"


def restore(*, now: datetime, seconds: float = SECONDS) -> int:
    """Rebuild what this incarnation of Redis lacks until all is there or the time is up; how many were.

    How far it came stands in Redis, so that a new one begins anew, and any number of processes may share the work.
    Raises StoreUnavailable.
    """
    cell = store.connector().cell()
    until = monotonic() + seconds
    restored = 0
    while (position := _position(cell)) != _ALL and monotonic() < until:
        after = None if position is None else UUID(position)
        users = billing.charged_lately(after=after, limit=BATCH)
        accounts = cell.run(lambda client: cell_admission.states(client, cell.keys, user_ids=users))  # noqa: B023
        absent = [account.user_id for account in accounts if account.generation is None]
        restored += sum(_rebuilt(cell, user_id=user_id, now=now) for user_id in absent)
        _move(cell, str(users[-1]) if len(users) == BATCH else _ALL)
    return restored


def _position(cell: Cell) -> str | None:
    position: Reply = cell.run(lambda client: client.get(cell.keys.restored()))
    return None if position is None else str(position)


def _move(cell: Cell, position: str) -> None:
    cell.run(lambda client: client.set(cell.keys.restored(), position))


def _rebuilt(cell: Cell, *, user_id: UUID, now: datetime) -> bool:
    """One that cannot be helped must not keep the others waiting: its next send tries again."""
    if not admission.elected(cell, user_id=user_id):
        return False
    try:
        admission.rebuild(cell, user_id=user_id, now=now)
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("not_restored", user_id=str(user_id))
        return False
    return True
