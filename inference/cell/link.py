"""Connections to Redis, each bound to one incarnation of the server.

A `Cell` is a client whose every connection was seen to reach the same server run (`run_id`). When a connection
fails or reaches another run, the cell is dropped and the operation starts again at its database read; a command is
never sent a second time behind the caller's back.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from inference.cell.errors import IncarnationChanged, StoreUnavailable
from inference.cell.keys import Keys
from inference.cell.scripts import LIBRARY

Argument = str | bytes | int | float
T = TypeVar("T")
Reply = Any  # whatever the script returns: integers, strings and lists of them

FAILURES = (redis.RedisError, OSError)
# Codes of replies by which a server says that it cannot serve now: it lacks disk, memory or replicas, is a
# replica itself, still loads its data or runs somebody's endless script.
_REFUSALS = frozenset(
    {
        "MISCONF",
        "OOM",
        "NOREPLICAS",
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "LOADING",
        "BUSY",
    }
)
# The client keeps the code in the text of an error only where it has no class of its own for it.
_UNAVAILABLE = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
    OSError,
)
# What a server says that does not know the function of a script, and one that has its library already.
_FORGOTTEN, _KNOWN = "Function not found", "already exists"


def is_unavailable(error: BaseException) -> bool:
    """Whether an error says that Redis cannot serve now. Any other reply of error is a fault of ours."""
    return isinstance(error, _UNAVAILABLE) or (
        isinstance(error, redis.ResponseError)
        and (str(error).partition(" ")[0] in _REFUSALS or str(error) == _FORGOTTEN)
    )


def _run_id(info: Any) -> str:
    text = info.decode() if isinstance(info, bytes) else str(info)
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "run_id":
            return value.strip()
    raise redis.ConnectionError("the server does not tell its run_id")


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """A script with its keys and arguments, ready to be run."""

    script: str
    keys: Sequence[str]
    args: Sequence[Argument]

    @property
    def command(self) -> list[Argument]:
        """As the server is sent it."""
        return ["FCALL", LIBRARY.functions[self.script], len(self.keys), *self.keys, *self.args]


class _AnotherIncarnation(redis.ConnectionError):
    """A new connection reached another run of the server than those before it."""


class _Binding:
    """The incarnation that all connections of one cell must show."""

    def __init__(self) -> None:
        self.run_id: str | None = None

    def check(self, run_id: str) -> None:
        if self.run_id is None:
            self.run_id = run_id
        elif self.run_id != run_id:
            raise _AnotherIncarnation("Redis restarted: another incarnation answers")


def _handshake() -> list[tuple[str, ...]]:
    return [("INFO", "server"), ("FUNCTION", "LOAD", LIBRARY.text)]


def _check_loaded(error: redis.ResponseError) -> None:
    """A server that cannot write now may be read from all the same; who needs a function that it lacks is told then."""
    if _KNOWN not in str(error) and not is_unavailable(error):
        raise error


class Cell:
    """A thread-safe client of one incarnation. All methods raise StoreUnavailable."""

    def __init__(self, *, client: redis.Redis, keys: Keys, drop: Callable[["Cell"], None]) -> None:
        self.client = client
        self.keys = keys
        self._drop = drop

    def call(self, call: ScriptCall) -> Reply:
        """Run one script."""
        function = LIBRARY.functions[call.script]
        return self.run(lambda client: client.fcall(function, len(call.keys), *call.keys, *call.args))

    def run(self, operation: Callable[[redis.Redis], T]) -> T:
        """Run one client operation. Raises IncarnationChanged where it never left this process."""
        try:
            return operation(self.client)
        except _AnotherIncarnation as error:
            self._drop(self)
            raise IncarnationChanged(str(error)) from error
        except FAILURES as error:
            if not is_unavailable(error):
                raise
            self._drop(self)
            raise StoreUnavailable(str(error)) from error

    def close(self) -> None:
        # A connection that another thread is using is closed when that thread lets go of it: nothing else holds it.
        self.client.connection_pool.disconnect(inuse_connections=False)


class Connector:
    """Makes the process's current `Cell`, and a new one after a failure. Thread-safe."""

    def __init__(self, *, url: Callable[[], str], tag: str = "c0", timeout_s: float = 2.0) -> None:
        self._url = url
        self._tag = tag
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._cell: Cell | None = None
        self._failures = 0

    def cell(self) -> Cell:
        """The current cell. Raises StoreUnavailable when Redis cannot be reached."""
        cell, failures = self._cell, self._failures
        if cell is not None:
            return cell
        with self._lock:
            if self._cell is None:
                if self._failures != failures:
                    # It failed while this thread waited: trying one after another would take each `timeout_s` longer.
                    raise StoreUnavailable("Redis cannot be reached")
                try:
                    self._cell = self._connect()
                except StoreUnavailable:
                    self._failures += 1
                    raise
            return self._cell

    def run(self, operation: Callable[[Cell], T]) -> T:
        """Run an operation that holds in any incarnation, in the one that is there now.

        A process that was idle while Redis restarted learns of it only when it next connects: the operation then
        begins anew, rather than fail although Redis is back. Raises StoreUnavailable.
        """
        try:
            return operation(self.cell())
        except IncarnationChanged:
            return operation(self.cell())

    def close(self) -> None:
        with self._lock:
            cell, self._cell = self._cell, None
        if cell is not None:
            cell.close()

    def _drop(self, cell: Cell) -> None:
        with self._lock:
            if self._cell is cell:
                self._cell = None
        cell.close()

    def _connect(self) -> Cell:
        binding = _Binding()

        def on_connect(connection: Any) -> None:
            connection.on_connect()
            connection.send_packed_command(connection.pack_commands(_handshake()))
            info = connection.read_response()
            try:
                connection.read_response()
            except redis.ResponseError as error:
                _check_loaded(error)
            binding.check(_run_id(info))

        try:
            pool = redis.ConnectionPool.from_url(
                self._url(),
                decode_responses=True,
                socket_timeout=self._timeout_s,
                socket_connect_timeout=self._timeout_s,
                retry=Retry(NoBackoff(), 0),
                redis_connect_func=on_connect,
                max_connections=1024,
            )
            client = redis.Redis(connection_pool=pool)
            try:
                client.ping()
            except BaseException:
                pool.disconnect()
                raise
        except FAILURES as error:
            if not is_unavailable(error):
                raise
            raise StoreUnavailable(str(error) or "Redis does not answer in time") from error
        if binding.run_id is None:
            raise StoreUnavailable("the server does not tell its run_id")
        return Cell(client=client, keys=Keys(binding.run_id, self._tag), drop=self._drop)


