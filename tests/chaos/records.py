"""What a chaos run saw: the clients' records, and what database, Redis and engines hold at the end. Plain values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tests.chaos.plan import Ask, Fault
from tests.client import Event

Json = dict[str, Any]


@dataclasses.dataclass(slots=True)
class Seen:
    """An event as it arrived: when (monotonic s), and on which of its reader's connections."""

    at: float
    connection: int
    event: Event


@dataclasses.dataclass(slots=True, kw_only=True)
class View:
    """What one reader saw of a run, over all its connections, in order of arrival.

    `after` is the cursor that it began with, None = the beginning. `refetched` is the message's text that it fetched
    when it was told to, `ended` whether it saw the end. `breaks` are connections that were lost against its will.
    """

    reader: str
    run_id: str
    after: str | None = None
    seen: list[Seen] = dataclasses.field(default_factory=list)
    refetched: str | None = None
    ended: bool = False
    connections: int = 0
    breaks: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    connected: list[tuple[float, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, kw_only=True)
class Played:
    """One turn as it went. `expected` is the script's whole answer, the text that each token adds; None: unknown.

    `problems` are answers of the API that no fault excuses, `leaks` what a stranger got; in words.
    """

    ask: Ask
    chat_id: str
    expected: tuple[str, ...] | None = None
    accepted: list[Json] = dataclasses.field(default_factory=list)
    created: int = 0
    views: list[View] = dataclasses.field(default_factory=list)
    cancelled: bool = False
    retried: int = 0
    repeats: int = 0
    final_run: Json | None = None
    final_messages: list[Json] | None = None
    problems: list[str] = dataclasses.field(default_factory=list)
    leaks: list[str] = dataclasses.field(default_factory=list)
    finished: bool = False

    @property
    def run_id(self) -> str:
        return str(self.accepted[0]["run"]["id"]) if self.accepted else ""

    @property
    def name(self) -> str:
        return f"turn {self.ask.number} (run {self.run_id or 'none'})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    id: str
    chat_id: str
    client_turn_id: str
    run_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """`total_s` is how long it took from the message or its last retry to its end. `kind`: turn, or a job's."""

    id: str
    kind: str = "turn"
    owner_id: str
    chat_id: str
    status: str
    epoch: int
    base_epoch: int
    admission_id: str
    prompt_tokens: int
    output_tokens: int
    error_code: str
    message_id: str | None
    claimed: bool
    total_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    id: str
    chat_id: str
    turn_id: str
    seq: int
    role: str
    content: str
    state: str
    hidden: bool
    run_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """`user_id` is empty where the system is charged."""

    user_id: str
    run_id: str
    epoch: int
    admission_id: str
    reason: str
    prompt_tokens: int
    output_tokens: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    run_id: str
    epoch: int
    worker: str
    outcome: str
    output_tokens: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The site after the last turn: what should be nothing, and what the engines report.

    `used` is what Redis counts as used by each user it knows. `tickets` are messages in the broker's queues.
    """

    reservations: Sequence[str] = ()
    holders: Sequence[str] = ()
    queued: Sequence[str] = ()
    leases: Sequence[str] = ()
    tickets: int = 0
    workers: int = 2
    running: int = 0
    waiting: int = 0
    used: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, kw_only=True)
class Truth:
    """The database's rows and the state at rest."""

    turns: list[TurnRow] = dataclasses.field(default_factory=list)
    runs: list[RunRow] = dataclasses.field(default_factory=list)
    messages: list[MessageRow] = dataclasses.field(default_factory=list)
    usage: list[UsageRow] = dataclasses.field(default_factory=list)
    attempts: list[AttemptRow] = dataclasses.field(default_factory=list)
    rest: Rest = dataclasses.field(default_factory=Rest)


@dataclasses.dataclass(slots=True, kw_only=True)
class Hit:
    """A fault as it was carried out; `pid` is the process that suffered it, `stop_s` how long a SIGTERM took."""

    fault: Fault
    at: float
    pid: int | None = None
    stop_s: float | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Record:
    """All that a run left to be checked."""

    played: list[Played] = dataclasses.field(default_factory=list)
    truth: Truth = dataclasses.field(default_factory=Truth)
    hits: list[Hit] = dataclasses.field(default_factory=list)
    # What went wrong with processes, in words: one that ended by itself, one that was left behind.
    processes: list[str] = dataclasses.field(default_factory=list)
    run_deadline_s: float = 120.0
