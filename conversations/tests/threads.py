"""Doing things at the same moment in several threads, as processes would."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from conversations.tests.support import closing_connections

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """The outcome of each call, all of which begin at the same time in threads of their own."""
    start = threading.Barrier(len(calls))

    def outcome(call: Callable[[], T]) -> T | Exception:
        start.wait(timeout=30)
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(closing_connections(outcome), calls, timeout=60))


class Hold:
    """Stops a thread at a point until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._go_on = threading.Event()

    def wait_here(self) -> None:
        self._reached.set()
        assert self._go_on.wait(timeout=30)

    def reached(self) -> None:
        assert self._reached.wait(timeout=30)

    def go_on(self) -> None:
        self._go_on.set()