class AsyncCell:
    """A client of one incarnation for one event loop. All methods raise StoreUnavailable."""

    def __init__(
        self, *, client: redis.asyncio.Redis, keys: Keys, drop: Callable[["AsyncCell"], None], timeout_s: float
    ) -> None:
        self.client = client
        self.keys = keys
        self._drop = drop
        self._timeout_s = timeout_s
        self._dropped = False
        self._operations = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def call(self, call: ScriptCall) -> Reply:
        """Run one script. Raises redis' ResponseError for a fault in it."""
        reply = (await self.call_many([call]))[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def call_many(self, calls: Sequence[ScriptCall]) -> list[Reply]:
        """Run several scripts in one round trip; each is atomic, the whole is not.

        A script's fault takes the place of its reply, so that it spoils nobody else's.
        """
        pipeline = self.client.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*call.command)
        replies: list[Reply] = await self.run(lambda _: pipeline.execute(raise_on_error=False))
        for reply in replies:
            if isinstance(reply, Exception) and is_unavailable(reply):
                self.drop()
                raise StoreUnavailable(str(reply)) from reply
        return replies

    async def run(self, operation: Callable[[redis.asyncio.Redis], Awaitable[T]]) -> T:
        """Run one client operation."""
        if self._dropped:
            raise StoreUnavailable("this connection to Redis was given up")
        self._operations += 1
        self._idle.clear()
        try:
            # Not the client's own timeout: it uses asyncio.wait_for, which before Python 3.12 may swallow a
            # cancellation, and a follower that left would stay.
            async with asyncio.timeout(self._timeout_s):
                return await operation(self.client)
        except FAILURES as error:
            if not is_unavailable(error):
                raise
            self.drop()
            raise StoreUnavailable(str(error) or "Redis does not answer in time") from error
        finally:
            self._operations -= 1
            if not self._operations:
                self._idle.set()

    def drop(self) -> None:
        """Give this cell up after a failure; the connector makes a new one."""
        if not self._dropped:
            self._dropped = True
            self._drop(self)

    async def open_connection(self) -> Any:
        """A connection of the caller's own, checked to reach this incarnation; the caller disconnects it."""
        pool: Any = self.client.connection_pool
        connection = pool.make_connection()
        try:
            await self.run(lambda _: connection.connect())
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def close(self) -> None:
        """Close its connections once nobody uses them: to lose one in the middle of a reply confuses the client."""
        await self._idle.wait()
        await self.client.connection_pool.disconnect()


