"""Whether one Redis has answered for long enough that a lapsed lease means a lost worker."""

import time
from collections.abc import Callable

import redis

from inference.cell import workers
from inference.cell.link import Cell

LEASE_S = workers.LEASE_MS / 1000
BEAT_S = workers.HEARTBEAT_MS / 1000
# The longest time between two answers that still says that workers could renew their leases in between. A worker may
# then be late by its own beat and by that much, and a lease lasts longer than both.
GAP_S = LEASE_S / 2
# How far the wall clock, by which leases lapse, may run ahead of the monotonic one or behind it between two answers.
JUMP_S = 0.25
# A watch that is not clear by then is given up.
WATCH_BOUND_S = 2 * LEASE_S


class Sight:
    """Since when its owner has had one incarnation of Redis in sight, without a gap.

    A lapsed lease counts only after one lease's time of that: before, a living worker may have had no Redis to renew
    it in. A jump of the wall clock (it was set, or the machine slept) is a gap too: all leases lapse by it at once.
    """

    def __init__(self) -> None:
        self._incarnation: str | None = None
        self._since = 0.0
        self._last = 0.0
        self._wall = 0.0

    def is_clear(self, *, incarnation: str, now: float, wall: float) -> bool:
        """Note that an answer of the incarnation has come; whether it has been in sight for long enough.

        `now` and `wall` are the monotonic and the wall clock's seconds of the answer, not of the question.
        """
        passed = now - self._last
        jumped = abs(wall - self._wall - passed) > JUMP_S
        if incarnation != self._incarnation or passed > GAP_S or jumped:
            self._since = now
        self._incarnation, self._last, self._wall = incarnation, now, wall
        return now - self._since > LEASE_S

    def lose(self) -> None:
        """Redis does not answer."""
        self._incarnation = None


def watch(
    cell: Cell, *, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
) -> bool:
    """Ask Redis at every beat until it has been in sight for a lease's time. False when that does not come about.

    Blocks for a lease's time, or for WATCH_BOUND_S at most. Raises StoreUnavailable.
    """
    sight, began = Sight(), clock()
    while True:
        cell.run(_ping)
        now = clock()
        # What lapsed by the wall clock is compared by its owner: no jump of it matters here.
        if sight.is_clear(incarnation=cell.keys.incarnation, now=now, wall=now):
            return True
        if now - began > WATCH_BOUND_S:
            return False
        pause(BEAT_S)


def _ping(client: redis.Redis) -> object:
    return client.ping()
