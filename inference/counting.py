"""How often pools refuse turns, and how often their smaller ones take them: counted in Redis, for all processes.

A restarted Redis counts from zero, as Prometheus allows of a counter.
"""

from collections.abc import Sequence

import redis
import structlog

from inference import store
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell, Reply
from inference.contracts import PoolCount

log = structlog.get_logger(__name__)

REFUSED = "refused"
OVERFLOWED = "overflowed"


def note(what: str, *, pool: str, tier: str, reason: str) -> None:
    """Count one more. Never fails: that it is not counted harms no turn."""
    try:
        store.connector().run(lambda cell: _increase(cell, pool=pool, field=f"{what}|{tier}|{reason}"))
    except StoreUnavailable as error:
        log.warning("not_counted", what=what, pool=pool, error=str(error))


def _increase(cell: Cell, *, pool: str, field: str) -> None:
    cell.run(lambda client: client.hincrby(cell.keys.counts(pool), field, 1))


def counts(cell: Cell, *, pools: Sequence[str]) -> list[PoolCount]:
    """What was counted of these pools. Raises StoreUnavailable."""

    def read(client: redis.Redis) -> Reply:
        pipeline = client.pipeline(transaction=False)
        for pool in pools:
            pipeline.hgetall(cell.keys.counts(pool))
        return pipeline.execute()

    found = []
    for pool, fields in zip(pools, cell.run(read), strict=True):
        for field, number in sorted(fields.items()):
            what, tier, reason = field.split("|")
            found.append(PoolCount(what=what, pool=pool, tier=tier, reason=reason, count=int(number)))
    return found
