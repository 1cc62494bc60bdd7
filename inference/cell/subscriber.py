"""One subscriber connection per process for all its followers.

redis-py's PubSub object is not safe for subscribing in one task while another reads, so one task reads a plain
connection here; commands are only written to it, and their acknowledgements come back through that task.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from inference.cell.errors import StoreUnavailable
from inference.cell.link import UNAVAILABLE, AsyncCell, AsyncConnector

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
    """Owns the connection; belongs to one event loop."""

    def __init__(self, *, connector: AsyncConnector) -> None:
        self._connector = connector
        self._listeners: dict[str, set[Listener]] = {}
        self._acks: dict[str, asyncio.Future[None]] = {}
        self._connection: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._pending: asyncio.Task[Any] | None = None
        self._lock = asyncio.Lock()

    @property
    def channel_count(self) -> int:
        return len(self._listeners)

    async def subscribe(self, channel: Callable[[AsyncCell], str], listener: Listener) -> tuple[AsyncCell, str]:
        """Have `listener` told of a channel's messages; returns once the server confirmed it.

        The channel is named in the incarnation that the connection reaches. Raises StoreUnavailable.
        """
        cell = await self._ready()
        name = channel(cell)
        listeners = self._listeners.setdefault(name, set())
        first = not listeners
        listeners.add(listener)
        try:
            if first:
                self._acks[name] = asyncio.get_running_loop().create_future()
                await self._connection.send_command("SUBSCRIBE", name)
            ack = self._acks.get(name)
            if ack is not None:
                await asyncio.wait_for(asyncio.shield(ack), timeout=SILENT_S)
        except (*UNAVAILABLE, TimeoutError) as error:
            self._break()
            raise StoreUnavailable(str(error)) from error
        except BaseException:
            await self.unsubscribe(name, listener)
            raise
        return cell, name

    async def unsubscribe(self, name: str, listener: Listener) -> None:
        """Stop telling `listener`. Never fails: without a connection there is nothing to stop."""
        listeners = self._listeners.get(name)
        if listeners is None:
            return
        listeners.discard(listener)
        if not listeners:
            del self._listeners[name]
            self._acks.pop(name, None)
            if self._connection is not None:
                with contextlib.suppress(*UNAVAILABLE):
                    await self._connection.send_command("UNSUBSCRIBE", name)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _ready(self) -> AsyncCell:
        async with self._lock:
            cell = await self._connector.cell()
            if self._connection is None:
                connection = cell.client.connection_pool.make_connection()
                try:
                    await connection.connect()
                except UNAVAILABLE as error:
                    cell.drop()
                    raise StoreUnavailable(str(error)) from error
                # The reader waits for as long as nothing happens; pings bound that.
                connection.socket_timeout = None
                self._connection = connection
                self._reader = asyncio.get_running_loop().create_task(self._read(connection, cell))
            return cell

    async def _read(self, connection: Any, cell: AsyncCell) -> None:
        silent = 0.0
        try:
            while True:
                try:
                    reply = await asyncio.wait_for(asyncio.shield(self._next(connection)), timeout=PING_S)
                except TimeoutError:
                    silent += PING_S
                    if silent >= SILENT_S:
                        return
                    await connection.send_command("PING", check_health=False)
                    continue
                silent = 0.0
                self._dispatch(reply)
        except UNAVAILABLE:
            return
        finally:
            if self._pending is not None:
                self._pending.cancel()
                self._pending = None
            if self._connection is connection:
                cell.drop()
                self._break()

    def _next(self, connection: Any) -> asyncio.Task[Any]:
        # A read that is given up half-way would lose its place in the protocol: it goes on across pings.
        if self._pending is None or self._pending.done():
            self._pending = asyncio.get_running_loop().create_task(connection.read_response(push_request=True))
        return self._pending

    def _dispatch(self, reply: Any) -> None:
        if not isinstance(reply, list | tuple) or not reply:
            return
        match [_text(part) for part in reply]:
            case ["message", name, payload]:
                for listener in tuple(self._listeners.get(name, ())):
                    listener.message(payload)
            case ["subscribe", name, _]:
                ack = self._acks.pop(name, None)
                if ack is not None and not ack.done():
                    ack.set_result(None)

    def _break(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            asyncio.get_running_loop().create_task(connection.disconnect(nowait=True))
        listeners, self._listeners = self._listeners, {}
        acks, self._acks = self._acks, {}
        for ack in acks.values():
            if not ack.done():
                ack.set_exception(StoreUnavailable("the subscriber connection broke"))
                ack.exception()
        for group in listeners.values():
            for listener in group:
                listener.interrupted()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
