"""What the database, Redis and every process know at one moment: the states that the search explores.

Tokens are integers, epoch * 10 + position in the answer, so that a doubled, missing or stale one shows in any text. An
admission id is base epoch * 100 + a running number.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")
Text = tuple[int, ...]
# (epoch, number) of a stream's entry.
Id = tuple[int, int]

TERMINAL = ("done", "cancelled", "failed", "interrupted")
TERMINAL_NUMBER = 99
# States of a hold.
UNCONFIRMED, CONFIRMED, SHARED = 0, 1, 2
# What a terminal event names when the stream does not hold the answer, or when who closed it did not know the answer.
INCOMPLETE, UNKNOWN = -1, -2


class Run(NamedTuple):
    """A run's row, with its message's text. `claimed` has a bit for each epoch that had an owner."""

    status: str
    epoch: int
    cancel: bool
    carry: Text
    admission: int
    text: Text | None
    claimed: int
    incarnation: int


class Row(NamedTuple):
    """A row of the usage ledger: `tokens` of one epoch."""

    turn: int
    epoch: int
    admission: int
    tokens: int
    reason: str


class Hold(NamedTuple):
    """A reservation in Redis."""

    turn: int
    base: int
    admission: int
    state: int


class Account(NamedTuple):
    """A quota account in Redis."""

    generation: int
    used: int
    holds: tuple[Hold, ...]


class Load(NamedTuple):
    """What a rebuild read in the database, on its way to Redis."""

    generation: int
    used: int
    holds: tuple[Hold, ...]
    incarnation: int


class Entry(NamedTuple):
    """An entry of a stream. A `started` has `continues`; it and the terminal name the `last` content entry."""

    epoch: int
    number: int
    kind: Literal["started", "delta", "terminal"]
    text: Text = ()
    continues: bool = False
    last: Id = (0, 0)


class Stream(NamedTuple):
    """A run's stream and its state."""

    epoch: int
    mode: Literal["wait", "open", "sealed", "closed"]
    entries: tuple[Entry, ...]


class Late(NamedTuple):
    """A command of a broken connection, which may still arrive."""

    command: Literal["open", "append", "close"]
    turn: int
    epoch: int
    base: int
    number: int
    text: Text


class Snapshot(NamedTuple):
    """What Redis has on disk, and goes back to where losing its last second is no new incarnation."""

    queue: tuple[Id, ...]
    tickets: int
    account: Account | None
    streams: tuple[Stream | None, ...]


class Web(NamedTuple):
    """A request under way. `at` is its next step."""

    kind: Literal["post", "cancel", "retry"]
    at: str
    turn: int
    epoch: int = 0
    old: int = 0
    at_least: int = 0
    admission: int = 0
    generation: int = 0
    load: Load | None = None
    text: Text = ()


class Worker(NamedTuple):
    """A slot of a worker. `made` tokens are its own, `flushed` of them sent; `order` is why it stops early."""

    at: str = "idle"
    turn: int = 0
    epoch: int = 0
    base: int = 0
    carry: Text = ()
    made: int = 0
    flushed: int = 0
    number: int = 0
    order: str = ""
    incarnation: int = 0
    admission: int = 0
    text: Text | None = None

    @property
    def whole(self) -> Text:
        """The answer so far."""
        return self.carry + self.own(0, self.made)

    def own(self, start: int, end: int) -> Text:
        """Its own tokens from `start` to `end`."""
        begin = self.epoch * 10 + len(self.carry) + 1
        return tuple(range(begin + start, begin + end))


class Reaper(NamedTuple):
    """A reaper in the middle of one act."""

    at: str = "idle"
    turn: int = 0
    epoch: int = 0
    admission: int = 0
    incarnation: int = 0
    text: Text | None = None
    settles: bool = False
    load: Load | None = None


class Follower(NamedTuple):
    """A reader of turn 0: the last entry it has, what it shows, the database's epoch at connect, a known gap."""

    at: Id = (0, 0)
    text: Text = ()
    known: int = 0
    gap: bool = False
    ended: bool = False


class State(NamedTuple):
    """Everything. Processes and late commands are bags: sorted tuples."""

    runs: tuple[Run | None, ...]
    ledger: tuple[Row, ...]
    generation: int
    account: Account | None
    queue: tuple[Id, ...]
    streams: tuple[Stream | None, ...]
    tickets: int
    incarnation: int
    snapshot: Snapshot | None
    web: tuple[Web, ...]
    workers: tuple[Worker, ...]
    reapers: tuple[Reaper, ...]
    late: tuple[Late, ...]
    # Posts, cancels and retries that each turn's client may still send.
    clients: tuple[tuple[int, int, int], ...]
    faults: int
    follower: Follower | None
    next_admission: int
    # Epochs as a Redis would count them, for the case in which it does.
    counted: tuple[int, ...]
    # What a step found wrong.
    wrong: str


class Step(NamedTuple):
    """One atomic step. With faults and clients stopped, "system" steps alone must bring everything to rest."""

    nature: Literal["system", "client", "fault"]
    state: State
    actor: str
    label: str
    values: tuple[object, ...] = ()

    def __str__(self) -> str:
        fault = "FAULT " if self.nature == "fault" else ""
        return f"{fault}{self.actor}: {self.label % self.values}"


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


_ranks: dict[object, int] = {}


def _rank(item: object) -> int:
    return _ranks.setdefault(item, len(_ranks))


def bag(items: Sequence[T]) -> tuple[T, ...]:
    """The items in an order that depends on nothing but themselves."""
    return tuple(sorted(items, key=_rank)) if len(items) > 1 else tuple(items)


def without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    index = items.index(item)
    return items[:index] + items[index + 1 :]


def replace(items: tuple[T, ...], old: T, new: T) -> tuple[T, ...]:
    return bag((*without(items, old), new)) if len(items) > 1 else (new,)


def base_of(admission: int) -> int:
    """The first epoch that an admission pays for."""
    return admission // 100


def is_active(run: Run) -> bool:
    return run.status not in TERMINAL


def charged(s: State, turn: int, admission: int) -> int:
    return sum(row.tokens for row in s.ledger if row.turn == turn and row.admission == admission)
