"""The engine room of a worker process: it beats, holds leases, obeys, and leaves in order, whatever fails."""

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from inference import store
from inference.cell import queue, workers
from inference.cell.errors import StoreUnavailable
from inference.cell.workers import Report
from inference.testing import tiny_tokenizer
from inference.tests.engines import Puppet
from inference.tests.support import ask, look, restart
from inference.tokenization import ChatTurn
from inference.worker import generation as generation_module
from inference.worker import host as host_module
from inference.worker.engine import Engine, Sampling
from inference.worker.generation import Assignment, Outcome, Result
from inference.worker.host import Host, Identity, Ports
from inference.worker.scripted_answers import Script
from inference.worker.scripted_engine import ScriptedEngine
from tests.services import Valkey, wait_for

TOKENIZER = tiny_tokenizer()
NEVER = 3600.0


class Database:
    """The database, as the host asks it."""

    def __init__(self) -> None:
        self.flags: dict[UUID, datetime] = {}
        self.away = 0

    def verify_owner(self, run_id: UUID, epoch: int, incarnation: str) -> bool:
        return True

    def cancel_requests(self, run_ids: list[UUID]) -> Mapping[UUID, datetime]:
        if self.away:
            self.away -= 1
            raise RuntimeError("the database is away")
        return {run_id: at for run_id, at in self.flags.items() if run_id in run_ids}


class Floor:
    """A host with an engine, seen from the threads of a worker process."""

    def __init__(self, valkey: Valkey, make_engine: Callable[[], Engine]) -> None:
        self.valkey = valkey
        self.database = Database()
        self.deaths: list[str] = []
        self.threads = ThreadPoolExecutor(max_workers=16)
        self._make_engine = make_engine
        self.host = Host(
            identity=Identity(pool="p", boot_id=f"boot-{uuid4()}", engine="scripted", model="m", slots=8),
            start_engine=self._start_engine,
            redis_url=lambda: valkey.url,
            ports=Ports(verify_owner=self.database.verify_owner, cancel_requests=self.database.cancel_requests),
            on_death=lambda: self.deaths.append("dead"),
        )
        self.host.start()

    async def _start_engine(self) -> Engine:
        self.engine: Any = self._make_engine()
        return self.engine

    def in_loop(self, work: Callable[[], object]) -> None:
        self.host._loop.call_soon_threadsafe(work)

    def begin(self, question: str = "Hello", *, run_id: UUID | None = None) -> "tuple[Assignment, Future[Outcome]]":
        assignment = Assignment(
            run_id=run_id or uuid4(),
            epoch=1,
            base_epoch=1,
            incarnation=store.connector().cell().keys.incarnation,
            prompt_ids=TOKENIZER.encode_chat([ChatTurn("user", question)]),
            carry_ids=(),
            carry_text="",
            max_output_tokens=1000,
            sampling=Sampling(),
            cache_salt="ada",
            started={"epoch": 1},
        )
        return assignment, self.threads.submit(self.host.run, assignment)

    def begin_long(self) -> "tuple[Assignment, Future[Outcome]]":
        """An answer that does not end by itself, and that the engine has taken in."""
        before = self.engine.stats().running
        assignment, future = self.begin("[[prefill_ms=3600000]]")
        wait_for(lambda: self.engine.stats().running > before, what="the engine has it")
        return assignment, future

    @property
    def alive(self) -> list[Report]:
        try:
            cell = store.connector().cell()
            return cell.run(lambda client: workers.alive(client, cell.keys, pool="p", now_ms=store.now_ms()))
        except StoreUnavailable:
            return []

    def lease(self, name: str) -> float:
        """When the lease of 'run:epoch' expires, in ms; 0 without one."""
        cell = store.connector().cell()
        return float(look(cell, lambda client: client.zscore(cell.keys.leases("p"), name)) or 0)

    def order_cancel(self, run_id: UUID) -> None:
        cell = store.connector().cell()
        cell.run(
            lambda client: workers.order_cancel(client, cell.keys, boot_id=self.host.identity.boot_id, run_id=run_id)
        )

    def listens(self) -> bool:
        channels: list[str] = ask(self.valkey, lambda client: client.pubsub_channels())
        return any(self.host.identity.boot_id in channel for channel in channels)

    def close(self) -> None:
        if self.host._thread.is_alive():
            self.host.stop()
        self.threads.shutdown()


def scripted() -> Engine:
    return ScriptedEngine(tokenizer=TOKENIZER, script=Script(tps=10_000, prefill_ms=0, tokens=50))


@pytest.fixture
def open_floor(valkey: Valkey) -> Iterator[Callable[[], Floor]]:
    """For tests that change a setting of the host before it starts."""
    opened: list[Floor] = []

    def open_one(make_engine: Callable[[], Engine] = scripted) -> Floor:
        opened.append(Floor(valkey, make_engine))
        return opened[-1]

    yield open_one
    for floor in opened:
        floor.close()


