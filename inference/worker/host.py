"""The worker process's engine room: one event loop that owns the engine, the flusher and the heartbeat.

Task threads hand assignments in and wait; nothing in the loop waits for them. What only Django can answer comes in
as plain callables, which are run in threads.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import structlog

from inference.cell import workers
from inference.cell.errors import StoreUnavailable
from inference.cell.link import AsyncConnector
from inference.cell.subscriber import Subscriber
from inference.worker.engine import Engine
from inference.worker.flusher import Flusher
from inference.worker.generation import Assignment, Generation, Outcome

log = structlog.get_logger(__name__)
T = TypeVar("T")

CANCEL_POLL_S = 1.0
RECONNECT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the host asks of the database. Called in threads."""

    verify_owner: Callable[[UUID, int, str], bool]
    cancel_requests: Callable[[list[UUID]], Mapping[UUID, datetime]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which worker this is: its pool, its unique boot, and how many runs it holds at a time."""

    pool: str
    boot_id: str
    engine: str
    model: str
    slots: int


class Host:
    """Runs on a thread of its own, from `start` to `stop`. `run` and `stop` are called from other threads."""

    def __init__(
        self,
        *,
        identity: Identity,
        start_engine: Callable[[], Awaitable[Engine]],
        redis_url: Callable[[], str],
        ports: Ports,
    ) -> None:
        self.identity = identity
        self._start_engine = start_engine
        self._redis_url = redis_url
        self._ports = ports
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._generations: dict[UUID, Generation] = {}
        self._output_tokens = 0

    def start(self) -> None:
        """Load the engine and begin to beat; returns when the worker can serve. Raises what the engine raises."""
        self._thread.start()
        self._call(self._open())

    def run(self, assignment: Assignment) -> Outcome:
        """Generate one epoch; blocks the calling thread, never the loop. Raises EngineDead."""
        return self._call(self._generate(assignment))

    def stop(self) -> None:
        """Leave in order: say farewell, stop the engine, end the loop."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)

    def _call(self, work: "asyncio._CoroutineLike[T]") -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        self._connector = AsyncConnector(url=self._redis_url)
        self._subscriber = Subscriber(connector=self._connector)
        self._flusher = Flusher(connector=self._connector, verify=self._verify)
        self._engine = await self._start_engine()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._beat()),
            loop.create_task(self._poll_cancels()),
            loop.create_task(self._obey()),
        ]

    async def _generate(self, assignment: Assignment) -> Outcome:
        generation = Generation(assignment=assignment, engine=self._engine, flusher=self._flusher)
        self._generations[assignment.run_id] = generation
        try:
            outcome = await generation.run()
        finally:
            del self._generations[assignment.run_id]
        self._output_tokens += outcome.own_tokens
        return outcome

    async def _verify(self, run_id: UUID, epoch: int, incarnation: str) -> bool:
        return await asyncio.to_thread(self._ports.verify_owner, run_id, epoch, incarnation)

    async def _beat(self) -> None:
        """Tell what the engine reports, and renew the leases, a few times a second."""
        due = time.monotonic()
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self._beat_once()
            due = max(due + workers.HEARTBEAT_MS / 1000, time.monotonic())
            await asyncio.sleep(due - time.monotonic())

    async def _beat_once(self) -> None:
        cell = await self._connector.cell()
        stats = self._engine.stats()
        await cell.call(
            workers.heartbeat(
                cell.keys,
                pool=self.identity.pool,
                boot_id=self.identity.boot_id,
                report=workers.Report(
                    engine=self.identity.engine,
                    model=self.identity.model,
                    slots=self.identity.slots,
                    running=stats.running,
                    waiting=stats.waiting,
                    kv_usage=stats.kv_usage,
                    output_tokens=self._output_tokens,
                ),
                held=[str(generation.assignment) for generation in self._generations.values()],
                now_ms=time.time_ns() // 1_000_000,
            )
        )

    async def _poll_cancels(self) -> None:
        """See the cancel flags even where no order arrived."""
        while True:
            await asyncio.sleep(CANCEL_POLL_S)
            if self._generations:
                await self._look_at_flags(list(self._generations))

    async def _look_at_flags(self, run_ids: list[UUID]) -> None:
        try:
            flagged = await asyncio.to_thread(self._ports.cancel_requests, run_ids)
        except Exception:
            # The database is away: the next look, a second from now, sees the same flags.
            log.exception("cancel_flags_unreadable")
            return
        for run_id in flagged:
            generation = self._generations.get(run_id)
            if generation is not None:
                await generation.cancel()

    async def _obey(self) -> None:
        """Follow the orders sent to this worker."""
        orders: asyncio.Queue[str | None] = asyncio.Queue()
        listener = _Orders(orders)
        while True:
            try:
                await self._subscriber.subscribe(
                    lambda cell: cell.keys.control_channel(self.identity.boot_id), listener
                )
            except StoreUnavailable:
                await asyncio.sleep(RECONNECT_S)
                continue
            while (order := await orders.get()) is not None:
                verb, _, run_id = order.partition(" ")
                if verb == "cancel":
                    await self._look_at_flags([UUID(run_id)])

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(StoreUnavailable):
            cell = await self._connector.cell()
            await cell.call(workers.farewell(cell.keys, pool=self.identity.pool, boot_id=self.identity.boot_id))
        await self._flusher.stop()
        await self._subscriber.close()
        await self._connector.close()
        await self._engine.close()


class _Orders:
    """Puts a channel's messages into a queue; None = the subscription broke."""

    def __init__(self, queue: asyncio.Queue[str | None]) -> None:
        self._queue = queue

    def message(self, payload: str) -> None:
        self._queue.put_nowait(payload)

    def interrupted(self) -> None:
        self._queue.put_nowait(None)
