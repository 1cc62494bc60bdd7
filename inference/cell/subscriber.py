"""One subscriber connection per process for all its followers.

redis-py's PubSub object is not safe for subscribing in one task while another reads. Here a session owns a plain
connection: one task reads it, one writes to it, and whoever subscribes waits for the server's acknowledgement.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from inference.cell.errors import StoreUnavailable
from inference.cell.link import AsyncCell, AsyncConnector, is_unavailable

log = structlog.get_logger(__name__)

# An idle connection is asked for a sign of life this often; without any reply for SILENT_S it counts as broken.
PING_S = 5.0
SILENT_S = 15.0


class Listener(Protocol):
    """Who is told about a channel's messages."""

    def message(self, payload: str) -> None:
        """A message came."""
        ...

    def interrupted(self) -> None:
        """The connection broke: messages may have been missed, the channel is not subscribed any more."""
        ...


class Subscriber:
    """Belongs to one event loop. Connects when first needed, and again after a failure when next needed."""

    def __init__(self, *, connector: AsyncConnector, ping_s: float = PING_S, silent_s: float = SILENT_S) -> None:
        self._connector = connector
        self._ping_s = ping_s
        self._silent_s = silent_s
        self._session: _Session | None = None
        self._lock = asyncio.Lock()

    @property
    def channel_count(self) -> int:
        return 0 if self._session is None else len(self._session.listeners)

    async def subscribe(self, channel: Callable[[AsyncCell], str], listener: Listener) -> tuple[AsyncCell, str]:
        """Have `listener` told of a channel's messages; returns once the server confirmed it.

        The channel is named in the incarnation that the connection reaches. Raises StoreUnavailable.
        """
        cell, session = await self._ready()
        name = channel(cell)
        await session.add(name, listener)
        return cell, name

    def unsubscribe(self, name: str, listener: Listener) -> None:
        """Stop telling `listener`. Without a connection there is nothing to stop."""
        if self._session is not None:
            self._session.remove(name, listener)

    async def close(self) -> None:
        session = self._session
        if session is not None:
            await session.close()

    async def _ready(self) -> "tuple[AsyncCell, _Session]":
        async with self._lock:
            cell = await self._connector.cell()
            if self._session is not None and self._session.cell.keys != cell.keys:
                # A connection that still hangs on to a server which others have found replaced.
                self._session.end()
            if self._session is None:
                self._session = _Session(
                    connection=await cell.open_connection(),
                    cell=cell,
                    ping_s=self._ping_s,
                    silent_s=self._silent_s,
                    ended=self._forget,
                )
            return cell, self._session

    def _forget(self, session: "_Session") -> None:
        if self._session is session:
            self._session = None


class _Session:
    """One connection's life, and what is subscribed over it."""

    def __init__(
        self,
        *,
        connection: Any,
        cell: AsyncCell,
        ping_s: float,
        silent_s: float,
        ended: Callable[["_Session"], None],
    ) -> None:
        self.cell = cell
        self.listeners: dict[str, set[Listener]] = {}
        self._connection = connection
        self._ping_s = ping_s
        self._silent_s = silent_s
        self._ended = ended
        self._over = False
        # The last SUBSCRIBE of each channel, and all those not answered yet: the server answers in order.
        self._confirmed: dict[str, asyncio.Future[None]] = {}
        self._awaited: dict[str, deque[asyncio.Future[None]]] = {}
        self._commands: deque[tuple[str, ...]] = deque()
        self._wake = asyncio.Event()
        self._heard_at = asyncio.get_running_loop().time()
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def add(self, name: str, listener: Listener) -> None:
        """Raises StoreUnavailable."""
        if self._over:
            raise StoreUnavailable("the subscriber connection broke")
        if name not in self.listeners:
            self.listeners[name] = set()
            confirmed = asyncio.get_running_loop().create_future()
            self._confirmed[name] = confirmed
            self._awaited.setdefault(name, deque()).append(confirmed)
            self._send("SUBSCRIBE", name)
        self.listeners[name].add(listener)
        try:
            async with asyncio.timeout(self._silent_s):
                await asyncio.shield(self._confirmed[name])
        except TimeoutError as error:
            self.end()
            raise StoreUnavailable("the server does not confirm a subscription") from error
        except BaseException:
            self.remove(name, listener)
            raise

    def remove(self, name: str, listener: Listener) -> None:
        listeners = self.listeners.get(name)
        if listeners is None or listener not in listeners:
            return
        listeners.remove(listener)
        if not listeners:
            del self.listeners[name]
            del self._confirmed[name]
            self._send("UNSUBSCRIBE", name)

    def end(self) -> None:
        """The connection is of no use any more: tell everybody, then close it."""
        self._task.cancel()
        self._break()

    async def close(self) -> None:
        self.end()
        await asyncio.gather(self._task, return_exceptions=True)

    def _send(self, *command: str) -> None:
        # Written by one task, which no follower's cancellation can stop in the middle of a command.
        self._commands.append(command)
        self._wake.set()

    async def _live(self) -> None:
        reader, writer = asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())
        try:
            ended, _ = await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                error = task.exception()
                if error is not None and not is_unavailable(error):
                    log.error("subscriber_failed", exc_info=error)
        finally:
            self._break()
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            await self._connection.disconnect(nowait=True)

    async def _read(self) -> None:
        while not self._over:
            reply = await self._connection.read_response(push_request=True, timeout=math.inf)
            self._heard_at = asyncio.get_running_loop().time()
            self._dispatch(reply)

    async def _write(self) -> None:
        while not self._over:
            self._wake.clear()
            if not self._commands:
                try:
                    async with asyncio.timeout(self._ping_s):
                        await self._wake.wait()
                except TimeoutError:
                    if asyncio.get_running_loop().time() - self._heard_at > self._silent_s:
                        log.warning("subscriber_silent", seconds=self._silent_s)
                        return
                    self._commands.append(("PING",))
            async with asyncio.timeout(self._silent_s):
                while self._commands:
                    await self._connection.send_command(*self._commands.popleft(), check_health=False)

    def _dispatch(self, reply: Any) -> None:
        if not isinstance(reply, list | tuple) or len(reply) != 3:
            return
        kind, name, payload = reply
        match _text(kind):
            case "message":
                for listener in tuple(self.listeners.get(_text(name), ())):
                    listener.message(_text(payload))
            case "subscribe":
                awaited = self._awaited[_text(name)]
                confirmed = awaited.popleft()
                if not awaited:
                    del self._awaited[_text(name)]
                if not confirmed.done():
                    confirmed.set_result(None)

    def _break(self) -> None:
        if self._over:
            return
        self._over = True
        self._ended(self)
        self.cell.drop()
        listeners, self.listeners = self.listeners, {}
        for confirmed in (future for futures in self._awaited.values() for future in futures):
            if not confirmed.done():
                confirmed.set_exception(StoreUnavailable("the subscriber connection broke"))
                confirmed.exception()  # nobody may be waiting for it any more
        for group in listeners.values():
            for listener in group:
                listener.interrupted()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
