"""Who was served how much, and who waited, second by second: measured at the engines, never asked of the scheduler."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from inference.simulation.turns import Turn

BIN_MS = 1_000
Interval = tuple[int, int]
K = TypeVar("K", bound=Hashable)


class Service(Generic[K]):
    """Cost of the tokens that engines made, by whatever `key` tells of a turn, cumulative over seconds.

    A prompt is made evenly while it is read, an answer evenly while it grows; cached tokens cost nothing.
    """

    def __init__(
        self,
        turns: Iterable[Turn],
        *,
        key: Callable[[Turn], K],
        seconds: int,
        prompt_weight: int,
        output_weight: int,
    ) -> None:
        bins: dict[K, list[float]] = {}
        for turn in turns:
            if turn.finished is None:
                continue
            made = bins.setdefault(key(turn), [0.0] * seconds)
            _spread(made, prompt_weight * turn.uncached, turn.prefill_from, turn.first_token)
            _spread(made, output_weight * turn.output, turn.first_token, turn.finished)
        self.until: dict[K, list[float]] = {}
        for whose in sorted(bins, key=str):
            self.until[whose] = [0.0, *accumulate(bins[whose])]
        self._none = [0.0] * (seconds + 1)

    def between(self, key: K, begin_s: int, end_s: int) -> float:
        """Cost of what was made for `key` in [begin, end) seconds."""
        until = self.until.get(key, self._none)
        return until[end_s] - until[begin_s]

    def share(self, key: K, begin_s: int, end_s: int) -> float:
        """Of all that was made, `key`'s part (0–1)."""
        everything = sum(self.between(one, begin_s, end_s) for one in self.until)
        return self.between(key, begin_s, end_s) / everything if everything else 0.0


def backlogs(turns: Iterable[Turn], *, key: Callable[[Turn], K], end_ms: int) -> dict[K, list[Interval]]:
    """When (ms) something of `key`'s was waiting without a break, for all keys."""
    waits: dict[K, list[Interval]] = defaultdict(list)
    for turn in turns:
        if not turn.refused:
            waits[key(turn)].append((turn.sent, left_queue(turn, end_ms=end_ms)))
    return {one: joined(its) for one, its in waits.items()}


def left_queue(turn: Turn, *, end_ms: int) -> int:
    """When a turn that was taken in ceased to wait (ms)."""
    if turn.claimed is not None:
        return turn.claimed
    return end_ms if turn.expired is None else turn.expired


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """The union of intervals, in order."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def covers(intervals: Iterable[Interval], begin_ms: int, end_ms: int) -> bool:
    """Whether one of them holds all of [begin, end]."""
    return any(begin <= begin_ms and end_ms <= end for begin, end in intervals)


def _spread(bins: list[float], amount: float, begin: float, end: float) -> None:
    """Add an amount made evenly from `begin` to `end` (ms); what lies after the last bin is left out."""
    if end <= begin:
        place = int(begin // BIN_MS)
        if place < len(bins):
            bins[place] += amount
        return
    per_ms = amount / (end - begin)
    place = int(begin // BIN_MS)
    while begin < end and place < len(bins):
        edge = min(end, (place + 1) * BIN_MS)
        bins[place] += per_ms * (edge - begin)
        begin = edge
        place += 1
