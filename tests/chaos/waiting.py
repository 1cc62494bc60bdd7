"""Waiting for a condition beside a running event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool], *, what: str, seconds: float = 30.0) -> None:
    """Return once `condition` holds. Raises AssertionError naming `what` when it does not in time."""

    async def ask() -> bool:
        return condition()

    await until_so(ask, what=what, seconds=seconds, pause_s=0.02)


async def until_so(
    condition: Callable[[], Awaitable[bool]], *, what: str, seconds: float, pause_s: float = 0.25
) -> None:
    """The same for a condition that must be asked for."""
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(pause_s)
