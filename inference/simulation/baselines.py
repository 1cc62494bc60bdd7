"""What ours is compared with: first come first served, strict priority, and affinity without bounds."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from uuid import UUID

from inference.simulation.engines import Engine
from inference.simulation.scheduler import AskAgain, Offered
from inference.simulation.turns import Turn

# Weight of the newest in what a turn is expected to hold a slot for.
_NEWEST = 0.05
_FIRST_GUESS_MS = 6_000.0


class Lines:
    """Waiting turns in lines, one behind the other; a line's number decides, smallest first.

    Each tier takes `depth` waiting turns at most. A wait is foretold as if the turns ahead were served one after the
    other by slots that end evenly.
    """

    def __init__(self, *, depth: int, ranks: Mapping[str, int]) -> None:
        self._depth = depth
        self._ranks = ranks
        self._lines: dict[int, deque[Turn]] = {rank: deque() for rank in sorted(set(ranks.values()))}
        self._waiting = dict.fromkeys(ranks, 0)
        self._engines: Sequence[Engine] = ()
        self._hold_ms = _FIRST_GUESS_MS
        # Slots of each worker that it was woken for and has not looked at yet.
        self._woken: Counter[int] = Counter()

    def join(self, engines: Sequence[Engine], *, now: int) -> None:
        self._engines = engines

    def beat(self, engine: Engine, *, now: int) -> None:
        pass

    def offer(self, turn: Turn, *, now: int) -> Offered:
        if self._waiting[turn.tier] >= self._depth:
            return Offered(taken=False)
        rank = self._ranks[turn.tier]
        ahead = sum(len(line) for other, line in self._lines.items() if other <= rank)
        self._lines[rank].append(turn)
        self._waiting[turn.tier] += 1
        emptiest = max(self._engines, key=self._room)
        if self._room(emptiest) > 0:
            self._woken[emptiest.number] += 1
            return Offered(taken=True, wake=emptiest.number)
        slots = sum(engine.machine.slots for engine in self._engines)
        return Offered(taken=True, wait_ms=int((ahead + 1) * self._hold_ms / slots))

    def _room(self, engine: Engine) -> int:
        return engine.free_slots - self._woken[engine.number]

    def claim(self, engine: Engine, *, woken: bool, now: int) -> Turn | AskAgain | None:
        self._woken[engine.number] = 0
        for line in self._lines.values():
            if line and line[0].prompt + line[0].max_output <= engine.free_kv:
                turn = line.popleft()
                self._waiting[turn.tier] -= 1
                return turn
        return None

    def finish(self, turn: Turn, *, now: int) -> None:
        assert turn.claimed is not None
        self._hold_ms += (now - turn.claimed - self._hold_ms) * _NEWEST

    def expire(self, turn: Turn, *, now: int) -> bool:
        self._lines[self._ranks[turn.tier]].remove(turn)
        self._waiting[turn.tier] -= 1
        return True


class Homebound:
    """First come first served by the worker that has the chat in memory, however long it takes; new chats go to the
    emptiest. The hit rate that affinity can reach.
    """

    def __init__(self) -> None:
        self._homes: dict[UUID, int] = {}
        self._lines: dict[int, deque[Turn]] = {}
        self._engines: Sequence[Engine] = ()

    def join(self, engines: Sequence[Engine], *, now: int) -> None:
        self._engines = engines
        self._lines = {engine.number: deque() for engine in engines}

    def beat(self, engine: Engine, *, now: int) -> None:
        pass

    def offer(self, turn: Turn, *, now: int) -> Offered:
        chat_id = turn.chat.chat_id
        home = self._homes.get(chat_id)
        if home is None or not self._engines[home].holds(chat_id):
            home = min(self._lines, key=lambda number: len(self._lines[number]) - self._engines[number].free_slots)
        self._homes[chat_id] = home
        self._lines[home].append(turn)
        return Offered(taken=True, wake=home)

    def claim(self, engine: Engine, *, woken: bool, now: int) -> Turn | AskAgain | None:
        line = self._lines[engine.number]
        if line and line[0].prompt + line[0].max_output <= engine.free_kv:
            return line.popleft()
        return None

    def finish(self, turn: Turn, *, now: int) -> None:
        pass

    def expire(self, turn: Turn, *, now: int) -> bool:
        self._lines[self._homes[turn.chat.chat_id]].remove(turn)
        return True
