"""The worker process's engine room: one event loop that owns the engine, the flusher and the heartbeat.

Task threads hand assignments in and wait; nothing in the loop waits for them. What only Django can answer comes in
as plain callables, which are run in threads.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
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
# How long answers may take to end when the worker stops with some under way.
STOP_BOUND_S = 5.0


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
    """Runs on a thread of its own, from `start` to `stop`. All methods are called from other threads.

    `on_death` is called once, on the loop's thread, when the engine turns out to be dead: by then the worker has said
    farewell and holds its runs only until they are settled.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        start_engine: Callable[[], Awaitable[Engine]],
        redis_url: Callable[[], str],
        ports: Ports,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = identity
        self._start_engine = start_engine
        self._redis_url = redis_url
        self._ports = ports
        self._on_death = on_death
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._generations: dict[UUID, Generation] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._held: set[str] = set()
        self._held_lock = threading.Lock()
        self._leaving = False
        self._interrupting = False
        self._dead = False
        self._output_tokens = 0

    def start(self) -> None:
        """Load the engine and begin to beat; returns when the worker can serve. Raises what the engine raises."""
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self._end_loop()
            raise

    def run(self, assignment: Assignment) -> Outcome:
        """Generate one epoch; blocks the calling thread, never the loop."""
        return self._call(self._generate(assignment))

    @contextlib.contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Renew the lease of a run ('run:epoch') meanwhile: from its claim until it is settled."""
        with self._held_lock:
            self._held.add(name)
        try:
            yield
        finally:
            with self._held_lock:
                self._held.discard(name)

    @property
    def takes_runs(self) -> bool:
        """False once the worker leaves or its engine is dead."""
        return not self._leaving

    def leave(self, *, patience_s: float) -> None:
        """Take no more runs: say so at once, and interrupt those that are not finished in `patience_s`.

        May be called from a signal handler.
        """
        self._leaving = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has left already
            self._loop.call_soon_threadsafe(self._leave, patience_s)

    def stop(self) -> None:
        """Leave: interrupt what still runs, say farewell, stop the engine, end the loop."""
        self._leaving = True
        try:
            self._call(self._close())
        finally:
            self._end_loop()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_loop(self) -> None:
        with contextlib.suppress(TimeoutError):
            helpers = asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop)
            helpers.result(timeout=STOP_BOUND_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        self._engine = await self._start_engine()
        self._connector = AsyncConnector(url=self._redis_url)
        self._subscriber = Subscriber(connector=self._connector)
        self._flusher = Flusher(connector=self._connector, verify=self._verify)
        self._news = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(_for_ever(work)) for work in (self._beat, self._poll_cancels, self._obey)]

    async def _generate(self, assignment: Assignment) -> Outcome:
        generation = Generation(assignment=assignment, engine=self._engine, flusher=self._flusher)
        self._generations[assignment.run_id] = generation
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        if self._interrupting:
            generation.interrupt()
        try:
            outcome = await generation.run()
        finally:
            self._serving.discard(task)
            del self._generations[assignment.run_id]
        self._output_tokens += outcome.own_tokens
        self._look_at_engine()
        return outcome

    async def _verify(self, run_id: UUID, epoch: int, incarnation: str) -> bool:
        return await asyncio.to_thread(self._ports.verify_owner, run_id, epoch, incarnation)

    async def _beat(self) -> None:
        """Tell what the engine reports, and renew the leases, a few times a second."""
        while True:
            self._news.clear()
            self._look_at_engine()
            with contextlib.suppress(StoreUnavailable):
                await self._beat_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(workers.HEARTBEAT_MS / 1000):
                    await self._news.wait()

    async def _beat_once(self) -> None:
        cell = await self._connector.cell()
        with self._held_lock:
            held = list(self._held)
        lost = await cell.call(
            workers.heartbeat(
                cell.keys,
                pool=self.identity.pool,
                boot_id=self.identity.boot_id,
                report=None if self._leaving else self._report(),
                held=held,
                now_ms=time.time_ns() // 1_000_000,
            )
        )
        if lost:
            # Their streams refuse this worker as well, which is what ends them here.
            log.warning("leases_lost", runs=lost)

    def _report(self) -> workers.Report:
        stats = self._engine.stats()
        return workers.Report(
            engine=self.identity.engine,
            model=self.identity.model,
            slots=self.identity.slots,
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            output_tokens=self._output_tokens,
        )

    def _look_at_engine(self) -> None:
        """A dead engine serves nobody: leave at once, before more runs come here."""
        if not self._engine.alive and not self._dead:
            self._dead = True
            log.error("engine_dead", pool=self.identity.pool)
            self._leave(0)
            self._on_death()

    def _leave(self, patience_s: float) -> None:
        self._leaving = True
        self._news.set()
        self._loop.call_later(patience_s, self._interrupt_all)

    def _interrupt_all(self) -> None:
        self._interrupting = True
        for generation in self._generations.values():
            generation.interrupt()

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
                generation.cancel()

    async def _obey(self) -> None:
        """Follow the orders sent to this worker."""
        orders: asyncio.Queue[str | None] = asyncio.Queue()
        listener = _Orders(orders)
        while True:
            with contextlib.suppress(StoreUnavailable):
                _, channel = await self._subscriber.subscribe(
                    lambda cell: cell.keys.control_channel(self.identity.boot_id), listener
                )
                try:
                    while (order := await orders.get()) is not None:
                        match order.split():
                            case ["cancel", run_id]:
                                await self._look_at_flags([UUID(run_id)])
                            case _:
                                log.error("order_not_understood", order=order)
                finally:
                    self._subscriber.unsubscribe(channel, listener)
            # Not at once, or a Redis that comes and goes would be asked without a pause.
            await asyncio.sleep(RECONNECT_S)

    async def _close(self) -> None:
        self._interrupt_all()
        if self._serving:
            await asyncio.wait(self._serving, timeout=STOP_BOUND_S)
        tasks = [*self._tasks, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StoreUnavailable):
            cell = await self._connector.cell()
            await cell.call(workers.farewell(cell.keys, pool=self.identity.pool, boot_id=self.identity.boot_id))
        await self._flusher.stop()
        await self._subscriber.close()
        await self._connector.close()
        await self._engine.close()


async def _for_ever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do `work`, which should not end; begin again when something unforeseen ends it."""
    while True:
        try:
            await work()
        except Exception:
            # The database is away, say. A worker that stopped beating or obeying in silence would be worse.
            log.exception("host_task_failed", task=work.__name__)
        await asyncio.sleep(RECONNECT_S)


class _Orders:
    """Puts a channel's messages into a queue; None = the subscription broke."""

    def __init__(self, queue: asyncio.Queue[str | None]) -> None:
        self._queue = queue

    def message(self, payload: str) -> None:
        self._queue.put_nowait(payload)

    def interrupted(self) -> None:
        self._queue.put_nowait(None)
