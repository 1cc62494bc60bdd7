"""Made-up engines with the costs of a GPU: prompts are read one after another, answers grow side by side."""

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from inference.simulation.turns import Turn

BLOCK = 16  # tokens; the engine's cache holds whole blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one worker can do. The default resembles an 8-billion-parameter model on one large GPU."""

    slots: int = 64
    prefill_per_s: float = 20_000.0  # tokens
    token_ms: float = 25.0
    kv_tokens: int = 300_000

    @property
    def prefill_ms(self) -> float:
        """What one uncached prompt token takes."""
        return 1000.0 / self.prefill_per_s


class Engine:
    """One worker's engine: the slots it has, and a prefix cache (least recently used chats go first)."""

    def __init__(self, *, number: int, machine: Machine) -> None:
        self.number = number
        self.machine = machine
        self.running: dict[UUID, Turn] = {}
        # Since when it has had a free slot without a break (ms); None while it has none.
        self.free_since: int | None = 0
        self._held = 0
        self._cache: OrderedDict[UUID, int] = OrderedDict()
        self._cached = 0
        self._prefill_until = 0.0

    @property
    def free_slots(self) -> int:
        return self.machine.slots - len(self.running)

    @property
    def free_kv(self) -> int:
        """Tokens that no running answer may come to need; what is merely cached gives way."""
        return self.machine.kv_tokens - self._held

    def holds(self, chat_id: UUID) -> int:
        """Tokens of this chat in the cache."""
        return self._cache.get(chat_id, 0)

    def start(self, turn: Turn, *, now: int) -> None:
        """Take the turn in and foresee all of it: `cached`, `first_token`, `finished`."""
        if not self.free_slots:
            raise RuntimeError("the worker took more than it has slots for")
        chat = turn.chat
        known = min(self._drop(chat.chat_id), turn.known)
        turn.cached = known // BLOCK * BLOCK
        turn.worker = self.number
        turn.claimed = now
        assert self.free_since is not None
        turn.idle = max(0, now - max(turn.sent, self.free_since))
        self.running[turn.run_id] = turn
        self._held += turn.prompt + turn.max_output
        self._evict()
        turn.prefill_from = max(float(now), self._prefill_until)
        turn.first_token = self._prefill_until = turn.prefill_from + turn.uncached * self.machine.prefill_ms
        turn.finished = turn.first_token + (turn.output - 1) * self.machine.token_ms
        if not self.free_slots:
            self.free_since = None

    def end(self, turn: Turn, *, now: int) -> None:
        """Let the turn go; its chat stays in the cache."""
        del self.running[turn.run_id]
        self._held -= turn.prompt + turn.max_output
        self._drop(turn.chat.chat_id)
        self._cache[turn.chat.chat_id] = turn.prompt + turn.output
        self._cached += turn.prompt + turn.output
        self._evict()
        if self.free_since is None:
            self.free_since = now

    def _drop(self, chat_id: UUID) -> int:
        tokens = self._cache.pop(chat_id, 0)
        self._cached -= tokens
        return tokens

    def _evict(self) -> None:
        while self._cache and self._cached + self._held > self.machine.kv_tokens:
            self._cached -= self._cache.popitem(last=False)[1]
