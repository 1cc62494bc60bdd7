"""Waiting for a condition in asynchronous tests."""

import asyncio
from collections.abc import Callable

DEADLINE_S = 15.0
# At first only whatever is ready gets its turn, so that short-lived states are seen.
EAGER_ROUNDS = 100


async def until(condition: Callable[[], bool], *, what: str, seconds: float = DEADLINE_S) -> None:
    """Return once `condition` holds. Raises AssertionError naming `what` when it does not in time."""
    end = asyncio.get_running_loop().time() + seconds
    rounds = 0
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(0 if rounds < EAGER_ROUNDS else 0.005)
        rounds += 1
