"""Interpreter settings of long-lived processes whose latency people feel."""

import contextlib
import ctypes
import gc
import sys

# So many connections leave some megabytes behind.
CROWD = 100
# And so many visits, one after another, half a megabyte in cycles.
VISITS = 1_000


def settle_down() -> None:
    """Call once everything is imported: what exists by then stays, and the garbage collector need not walk it again.

    And a thread that waits for the interpreter lock gets it after 1 ms instead of 5: event loop and request threads
    hand over to each other several times per send. Measured together: 26.9 → 24.1 ms added to the first token
    (docs/benchmarks.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    sys.setswitchinterval(0.001)


def give_back_memory() -> None:
    """Collect garbage, and hand free memory back to the system where the C library can (glibc). Takes 10 to 30 ms.

    With the thresholds above, what a thousand connections leave in cycles would stay for hours.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Crowd:
    """Notices that many connections are gone: most of those that were open together, or a thousand one by one."""

    def __init__(self) -> None:
        self._most = 0
        self._came = 0

    def comes(self) -> None:
        """Another connection is made."""
        self._came += 1

    def has_left(self, present: int) -> bool:
        """Whether so many are gone since this was last so; `present` are open now."""
        self._most = max(self._most, present)
        together = self._most >= CROWD and present * 2 <= self._most
        if not together and self._came - present < VISITS:
            return False
        self._most, self._came = present, present
        return True
