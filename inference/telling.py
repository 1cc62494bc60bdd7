"""Telling those who wait where they stand: `queued` events with place and wait on the runs' own streams.

One pass a second. The first in line are told in every pass, those behind them in turns, so that a pass stays short
however many wait; what has not changed is not told again.
"""

import threading
from collections import Counter
from collections.abc import Iterable

from inference import store
from inference.cell import queue
from inference.cell.link import Cell
from inference.models import ModelPool

# Users of a tier whom one call looks at: some ms of Redis's time.
CHUNK = 50
# Users of a tier who are told in every pass, and of those behind them as many in each, in turns.
FIRST = 500
OTHERS = 500


class Teller:
    """Goes round those who wait; one per process."""

    def __init__(self) -> None:
        self._next: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def tell(self) -> int:
        """One pass over every pool; how many events it appended: none while another pass is under way.

        Raises StoreUnavailable.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return self._tell()
        finally:
            self._lock.release()

    def _tell(self) -> int:
        pools = list(ModelPool.objects.values_list("slug", flat=True))
        return store.connector().run(lambda cell: sum(self._tell_pool(cell, pool=pool) for pool in pools))

    def _tell_pool(self, cell: Cell, *, pool: str) -> int:
        state = queue.pool_state(cell, pool=pool, now_ms=store.now_ms())
        return sum(
            self._tell_tier(cell, pool=pool, tier=tier.plan, users=tier.users) for tier in state.tiers if tier.waiting
        )

    def _tell_tier(self, cell: Cell, *, pool: str, tier: str, users: int) -> int:
        told = 0
        for first in (*range(0, min(users, FIRST), CHUNK), *self._in_turn(pool=pool, tier=tier, users=users)):
            call = queue.tell(cell.keys, pool=pool, tier=tier, first=first, users=CHUNK, now_ms=store.now_ms())
            told += int(cell.call(call)[1])
        return told

    def _in_turn(self, *, pool: str, tier: str, users: int) -> Iterable[int]:
        """The ranks at which the chunks of this pass begin, of those behind the first."""
        if users <= FIRST:
            return
        for _ in range(OTHERS // CHUNK):
            first = max(FIRST, self._next[pool, tier])
            if first >= users:
                first = FIRST
            self._next[pool, tier] = first + CHUNK
            yield first


_teller = Teller()


def tell() -> int:
    """One pass of this process's teller. Raises StoreUnavailable."""
    return _teller.tell()
