"""A turn in a simulation: what it asks for, and what became of it. Times are virtual ms, lengths tokens."""

from dataclasses import dataclass, field
from uuid import UUID

FREE, PLUS, PRO = "free", "plus", "pro"
PAID = (PLUS, PRO)


@dataclass(slots=True, eq=False)
class Chat:
    """A conversation: the turns its user still means to send, and what was said in it so far."""

    chat_id: UUID
    user_id: UUID
    tier: str
    # Of each turn to come: tokens of the question, tokens of the answer, ms from the last answer until it is sent.
    plan: list[tuple[int, int, int]]
    begins: int
    context: int = 0


@dataclass(slots=True, eq=False)
class Turn:
    """One turn. `prompt` is all the engine reads, the chat so far included."""

    number: int
    run_id: UUID
    chat: Chat
    known: int  # of the prompt, what was read or said in the chat before
    prompt: int
    output: int
    max_output: int
    sent: int
    # Filled in as it goes.
    refused: bool = False
    expired: int | None = None
    promised: int = 0  # ms that the queue foretold as it took the turn in
    claimed: int | None = None
    worker: int | None = None
    idle: int = 0  # ms for which the worker that took it had a place and did not take it
    cached: int = 0
    charged: int | None = None  # cost taken at the claim, before the answer's length was known
    prefill_from: float = 0.0
    first_token: float = 0.0
    finished: float | None = None

    @property
    def user_id(self) -> UUID:
        return self.chat.user_id

    @property
    def tier(self) -> str:
        return self.chat.tier

    @property
    def uncached(self) -> int:
        return self.prompt - self.cached


@dataclass(slots=True)
class Record:
    """All that happened in one simulation."""

    turns: list[Turn] = field(default_factory=list)
    # (now, runs waiting, free slots) whenever one of the latter changed
    levels: list[tuple[int, int, int]] = field(default_factory=list)
    script_us: float = 0.0  # that the server took for all scripts
