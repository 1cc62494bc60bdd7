"""Following runs: replay from a cursor, then live, without a gap or a repeat.

A follower subscribes first, then replays the stream from its cursor, then takes live entries, dropping what it has
and refilling from the stream wherever the numbering shows a hole. One subscriber connection serves them all.
Source of the rules: the turn protocol's F (docs/streaming.md).
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from inference.cell.errors import StoreUnavailable
from inference.cell.keys import Keys
from inference.cell.link import AsyncConnector, Reply
from inference.cell.stream import START, TERMINAL_SEQ, Cursor, Entry, encode, read_notification
from inference.cell.subscriber import Subscriber

BUFFER_ENTRIES = 256
REPLAY_BATCH = 500
RECONNECT_S = 0.5
# How long the terminal event of a run that the database calls terminal may still be on its way.
CLOSE_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What the database says of a run: its status and epoch, whether it is over, and its message."""

    status: str
    epoch: int
    is_terminal: bool
    message_id: UUID | None


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing happened for a while: the connection should be told that it lives."""


class _Buffer:
    """Live entries of one follower, bounded: what does not fit is read from the stream again."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.overflowed = False
        self.broken = False
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def message(self, payload: str) -> None:
        if len(self.entries) >= BUFFER_ENTRIES:
            self.entries.clear()
            self.overflowed = True
        if not self.overflowed:
            self.entries.append(read_notification(payload))
        self._wake()

    def interrupted(self) -> None:
        self.broken = True
        self._wake()

    async def wait(self, timeout_s: float) -> bool:
        """True when something came, False when `timeout_s` passed. For one task at a time."""
        if not self._has_news:
            self._until = self._loop.time() + timeout_s
            # The timer of an earlier wait comes too soon and is set again then: one per event would cost more than the
            # event.
            if self._timer is None or self._timer.when() > self._until:
                self._set_timer()
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._has_news

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _has_news(self) -> bool:
        return bool(self.entries) or self.overflowed or self.broken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_timer(self) -> None:
        self.close()
        self._timer = self._loop.call_at(self._until, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._until:
            self._set_timer()
        else:
            self._wake()


class _Position:
    """Where a follower stands: the last entry it has, the last content entry, and whether it knows of a hole."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.content = cursor if cursor.epoch >= 1 and cursor.seq != TERMINAL_SEQ else START
        self.hole = False

    def has(self, entry: Entry) -> bool:
        return entry.id <= self.cursor

    def follows_on(self, entry: Entry) -> bool:
        """Whether nothing is missing between the last entry and this one, as far as ids can tell."""
        if entry.is_terminal:
            return self.is_whole_at(entry)
        if entry.id.epoch == 0:
            return True
        if entry.id.epoch == self.cursor.epoch and self.cursor.seq != TERMINAL_SEQ:
            return entry.id.seq == self.cursor.seq + 1
        return entry.type == "started"

    def take(self, entry: Entry) -> None:
        if entry.type == "started":
            data = json.loads(entry.data)
            if data.get("continues"):
                self.hole = self.hole or data["last"] != str(self.content)
            else:
                self.hole = False
        elif not self.follows_on(entry):
            self.hole = True
        self.cursor = entry.id
        if entry.is_content:
            self.content = entry.id

    def is_whole_at(self, terminal: Entry) -> bool:
        return not self.hole and json.loads(terminal.data).get("last") == str(self.content)


class StreamHub:
    """All followers of one process; belongs to one event loop."""

    def __init__(self, *, connector: AsyncConnector) -> None:
        self._connector = connector
        self.subscriber = Subscriber(connector=connector)

    async def follow(
        self,
        *,
        run_id: UUID,
        after: Cursor,
        known: RunState,
        state: Callable[[], Awaitable[RunState | None]],
        quiet_s: float = 15.0,
    ) -> AsyncGenerator[Entry | Quiet, None]:
        """Yield the run's entries after `after` until it ends; `Quiet` whenever `quiet_s` passed without one.

        `known` is what the database said at connect: a terminal event of an older epoch does not end the following.
        `state` asks it again; None means that the run is gone. Where entries were lost for good, the last thing
        yielded is `reset_required`. Survives reconnects of Redis.
        """
        position = _Position(after)
        while True:
            try:
                async with contextlib.aclosing(
                    self._attached(run_id=run_id, position=position, known=known, state=state, quiet_s=quiet_s)
                ) as entries:
                    async for item in entries:
                        yield item
                return
            except StoreUnavailable:
                now = await state()
                if now is None or now.is_terminal:
                    if now is not None:
                        yield _reset(now, position)
                    return
                yield Quiet()
                await asyncio.sleep(RECONNECT_S)

    async def close(self) -> None:
        await self.subscriber.close()
        await self._connector.close()

    async def _attached(
        self,
        *,
        run_id: UUID,
        position: _Position,
        known: RunState,
        state: Callable[[], Awaitable[RunState | None]],
        quiet_s: float,
    ) -> AsyncGenerator[Entry | Quiet, None]:
        """Follow over one subscription. Raises StoreUnavailable when it breaks."""
        buffer = _Buffer()
        cell, channel = await self.subscriber.subscribe(lambda c: c.keys.events_channel(run_id), buffer)
        try:
            replay = True
            # A run known to be active is asked about only once it has been quiet.
            asked = not known.is_terminal
            overdue: RunState | None = None
            while True:
                fresh: list[Entry] = []
                if replay:
                    buffer.overflowed = False
                    fresh = await self._read_after(cell.keys, run_id, position.cursor)
                    replay = len(fresh) == REPLAY_BATCH
                else:
                    while buffer.entries and not fresh:
                        entry = buffer.entries.popleft()
                        if position.has(entry):
                            continue
                        if position.follows_on(entry):
                            fresh = [entry]
                        else:
                            # The hole may be in what we received, not in the stream: ask it, once for each entry.
                            fresh = await self._read_after(cell.keys, run_id, position.cursor) or [entry]
                for entry in fresh:
                    over = entry.is_terminal and entry.id.epoch >= known.epoch
                    if over and not position.is_whole_at(entry):
                        now = await state()
                        if now is not None:
                            yield _reset(now, position)
                        return
                    position.take(entry)
                    yield entry
                    if over:
                        return
                if fresh or replay or buffer.entries:
                    continue
                if overdue is not None:
                    yield _reset(overdue, position)
                    return
                if not asked or not await buffer.wait(quiet_s):
                    # Attached, or quiet for long: does the database call the run over?
                    asked = True
                    now = await state()
                    if now is None:
                        return
                    if now.is_terminal:
                        # Its terminal event may be on its way, or only its notification be lost. Else it is the event.
                        await buffer.wait(CLOSE_GRACE_S)
                        overdue, replay = now, True
                        continue
                    yield Quiet()
                if buffer.broken:
                    raise StoreUnavailable("the subscriber connection broke")
                replay = buffer.overflowed
        finally:
            self.subscriber.unsubscribe(channel, buffer)
            buffer.close()

    async def _read_after(self, keys: Keys, run_id: UUID, cursor: Cursor) -> list[Entry]:
        """What the stream holds after the cursor, in the incarnation that is subscribed to."""
        cell = await self._connector.cell()
        if cell.keys != keys:
            raise StoreUnavailable("Redis restarted: another incarnation answers")
        rows: Reply = await cell.run(
            lambda client: client.xrange(keys.stream(run_id), min=f"({cursor}", max="+", count=REPLAY_BATCH)
        )
        return [Entry(Cursor.parse(entry_id), fields["t"], fields["d"]) for entry_id, fields in rows]


def _reset(state: RunState, position: _Position) -> Entry:
    """Tell a follower to fetch what it missed.

    Its id ends the following where the run is over; a run that goes on (an explicit retry) is to be followed again.
    """
    data = {"status": state.status, "message_id": str(state.message_id) if state.message_id else None}
    end = Cursor(state.epoch, TERMINAL_SEQ) if state.is_terminal else position.cursor
    return Entry(end, "reset_required", encode(data))
