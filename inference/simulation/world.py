"""The loop of a simulation: virtual time jumps from one event to the next."""

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from inference.simulation.engines import Engine, Machine
from inference.simulation.scheduler import AskAgain, Scheduler
from inference.simulation.turns import Chat, Record, Turn
from inference.simulation.workload import MAX_OUTPUT, next_question

BEAT_MS = 250  # as often as a worker beats in life (HEARTBEAT_MS)
WAKE_MS = 3  # a ticket's way to a worker, and the worker's to its claim
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The workers, and how long a turn of each tier may wait (ms)."""

    workers: int
    machine: Machine
    bounds: Mapping[str, int]

    @property
    def slots(self) -> int:
        return self.workers * self.machine.slots


class World:
    """One pool over one workload under one scheduler."""

    def __init__(self, *, pool: Pool, scheduler: Scheduler, chats: Iterable[Chat], end: int) -> None:
        self.record = Record()
        self.now = 0
        self._pool = pool
        self._scheduler = scheduler
        self._engines = [Engine(number=number, machine=pool.machine) for number in range(pool.workers)]
        self._end = end
        self._events: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._waiting: dict[UUID, Turn] = {}
        self._free_slots = pool.slots
        # Until when a worker's next question is due already (ms), so that one worker has one such event at a time.
        self._asks: dict[int, int] = {}
        for chat in chats:
            self._at(chat.begins, self._send, chat)

    def run(self, *, progress: Progress = lambda now: None) -> Record:
        """Play until the end; `progress` is called every ten virtual seconds."""
        self._scheduler.join(self._engines, now=0)
        for engine in self._engines:
            self._at(engine.number * BEAT_MS // len(self._engines), self._beat, engine)
        shown = 0
        while self._events and self._events[0][0] < self._end:
            self.now, _, act, arguments = heapq.heappop(self._events)
            if self.now >= shown + 10_000:
                shown = self.now
                progress(shown)
            act(*arguments)
        return self.record

    def _at(self, when: int, act: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, act, arguments))

    def _send(self, chat: Chat) -> None:
        asked = next_question(chat)
        if asked is None:
            return
        prompt, output = asked
        record = self.record
        turn = Turn(
            number=len(record.turns),
            run_id=_name(len(record.turns), sent=self.now),
            chat=chat,
            known=chat.context,
            prompt=prompt,
            output=output,
            max_output=MAX_OUTPUT,
            sent=self.now,
        )
        record.turns.append(turn)
        offered = self._scheduler.offer(turn, now=self.now)
        if not offered.taken:
            turn.refused = True
            self._go_on(chat)
            return
        turn.promised = offered.wait_ms
        self._waiting[turn.run_id] = turn
        self._note()
        self._at(self.now + self._pool.bounds[turn.tier], self._expire, turn)
        if offered.wake is not None:
            self._at(self.now + WAKE_MS, self._claim, self._engines[offered.wake], True)
        else:
            # A ticket that names no worker goes to any.
            self._at(self.now + WAKE_MS, self._claim, self._engines[turn.number % len(self._engines)])

    def _go_on(self, chat: Chat) -> None:
        """The user reads, thinks and sends the next turn. One that was not answered is lost, the chat is not."""
        chat.plan.pop(0)
        if chat.plan:
            self._at(self.now + chat.plan[0][2], self._send, chat)

    def _claim(self, engine: Engine, woken: bool = False) -> None:
        while engine.free_slots:
            found = self._scheduler.claim(engine, woken=woken, now=self.now)
            woken = False
            if isinstance(found, AskAgain):
                self._ask_again(engine, self.now + max(1, found.ms))
                return
            if found is None:
                return
            del self._waiting[found.run_id]
            engine.start(found, now=self.now)
            self._free_slots -= 1
            self._note()
            assert found.finished is not None
            self._at(-int(-found.finished // 1), self._finish, engine, found)

    def _ask_again(self, engine: Engine, when: int) -> None:
        due = self._asks.get(engine.number)
        if due is None or due <= self.now or due > when:
            self._asks[engine.number] = when
            self._at(when, self._claim, engine)

    def _finish(self, engine: Engine, turn: Turn) -> None:
        engine.end(turn, now=self.now)
        self._free_slots += 1
        self._scheduler.finish(turn, now=self.now)
        self._note()
        turn.chat.context = turn.prompt + turn.output
        self._go_on(turn.chat)
        self._claim(engine)

    def _beat(self, engine: Engine) -> None:
        self._scheduler.beat(engine, now=self.now)
        self._at(self.now + BEAT_MS, self._beat, engine)

    def _expire(self, turn: Turn) -> None:
        if turn.run_id in self._waiting and self._scheduler.expire(turn, now=self.now):
            del self._waiting[turn.run_id]
            turn.expired = self.now
            self._note()
            self._go_on(turn.chat)

    def _note(self) -> None:
        self.record.levels.append((self.now, len(self._waiting), self._free_slots))


def _name(number: int, *, sent: int) -> UUID:
    """Of a run: as in life (UUID version 7) names made in the same ms are in the order in which they were made."""
    return UUID(int=(sent << 80) | (7 << 76) | (2 << 62) | number)
