"""The worker process's engine room: one event loop that owns the engine, the flusher and what runs.

Task threads hand assignments in and wait; nothing in the loop waits for them. What only Django can answer comes in
as plain callables, which are run in threads. The heartbeat (`heart`) beats beside the loop and watches it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog

from inference.cell import stream, workers
from inference.cell.errors import StoreUnavailable
from inference.cell.link import AsyncConnector
from inference.cell.subscriber import Subscriber
from inference.worker.audience import LOOK_S
from inference.worker.engine import Engine
from inference.worker.flusher import Flusher
from inference.worker.generation import Assignment, Generation, Outcome
from inference.worker.heart import Heart, Pulse
from inference.worker.watch import Watch

log = structlog.get_logger(__name__)
T = TypeVar("T")

CANCEL_POLL_S = 1.0
RECONNECT_S = 0.5
# How long answers may take to end when the worker stops with some under way.
STOP_BOUND_S = 5.0
# An engine whose KV cache is used to this part has no room for another prompt.
FULL = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the host asks of the database. Called in threads."""

    verify_owner: Callable[[UUID, int, str], bool]
    cancel_requests: Callable[[list[UUID]], Mapping[UUID, datetime]]
    # The names ('run:epoch') of leases that other workers let lapse.
    take_over_lapsed: Callable[[Sequence[str]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which worker this is: its pool, its unique boot, and how many runs it holds at a time.

    `stall_s` is how long its engine may have work and finish no step before it counts as hung.
    """

    pool: str
    boot_id: str
    engine: str
    model: str
    slots: int
    stall_s: float = 20.0


class Host:
    """Runs on a thread of its own, from `start` to `stop`. All methods are called from other threads.

    `on_death` is called once, on the loop's thread, when the engine turns out to be dead or hung: by then the worker is
    not counted as alive any more and gives up its runs. `on_hung` is called when the loop itself stands still, so that
    nothing can be given up: the process must end.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        start_engine: Callable[[], Awaitable[Engine]],
        redis_url: Callable[[], str],
        ports: Ports,
        on_death: Callable[[], None] = lambda: None,
        on_hung: Callable[[], None] = lambda: None,
    ) -> None:
        self.identity = identity
        self._start_engine = start_engine
        self._redis_url = redis_url
        self._ports = ports
        self._on_death = on_death
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        # By 'run:epoch': a run may come back to this process while it still ends an older epoch of it.
        self._generations: dict[str, Generation] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._held: set[str] = set()
        # 'run:epoch' → tokens of its prompt: what the engine has been given, told in its counters or not yet.
        self._needs: dict[str, int] = {}
        self._held_lock = threading.Lock()
        self._leaving = False
        self._giving_up = ""
        self._output_tokens = 0
        self._computed_tokens = 0
        self._stall = Watch(bound_s=identity.stall_s)
        self._pulse = Pulse(turns=0, report=None)
        self._heart = Heart(
            pool=identity.pool,
            boot_id=identity.boot_id,
            redis_url=redis_url,
            pulse=lambda: self._pulse,
            held=self._names_held,
            on_lapsed=self._take_over_lapsed,
            on_hung=on_hung,
        )
        # Of its own, so that a take-over that waits for the database holds up neither the heart nor the loop's helpers.
        self._recovery = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recovery")
        self._recovering: Future[object] | None = None

    def start(self) -> None:
        """Load the engine and begin to beat; returns when the worker can serve. Raises what the engine raises."""
        self._thread.start()
        try:
            self._call(self._open())
        except BaseException:
            self._end_loop()
            raise
        self._heart.start()

    def run(self, assignment: Assignment) -> Outcome:
        """Generate one epoch; blocks the calling thread, never the loop."""
        self._needs[str(assignment)] = len(assignment.prompt_ids) + len(assignment.carry_ids)
        try:
            return self._call(self._generate(assignment))
        finally:
            del self._needs[str(assignment)]

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
    def room_tokens(self) -> int:
        """For how many more tokens the engine has memory, as it told last, less what it was given since.

        Threads that ask at once may each count on the same memory: the engine then has one of them wait.
        """
        report, needs = self._pulse.report, list(self._needs.values())
        # What an engine that does nothing has no room for, it never will: that is its own to refuse.
        if report is None or report.kv_tokens == 0 or not needs:
            return workers.NO_BOUND
        given = sum(needs)
        return max(0, report.kv_tokens - max(round(report.kv_usage * report.kv_tokens), given))

    @property
    def computed_tokens(self) -> int:
        """Prompt and output tokens of the runs that have ended here, without the cached ones."""
        return self._computed_tokens

    @property
    def takes_runs(self) -> bool:
        """False once the worker leaves or its engine is dead."""
        return not self._leaving

    def leave(self) -> None:
        """Take no more runs; give up those under way for others to go on with. May be called from a signal handler."""
        self._leaving = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has left already
            self._loop.call_soon_threadsafe(self._give_up, "drained")

    def stop(self) -> None:
        """Leave, say farewell, stop the engine, end the loop."""
        self._leaving = True
        try:
            self._call(self._end_generations())
            self._heart.stop()
            self._call(self._close())
        finally:
            self._recovery.shutdown()
            self._end_loop()

    def _names_held(self) -> list[str]:
        with self._held_lock:
            return list(self._held)

    def _take_over_lapsed(self, names: Sequence[str]) -> None:
        """In the heart's thread. The names come again at the next beat, so one take-over at a time is enough."""
        if self._leaving or (self._recovering is not None and not self._recovering.done()):
            return
        self._recovering = self._recovery.submit(self._ports.take_over_lapsed, names)

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
        loop = asyncio.get_running_loop()
        works = (self._turn, self._poll_cancels, self._look_for_followers, self._obey)
        self._tasks = [loop.create_task(_for_ever(work)) for work in works]

    async def _generate(self, assignment: Assignment) -> Outcome:
        generation = Generation(assignment=assignment, engine=self._engine, flusher=self._flusher)
        self._generations[str(assignment)] = generation
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        if self._giving_up:
            generation.give_up(self._giving_up)
        try:
            outcome = await generation.run()
        finally:
            self._serving.discard(task)
            del self._generations[str(assignment)]
        self._output_tokens += outcome.own_tokens
        prompt = len(assignment.prompt_ids) + len(assignment.carry_ids)
        self._computed_tokens += max(0, prompt - outcome.cached_tokens) + outcome.own_tokens
        self._look_at_engine()
        return outcome

    async def _verify(self, run_id: UUID, epoch: int, incarnation: str) -> bool:
        return await asyncio.to_thread(self._ports.verify_owner, run_id, epoch, incarnation)

    async def _turn(self) -> None:
        """Show the heart that the loop turns, and watch the engine, a few times a second."""
        while True:
            self._look_at_engine()
            self._show()
            await asyncio.sleep(workers.HEARTBEAT_MS / 1000)

    def _show(self) -> None:
        self._pulse = Pulse(turns=self._pulse.turns + 1, report=None if self._leaving else self._report())

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
            room=0 if stats.kv_usage >= FULL else max(0, self.identity.slots - len(self._names_held())),
            kv_tokens=stats.kv_tokens,
            computed_tokens=self._computed_tokens,
        )

    def _look_at_engine(self) -> None:
        """A dead or hung engine serves nobody: leave at once, before more runs come here."""
        if self._giving_up:
            return
        if not self._engine.alive:
            self._abandon("engine_dead")
        elif not any(generation.is_generating for generation in self._generations.values()):
            self._stall.reset()
        elif self._stall.stands_still(at=self._engine.stats().steps, now=self._loop.time()):
            self._abandon("engine_hung")

    def _abandon(self, event: str) -> None:
        log.error(event, pool=self.identity.pool)
        try:
            self._give_up("worker_lost")
        finally:
            # Whatever went wrong: with this engine the process must not stay.
            self._on_death()

    def _give_up(self, reason: str) -> None:
        self._leaving = True
        self._giving_up = self._giving_up or reason
        self._show()
        self._heart.beat_soon()
        for generation in self._generations.values():
            generation.give_up(reason)

    async def _poll_cancels(self) -> None:
        """See the cancel flags even where no order arrived."""
        while True:
            await asyncio.sleep(CANCEL_POLL_S)
            if self._generations:
                run_ids = {generation.assignment.run_id for generation in self._generations.values()}
                await self._look_at_flags(list(run_ids))

    async def _look_at_flags(self, run_ids: list[UUID]) -> None:
        try:
            flagged = await asyncio.to_thread(self._ports.cancel_requests, run_ids)
        except Exception:
            # The database is away: the next look, a second from now, sees the same flags.
            log.exception("cancel_flags_unreadable")
            return
        for generation in self._generations.values():
            if generation.assignment.run_id in flagged:
                generation.cancel()

    async def _look_for_followers(self) -> None:
        """Tell answers that end early without followers how many they have. Asks nothing while there are none such."""
        while True:
            await asyncio.sleep(LOOK_S)
            asked = [generation for generation in self._generations.values() if generation.minds_followers]
            if not asked:
                continue
            counts: Sequence[int | None] = [None] * len(asked)
            # Redis is away: so are those who follow through it.
            with contextlib.suppress(StoreUnavailable):
                cell = await self._connector.cell()
                counts = await stream.followers(cell, run_ids=[one.assignment.run_id for one in asked])
            for generation, count in zip(asked, counts, strict=True):
                generation.note_followers(count)

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

    async def _end_generations(self) -> None:
        self._give_up("drained")
        if self._serving:
            await asyncio.wait(self._serving, timeout=STOP_BOUND_S)

    async def _close(self) -> None:
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
