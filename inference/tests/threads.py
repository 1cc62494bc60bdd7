"""Doing things at the same moment in several threads, as processes would."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """What the calls returned or raised, in their order; they begin together."""
    start = threading.Barrier(len(calls))
    results: list[T | Exception] = [AssertionError("it never ended")] * len(calls)

    def run(number: int, call: Callable[[], T]) -> None:
        try:
            start.wait(timeout=10)
            results[number] = call()
        except Exception as error:
            results[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number, call)) for number, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results