@pytest.fixture
def floor(open_floor: Callable[[], Floor]) -> Floor:
    return open_floor()


@pytest.fixture
def puppet_floor(open_floor: Callable[..., Floor]) -> Floor:
    return open_floor(Puppet)


def test_a_started_worker_is_alive_and_tells_what_its_engine_tells(floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    assert (floor.alive[0].slots, floor.alive[0].running) == (8, 0)
    _, future = floor.begin_long()
    wait_for(lambda: floor.alive[0].running == 1, what="it reports what runs")
    floor.host.leave(patience_s=0)
    future.result(timeout=20)


def test_many_threads_are_served_at_once_and_their_tokens_counted(floor: Floor) -> None:
    futures = [floor.begin(f"Question {i}")[1] for i in range(8)]
    outcomes = [future.result(timeout=20) for future in futures]
    assert [(outcome.result, outcome.own_tokens) for outcome in outcomes] == [(Result.DONE, 50)] * 8
    wait_for(lambda: floor.alive[0].output_tokens == 400, what="all tokens are counted")


def test_an_order_to_cancel_is_obeyed_without_waiting_for_the_next_look(
    open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CANCEL_POLL_S", NEVER)
    floor = open_floor()
    wait_for(floor.listens, what="it listens")
    assignment, future = floor.begin_long()
    _, other = floor.begin_long()
    floor.database.flags[assignment.run_id] = datetime.now(UTC)
    floor.order_cancel(assignment.run_id)
    assert future.result(timeout=20).result is Result.CANCELLED
    assert not other.done()


def test_an_order_without_a_flag_in_the_database_cancels_nothing(
    open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CANCEL_POLL_S", NEVER)
    floor = open_floor()
    wait_for(floor.listens, what="it listens")
    first, unflagged = floor.begin_long()
    second, flagged = floor.begin_long()
    floor.database.flags[second.run_id] = datetime.now(UTC)
    floor.order_cancel(first.run_id)
    floor.order_cancel(second.run_id)
    assert flagged.result(timeout=20).result is Result.CANCELLED
    assert not unflagged.done()


def test_a_flag_is_seen_without_an_order_and_after_the_database_was_away(
    open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CANCEL_POLL_S", 0.02)
    floor = open_floor()
    floor.database.away = 3
    assignment, future = floor.begin_long()
    floor.database.flags[assignment.run_id] = datetime.now(UTC)
    assert future.result(timeout=20).result is Result.CANCELLED
    assert floor.database.away == 0


def test_orders_are_obeyed_again_after_a_restart_of_redis(
    valkey: Valkey, open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "CANCEL_POLL_S", NEVER)
    monkeypatch.setattr(host_module, "RECONNECT_S", 0.02)
    floor = open_floor()
    wait_for(floor.listens, what="it listens")
    assignment, future = floor.begin_long()
    restart(valkey)
    wait_for(floor.listens, what="it listens again")
    floor.database.flags[assignment.run_id] = datetime.now(UTC)
    store.connector().close()
    floor.order_cancel(assignment.run_id)
    assert future.result(timeout=20).result is Result.CANCELLED


def test_a_subscription_that_breaks_at_once_is_not_asked_for_without_a_pause(
    open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "RECONNECT_S", 0.05)
    floor = open_floor()
    wait_for(floor.listens, what="it listens")
    subscriber: Any = floor.host._subscriber
    times: list[float] = []

    async def flapping(channel: Any, listener: Any) -> tuple[Any, str]:
        times.append(time.monotonic())
        listener.interrupted()
        return None, "name"

    monkeypatch.setattr(subscriber, "subscribe", flapping)
    floor.in_loop(subscriber._session.end)
    wait_for(lambda: len(times) >= 5, what="it asked five times")
    assert times[4] - times[0] >= 4 * 0.05 * 0.9


def test_a_held_lease_is_renewed_until_it_is_let_go(floor: Floor) -> None:
    with floor.host.holding("run:1"):
        wait_for(lambda: floor.lease("run:1") > 0, what="the lease is there")
        first = floor.lease("run:1")
        wait_for(lambda: floor.lease("run:1") > first, what="it is renewed")
    beats = floor.lease("run:1")
    with floor.host.holding("other:1"):
        wait_for(lambda: floor.lease("other:1") > beats, what="a heartbeat later")
        latest = floor.lease("run:1")
        wait_for(lambda: floor.lease("other:1") > latest + 2 * workers.HEARTBEAT_MS, what="two more")
    assert floor.lease("run:1") == latest


def test_a_lease_outlives_a_restart_of_redis(valkey: Valkey, floor: Floor) -> None:
    with floor.host.holding("run:1"):
        wait_for(lambda: floor.lease("run:1") > 0, what="the lease is there")
        restart(valkey)
        store.connector().close()
        wait_for(lambda: floor.lease("run:1") > 0, what="the lease is there again")
        assert len(floor.alive) == 1


def test_what_another_worker_leased_is_left_to_it(floor: Floor) -> None:
    cell = store.connector().cell()
    run_id = uuid4()
    cell.call(
        queue.enqueue(
            cell.keys,
            user_id=uuid4(),
            pool="p",
            run_id=run_id,
            epoch=1,
            base_epoch=1,
            admission_id=uuid4(),
            now_ms=0,
        )
    )
    claimed_at = store.now_ms()
    cell.call(queue.claim(cell.keys, pool="p", boot_id="another", now_ms=claimed_at))
    with floor.host.holding(f"{run_id}:1"), floor.host.holding("mine:1"):
        wait_for(lambda: floor.lease("mine:1") > 0, what="a heartbeat")
    assert floor.lease(f"{run_id}:1") == claimed_at + workers.LEASE_MS


def test_the_beating_goes_on_after_an_unforeseen_error(
    valkey: Valkey, open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "RECONNECT_S", 0.02)
    floor = open_floor()
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    raised: list[str] = []
    stats = floor.engine.stats

    def broken() -> Any:
        raised.append("once")
        floor.engine.stats = stats
        raise RuntimeError("nobody thought of this")

    floor.engine.stats = broken
    wait_for(lambda: bool(raised), what="the error came")
    ask(valkey, lambda client: client.flushall())
    wait_for(lambda: len(floor.alive) == 1, what="it beats on")


def test_an_idle_worker_notices_that_its_engine_died_and_leaves(floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    floor.in_loop(floor.engine.die)
    wait_for(lambda: bool(floor.deaths), what="the death was told")
    wait_for(lambda: floor.alive == [], what="it is alive no more")
    beats_later = store.now_ms() + 2 * workers.HEARTBEAT_MS
    wait_for(lambda: store.now_ms() > beats_later, what="two heartbeats pass")
    assert floor.alive == []
    assert floor.deaths == ["dead"]


def test_answers_under_way_are_interrupted_when_the_engine_dies(floor: Floor) -> None:
    futures = [floor.begin_long()[1] for _ in range(3)]
    floor.in_loop(floor.engine.die)
    outcomes = [future.result(timeout=20) for future in futures]
    assert {(outcome.result, outcome.error_code) for outcome in outcomes} == {(Result.INTERRUPTED, "engine_dead")}
    wait_for(lambda: floor.deaths == ["dead"], what="the death was told once")
    assert floor.begin()[1].result(timeout=20).result is Result.INTERRUPTED


def test_a_leaving_worker_is_not_alive_but_finishes_and_keeps_its_leases(floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    _, future = floor.begin("[[tokens=50 prefill_ms=700]]")
    wait_for(lambda: floor.engine.stats().running == 1, what="the engine has it")
    with floor.host.holding("run:1"):
        floor.host.leave(patience_s=NEVER)
        wait_for(lambda: floor.alive == [], what="it is alive no more")
        first = floor.lease("run:1")
        wait_for(lambda: floor.lease("run:1") > first, what="its lease is renewed")
        assert future.result(timeout=20).result is Result.DONE


def test_what_is_not_finished_in_time_is_interrupted(floor: Floor) -> None:
    _, future = floor.begin_long()
    floor.host.leave(patience_s=0.05)
    assert future.result(timeout=20).result is Result.INTERRUPTED
    # One that was claimed just before does not slip through.
    assert floor.begin()[1].result(timeout=20).result is Result.INTERRUPTED


def test_stopping_interrupts_what_runs_and_ends_everything(valkey: Valkey, floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    futures = [floor.begin_long()[1] for _ in range(3)]
    floor.host.stop()
    assert {future.result(timeout=20).result for future in futures} == {Result.INTERRUPTED}
    assert floor.alive == []
    assert not floor.host._thread.is_alive()
    assert not floor.engine.alive
    assert floor.deaths == []


def test_stopping_does_not_wait_for_an_engine_that_hangs(puppet_floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "STOP_BOUND_S", 0.1)
    monkeypatch.setattr(generation_module, "RELEASE_BOUND_S", 0.3)
    puppet_floor.engine.answers_aborts = False
    _, future = puppet_floor.begin()
    wait_for(lambda: bool(puppet_floor.engine.requests), what="the engine has it")
    puppet_floor.host.stop()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(timeout=20)
    assert puppet_floor.engine.closed


def test_stopping_without_redis_works(valkey: Valkey, floor: Floor) -> None:
    valkey.kill()
    floor.host.stop()
    assert not floor.host._thread.is_alive()


def test_an_engine_that_does_not_start_says_why_and_leaves_no_thread(valkey: Valkey) -> None:
    async def fail() -> Engine:
        raise FileNotFoundError("no such model")

    before = threading.active_count()
    host = Host(
        identity=Identity(pool="p", boot_id="boot", engine="scripted", model="m", slots=8),
        start_engine=fail,
        redis_url=lambda: valkey.url,
        ports=Ports(verify_owner=lambda *_: True, cancel_requests=lambda _: {}),
    )
    with pytest.raises(FileNotFoundError):
        host.start()
    assert threading.active_count() == before
