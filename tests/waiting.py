"""Waiting for a condition, with a deadline: `wait_for` in a thread, `until` on an event loop."""

import asyncio
import time
from collections.abc import Callable

DEADLINE_S = 30.0
PAUSE_S = 0.005
# On a loop, at first only whatever is ready gets its turn, so that short-lived states are seen.
EAGER_ROUNDS = 100


class _Wait:
    """One wait: seconds since it began, and when it has taken too long."""

    def __init__(self, condition: Callable[[], bool], *, what: str, seconds: float) -> None:
        self._condition = condition
        self._what = what
        self._seconds = seconds
        self._began = time.monotonic()
        self.took = 0.0

    def over(self) -> bool:
        """Whether the condition holds. Raises AssertionError when it does not in time."""
        holds = self._condition()
        self.took = time.monotonic() - self._began
        if not holds and self.took > self._seconds:
            raise AssertionError(f"not within {self._seconds} s: {self._what}")
        return holds


def wait_for(condition: Callable[[], bool], *, what: str, seconds: float = DEADLINE_S) -> float:
    """Return once `condition` holds, with the seconds that took. Raises AssertionError naming `what` if it does not."""
    wait = _Wait(condition, what=what, seconds=seconds)
    while not wait.over():
        time.sleep(PAUSE_S)
    return wait.took


async def until(condition: Callable[[], bool], *, what: str, seconds: float = DEADLINE_S) -> float:
    """As `wait_for`, while the running loop goes on."""
    wait = _Wait(condition, what=what, seconds=seconds)
    rounds = 0
    while not wait.over():
        await asyncio.sleep(0 if rounds < EAGER_ROUNDS else PAUSE_S)
        rounds += 1
    return wait.took
