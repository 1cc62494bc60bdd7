"""What a simulated pool asks of whoever decides which turn is served next, on which worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.simulation.engines import Engine
from inference.simulation.turns import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The answer to a turn that was sent: whether it is taken in, how long it will wait (ms), and which worker to wake,
    one with room for it; None = any.
    """

    taken: bool
    wait_ms: int = 0
    wake: int | None = None


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Nothing for this worker now; it should ask again after so many ms."""

    ms: int


class Scheduler(Protocol):
    """Decides. Workers are known by their numbers; all times are virtual ms."""

    def join(self, engines: Sequence[Engine], *, now: int) -> None:
        """The workers of the pool, before anything else."""

    def beat(self, engine: Engine, *, now: int) -> None:
        """A worker tells that it lives and what it has room for."""

    def offer(self, turn: Turn, *, now: int) -> Offered:
        """Take a turn in, or refuse it."""

    def claim(self, engine: Engine, *, woken: bool, now: int) -> Turn | AskAgain | None:
        """The turn that this worker, which has a free slot, serves next. `woken`: an offer said so, and this is why."""

    def finish(self, turn: Turn, *, now: int) -> None:
        """A claimed turn is answered."""

    def expire(self, turn: Turn, *, now: int) -> bool:
        """Take a turn out that waited longer than it may; False when a worker has it already."""
