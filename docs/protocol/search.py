"""The search: every reachable state of a case, breadth first, so that a counterexample is as short as can be.

A state is kept as the numbers of its parts, since a step changes few of them: equal parts are stored and hashed once.
"""

import itertools
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from docs.protocol import environment, follower, invariants, reaper, web, worker
from docs.protocol.case import Case, initial
from docs.protocol.state import State, Step

LIMIT = 12_000_000

Code = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a search came to. `wrong` is empty when nothing is; `trace` leads from the first state to it.

    `ends` counts the states at rest by how their runs ended.
    """

    wrong: str
    trace: Sequence[str] = ()
    states: int
    steps: int
    seconds: float
    ends: Counter[str] = field(default_factory=Counter)


def successors(s: State, case: Case) -> Iterator[Step]:
    for actor in (environment, web, worker, reaper, follower):
        yield from actor.steps(s, case)


class _Seen:
    """The states found so far, in the order of their finding, with the step's parent of each."""

    def __init__(self) -> None:
        self._parts: list[object] = []
        self._numbers: dict[object, int] = {}
        self._index: dict[Code, int] = {}
        self._codes: list[Code] = []
        self._parents = array("i")

    def __len__(self) -> int:
        return len(self._codes)

    def state(self, index: int) -> State:
        parts = self._parts
        return State._make(parts[number] for number in self._codes[index])

    def first(self, s: State) -> None:
        self._add(tuple(map(self._number, s)), parent=-1)

    def find(self, s: State, *, parent: int, before: State) -> tuple[int, bool]:
        """The index of a state that a step from `before`, at index `parent`, led to; and whether it is new."""
        number = self._number
        code = tuple(
            [
                old if part is same else number(part)
                for part, same, old in zip(s, before, self._codes[parent], strict=True)
            ]
        )
        index = self._index.get(code)
        if index is not None:
            return index, False
        return self._add(code, parent=parent), True

    def trace(self, index: int, case: Case) -> list[Step]:
        """The steps that led to a state."""
        path = [index]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        path.reverse()
        states = [self.state(one) for one in path]
        return [
            next(step for step in successors(before, case) if step.state == after)
            for before, after in itertools.pairwise(states)
        ]

    def _number(self, part: object) -> int:
        number = self._numbers.get(part)
        if number is None:
            number = self._numbers[part] = len(self._parts)
            self._parts.append(part)
        return number

    def _add(self, code: Code, *, parent: int) -> int:
        index = self._index[code] = len(self._codes)
        self._codes.append(code)
        self._parents.append(parent)
        return index


def search(case: Case) -> Finding:
    """Explore all of a case, or up to the first thing that is wrong. Raises MemoryError past LIMIT states."""
    began = time.monotonic()
    seen = _Seen()
    seen.first(initial(case))
    resting: list[int] = []
    ends: Counter[str] = Counter()
    # The system's steps, from state to state.
    sources, targets = array("i"), array("i")
    steps = 0

    def finding(wrong: str, trace: Sequence[Step] = ()) -> Finding:
        return Finding(
            wrong=wrong,
            trace=[str(step) for step in trace],
            states=len(seen),
            steps=steps,
            seconds=time.monotonic() - began,
            ends=ends,
        )

    index = 0
    while index < len(seen):
        before = seen.state(index)
        if invariants.at_rest(before):
            resting.append(index)
            ends.update("never accepted" if run is None else run.status for run in before.runs)
        for step in successors(before, case):
            steps += 1
            target, is_new = seen.find(step.state, parent=index, before=before)
            wrong = invariants.broken_step(before, step) or (is_new and invariants.broken(step.state, case, before))
            if wrong:
                return finding(wrong, [*seen.trace(index, case), step])
            if step.nature == "system":
                sources.append(index)
                targets.append(target)
        index += 1
        if index > LIMIT:
            raise MemoryError(f"more than {LIMIT} states")
    for stuck in _restless(len(seen), resting, sources, targets):
        return finding(invariants.not_at_rest(seen.state(stuck)), seen.trace(stuck, case))
    return finding("")


def _restless(count: int, resting: Sequence[int], sources: "array[int]", targets: "array[int]") -> Iterator[int]:
    """States from which the system's own steps never lead to rest; one without such steps first."""
    starts = array("i", bytes(4 * (count + 1)))
    for target in targets:
        starts[target + 1] += 1
    for index in range(count):
        starts[index + 1] += starts[index]
    fill = array("i", starts)
    origins = array("i", bytes(4 * len(sources)))
    for source, target in zip(sources, targets, strict=True):
        origins[fill[target]] = source
        fill[target] += 1
    reaches = bytearray(count)
    todo = list(resting)
    for index in todo:
        reaches[index] = 1
    while todo:
        target = todo.pop()
        for origin in origins[starts[target] : starts[target + 1]]:
            if not reaches[origin]:
                reaches[origin] = 1
                todo.append(origin)
    if all(reaches):
        return
    moving = set(sources)
    restless = [index for index in range(count) if not reaches[index]]
    yield from sorted(restless, key=lambda index: index in moving)
