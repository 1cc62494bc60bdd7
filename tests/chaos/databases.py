"""The databases of a chaos run, and what can be done to them while a site uses them."""

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests import services
from tests.chaos import procfs
from tests.chaos.waiting import until
from tests.services import POSTGRES_SETTINGS, Postgres

# A server that is killed may lose what it acknowledged, unless each commit is handed to the kernel first. No fsync: the
# machine does not crash.
DURABLE = tuple(setting for setting in POSTGRES_SETTINGS if setting != "synchronous_commit=off")


class Database(Protocol):
    """One database."""

    @property
    def url(self) -> str | None:
        """What the site gets as DATABASE_URL; None for the embedded one."""
        ...

    def connect(self) -> object:
        """A DB-API connection for reading."""
        ...

    async def kill(self) -> None:
        """SIGKILL to every process of the server."""
        ...

    async def stop(self) -> None:
        """End it in order, cutting its clients' connections."""
        ...

    async def start(self) -> None:
        """Start it again; returns when it answers."""
        ...

    async def freeze(self) -> None:
        """Let it answer nobody any more."""
        ...

    async def thaw(self) -> None:
        """Let it go on."""
        ...


class Sqlite:
    """The embedded database has no server: frozen, somebody else holds its write lock."""

    url: str | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blocker: sqlite3.Connection | None = None

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=30)

    async def kill(self) -> None:
        raise NotImplementedError("no process to kill")

    async def stop(self) -> None:
        raise NotImplementedError("no process to stop")

    async def start(self) -> None:
        raise NotImplementedError("no process to start")

    async def freeze(self) -> None:
        def block() -> sqlite3.Connection:
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
            connection.execute("BEGIN IMMEDIATE")
            return connection

        self._blocker = await asyncio.to_thread(block)

    async def thaw(self) -> None:
        if self._blocker is not None:
            await asyncio.to_thread(self._blocker.close)
            self._blocker = None


class Server:
    """A private Postgres."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    @property
    def url(self) -> str:
        return self._postgres.url

    def connect(self) -> object:
        import psycopg

        return psycopg.connect(self.url)

    def _pids(self) -> list[int]:
        process = self._postgres.process
        return [] if process is None else [process.pid, *procfs.descendants(process.pid)]

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        process = self._postgres.process
        if process is not None:
            process.send_signal(signal.SIGINT)
            await until(lambda: process.poll() is not None, what="Postgres stops", seconds=30)

    async def start(self) -> None:
        # Not in a thread: the server dies with the thread that started it.
        self._postgres.spawn()
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(self._postgres.accepts):
                if self._postgres.process is None or self._postgres.process.poll() is not None:
                    raise AssertionError("Postgres ended while it started")
                await asyncio.sleep(0.05)

    async def freeze(self) -> None:
        procfs.send(self._pids(), signal.SIGSTOP)

    async def thaw(self) -> None:
        procfs.send(self._pids(), signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> None:
        process, pids = self._postgres.process, self._pids()
        procfs.send(pids, number)
        if process is not None:
            await until(lambda: process.poll() is not None, what="Postgres is dead")
        await until(lambda: not any(map(procfs.alive, pids)), what="its backends are dead")


@contextlib.contextmanager
def opened(name: str, *, state_dir: Path) -> Iterator[Database]:
    """The database `name` (sqlite or postgres), running until the end."""
    if name == "sqlite":
        yield Sqlite(state_dir / "db.sqlite3")
        return
    with services.postgres_server(settings=DURABLE) as postgres:
        yield Server(postgres)