class AsyncConnector:
    """Makes one event loop's current `AsyncCell`, and a new one after a failure."""

    def __init__(self, *, url: Callable[[], str], tag: str = "c0", timeout_s: float = 2.0) -> None:
        self._url = url
        self._tag = tag
        self._timeout_s = timeout_s
        self._cell: AsyncCell | None = None
        self._lock = asyncio.Lock()
        self._failures = 0
        self._closing: set[asyncio.Task[None]] = set()

    async def cell(self) -> AsyncCell:
        """The current cell. Raises StoreUnavailable when Redis cannot be reached."""
        if self._cell is not None:
            return self._cell
        failures = self._failures
        async with self._lock:
            if self._cell is None:
                if self._failures != failures:
                    # As in Connector: those who waited for the same attempt share its failure.
                    raise StoreUnavailable("Redis cannot be reached")
                try:
                    self._cell = await self._connect()
                except StoreUnavailable:
                    self._failures += 1
                    raise
            return self._cell

    async def close(self) -> None:
        if self._cell is not None:
            self._cell.drop()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _drop(self, cell: AsyncCell) -> None:
        if self._cell is cell:
            self._cell = None
        task = asyncio.get_running_loop().create_task(cell.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _connect(self) -> AsyncCell:
        binding = _Binding()

        async def on_connect(connection: Any) -> None:
            await connection.on_connect()
            await connection.send_packed_command(connection.pack_commands(_handshake()))
            info = await connection.read_response()
            try:
                await connection.read_response()
            except redis.ResponseError as error:
                _check_loaded(error)
            binding.check(_run_id(info))

        try:
            pool = redis.asyncio.ConnectionPool.from_url(
                self._url(),
                decode_responses=True,
                socket_timeout=None,
                socket_connect_timeout=self._timeout_s,
                retry=AsyncRetry(NoBackoff(), 0),
                redis_connect_func=on_connect,
                max_connections=1024,
            )
            client = redis.asyncio.Redis(connection_pool=pool)
            try:
                async with asyncio.timeout(self._timeout_s):
                    await client.ping()
            except BaseException:
                await pool.disconnect()
                raise
        except FAILURES as error:
            if not is_unavailable(error):
                raise
            raise StoreUnavailable(str(error) or "Redis does not answer in time") from error
        if binding.run_id is None:
            raise StoreUnavailable("the server does not tell its run_id")
        keys = Keys(binding.run_id, self._tag)
        return AsyncCell(client=client, keys=keys, drop=self._drop, timeout_s=self._timeout_s)
