"""The engine room of a worker process: it beats, holds leases, obeys, and leaves in order, whatever fails."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from inference.tests.yard import waiting
from inference.tokenization import ChatTurn
from inference.worker import generation as generation_module
from inference.worker import heart
from inference.worker import host as host_module
from inference.worker.engine import Engine, Sampling
from inference.worker.generation import Assignment, Generation, Outcome, Result
from inference.worker.host import Host, Identity, Ports
from inference.worker.scripted_answers import Script
from inference.worker.scripted_engine import ScriptedEngine
from tests.services import Valkey
from tests.waiting import wait_for

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

    def __init__(self, valkey: Valkey, make_engine: Callable[[], Engine], stall_s: float) -> None:
        self.valkey = valkey
        self.database = Database()
        self.deaths: list[str] = []
        self.hangs: list[str] = []
        self.lapsed: list[Sequence[str]] = []
        self.threads = ThreadPoolExecutor(max_workers=16)
        self._make_engine = make_engine
        self.host = Host(
            identity=Identity(
                pool="p", boot_id=f"boot-{uuid4()}", engine="scripted", model="m", slots=8, stall_s=stall_s
            ),
            start_engine=self._start_engine,
            redis_url=lambda: valkey.url,
            ports=Ports(
                verify_owner=self.database.verify_owner,
                cancel_requests=self.database.cancel_requests,
                take_over_lapsed=self.lapsed.append,
            ),
            on_death=lambda: self.deaths.append("dead"),
            on_hung=lambda: self.hangs.append("hung"),
        )
        self.host.start()

    async def _start_engine(self) -> Engine:
        self.engine: Any = self._make_engine()
        return self.engine

    def in_loop(self, work: Callable[[], object]) -> None:
        self.host._loop.call_soon_threadsafe(work)

    def begin(
        self, question: str = "Hello", *, run_id: UUID | None = None, epoch: int = 1
    ) -> "tuple[Assignment, Future[Outcome]]":
        assignment = Assignment(
            run_id=run_id or uuid4(),
            epoch=epoch,
            base_epoch=1,
            incarnation=store.connector().cell().keys.incarnation,
            prompt_ids=TOKENIZER.encode_chat([ChatTurn("user", question)]),
            carry_ids=(),
            carry_text="",
            max_output_tokens=1000,
            sampling=Sampling(),
            cache_salt="ada",
            started={"epoch": 1},
            time_left_s=NEVER,
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

    def open_one(make_engine: Callable[[], Engine] = scripted, *, stall_s: float = NEVER) -> Floor:
        opened.append(Floor(valkey, make_engine, stall_s))
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
    floor.host.leave()
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


def test_a_run_that_comes_back_while_an_older_epoch_of_it_ends_is_looked_after_all_the_same(
    open_floor: Callable[[], Floor],
) -> None:
    floor = open_floor()
    old, ending = floor.begin_long()
    _, fresh = floor.begin("[[prefill_ms=3600000]]", run_id=old.run_id, epoch=2)
    wait_for(lambda: floor.engine.stats().running == 2, what="the engine has both")
    floor.in_loop(floor.host._generations[str(old)].cancel)
    assert ending.result(timeout=20).result is Result.CANCELLED
    floor.database.flags[old.run_id] = datetime.now(UTC)
    assert fresh.result(timeout=20).result is Result.CANCELLED


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
    cell.call(queue.enqueue(cell.keys, pool="p", policy=None, waiting=waiting(run_id), now_ms=0))
    claimed_at = store.now_ms()
    cell.call(queue.claim(cell.keys, pool="p", boot_id="another", room_tokens=workers.NO_BOUND, now_ms=claimed_at))
    with floor.host.holding(f"{run_id}:1"), floor.host.holding("mine:1"):
        wait_for(lambda: floor.lease("mine:1") > 0, what="a heartbeat")
    assert floor.lease(f"{run_id}:1") == claimed_at + workers.LEASE_MS


def test_leases_that_others_let_lapse_are_taken_over_once_redis_was_in_sight_for_a_leases_time(floor: Floor) -> None:
    cell = store.connector().cell()
    claimed_at = store.now_ms() - workers.LEASE_MS - 1
    cell.run(lambda client: client.zadd(cell.keys.leases("p"), {"lost:1": claimed_at}))
    cell.run(lambda client: client.hset(cell.keys.lease_owners("p"), "lost:1", "somebody gone"))
    began = store.now_ms()
    wait_for(lambda: bool(floor.lapsed), what="it is told")
    assert floor.lapsed[0] == ["lost:1"]
    assert store.now_ms() - began > workers.LEASE_MS / 2, "not at the first sight"


def test_a_wall_clock_that_jumps_makes_no_lease_look_lapsed(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = store.connector().cell()
    ahead_s = 3600

    def lease(name: str, *, ends_ms: float) -> None:
        cell.run(lambda client: client.hset(cell.keys.lease_owners("p"), name, "another"))
        cell.run(lambda client: client.zadd(cell.keys.leases("p"), {name: ends_ms}))

    with floor.host.holding("mine:1"):
        lease("lost:1", ends_ms=store.now_ms() - 1)
        wait_for(lambda: bool(floor.lapsed), what="it has Redis in sight")
        cell.run(lambda client: client.zrem(cell.keys.leases("p"), "lost:1"))
        lease("living:1", ends_ms=store.now_ms() + 60_000)
        # Not so far that the beat would forget old leases altogether.
        monkeypatch.setattr(workers, "FORGET_MS", 2 * ahead_s * 1000)
        monkeypatch.setattr(heart, "time", _Ahead(ahead_s))
        wait_for(lambda: floor.lease("mine:1") > store.now_ms() + ahead_s * 500, what="it beats by the new time")
        lease("living:1", ends_ms=store.now_ms() + 2 * ahead_s * 1000)
        lease("late:1", ends_ms=store.now_ms())
        wait_for(lambda: ["late:1"] in floor.lapsed, what="it has Redis in sight again")
    assert not any("living:1" in names for names in floor.lapsed)


class _Ahead:
    """The module `time`, with a wall clock that was set."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def time(self) -> float:
        return time.time() + self._seconds

    def time_ns(self) -> int:
        return time.time_ns() + self._seconds * 1_000_000_000


def test_a_worker_that_leaves_takes_nothing_over(floor: Floor) -> None:
    floor.host.leave()
    cell = store.connector().cell()
    cell.run(lambda client: client.zadd(cell.keys.leases("p"), {"lost:1": 1}))
    with floor.host.holding("mine:1"):
        wait_for(lambda: floor.lease("mine:1") > store.now_ms() + workers.LEASE_MS / 2, what="it beats")
        seen = floor.lease("mine:1") + 2 * workers.LEASE_MS
        wait_for(lambda: floor.lease("mine:1") > seen, what="it has Redis in sight for two leases' time")
    assert floor.lapsed == []


def test_a_loop_that_stands_still_renews_nothing_and_is_told_of(
    open_floor: Callable[[], Floor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart, "LOOP_BOUND_S", 0.6)
    floor = open_floor()
    go_on = threading.Event()
    with floor.host.holding("run:1"):
        wait_for(lambda: floor.lease("run:1") > 0, what="the lease is there")
        floor.in_loop(lambda: go_on.wait(20))
        wait_for(lambda: floor.hangs == ["hung"], what="it is told")
        latest = floor.lease("run:1")
        wait_for(lambda: store.now_ms() > latest, what="the lease lapses")
        assert floor.lease("run:1") == latest
        go_on.set()
        wait_for(lambda: floor.lease("run:1") > latest, what="the loop turns again")
    assert floor.hangs == ["hung"]


def test_a_short_pause_of_the_loop_costs_no_lease(floor: Floor) -> None:
    with floor.host.holding("run:1"):
        wait_for(lambda: floor.lease("run:1") > 0, what="the lease is there")
        first = floor.lease("run:1")
        floor.in_loop(lambda: time.sleep(1.5 * workers.LEASE_MS / 1000))
        wait_for(lambda: floor.lease("run:1") > first + workers.LEASE_MS, what="it is renewed meanwhile")
    assert floor.hangs == []


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


def test_a_hung_engine_counts_as_lost_and_its_answers_are_given_up(open_floor: Callable[..., Floor]) -> None:
    floor = open_floor(stall_s=0.6)
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    futures = [floor.begin(question)[1] for question in ("[[stall_after=3]]", "[[tokens=1000 tps=50]]")]
    outcomes = [future.result(timeout=20) for future in futures]
    assert {(outcome.result, outcome.error_code) for outcome in outcomes} == {(Result.GIVEN_UP, "worker_lost")}
    assert outcomes[0].own_tokens == 3
    wait_for(lambda: floor.alive == [], what="it is alive no more")
    assert floor.deaths == ["dead"]


def test_an_engine_that_is_slow_or_idle_is_not_hung(open_floor: Callable[..., Floor]) -> None:
    floor = open_floor(stall_s=1.2)
    _, future = floor.begin("[[prefill_ms=2500 tokens=2]]")
    assert future.result(timeout=20).result is Result.DONE
    turns = floor.host._pulse.turns
    wait_for(lambda: floor.host._pulse.turns > turns + 8, what="two idle seconds pass")
    assert (floor.host.takes_runs, floor.deaths) == (True, [])


def test_an_answer_that_waits_for_redis_does_not_make_its_engine_look_hung(
    valkey: Valkey, open_floor: Callable[..., Floor]
) -> None:
    floor = open_floor(stall_s=0.6)
    _, future = floor.begin("[[tokens=20 tps=20 prefill_ms=200]]")
    wait_for(lambda: floor.engine.stats().running == 1, what="the engine has it")
    valkey.kill()
    wait_for(lambda: floor.engine.stats().running == 0, what="the engine is done")
    turns = floor.host._pulse.turns
    wait_for(lambda: floor.host._pulse.turns > turns + 6, what="more than the stall bound passes")
    assert not future.done()
    valkey.start()
    assert future.result(timeout=20).result is Result.DONE
    assert floor.deaths == []


def test_answers_under_way_are_given_up_when_the_engine_dies(floor: Floor) -> None:
    futures = [floor.begin_long()[1] for _ in range(3)]
    floor.in_loop(floor.engine.die)
    outcomes = [future.result(timeout=20) for future in futures]
    assert {(outcome.result, outcome.error_code) for outcome in outcomes} == {(Result.GIVEN_UP, "worker_lost")}
    wait_for(lambda: floor.deaths == ["dead"], what="the death was told once")
    assert floor.begin()[1].result(timeout=20).result is Result.GIVEN_UP


def test_a_death_is_told_whatever_goes_wrong_with_what_runs(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    _, future = floor.begin_long()

    def broken(self: Generation, reason: str) -> None:
        raise RuntimeError("nobody thought of this")

    def die_and_be_seen() -> None:
        floor.engine.die()
        floor.host._look_at_engine()

    monkeypatch.setattr(Generation, "give_up", broken)
    # In one turn of the loop: the answer has not ended by itself yet.
    floor.in_loop(die_and_be_seen)
    assert future.result(timeout=20).result is Result.GIVEN_UP
    wait_for(lambda: floor.deaths == ["dead"], what="the death was told")
    monkeypatch.undo()


def test_a_leaving_worker_is_not_alive_gives_up_what_runs_and_keeps_its_leases(floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    _, future = floor.begin_long()
    with floor.host.holding("run:1"):
        floor.host.leave()
        outcome = future.result(timeout=20)
        assert (outcome.result, outcome.error_code) == (Result.GIVEN_UP, "drained")
        wait_for(lambda: floor.alive == [], what="it is alive no more")
        first = floor.lease("run:1")
        wait_for(lambda: floor.lease("run:1") > first, what="its lease is renewed until it is let go")
    # One that was claimed just before does not slip through.
    assert floor.begin()[1].result(timeout=20).result is Result.GIVEN_UP


def test_stopping_gives_up_what_runs_and_ends_everything(valkey: Valkey, floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    futures = [floor.begin_long()[1] for _ in range(3)]
    floor.host.stop()
    assert {future.result(timeout=20).result for future in futures} == {Result.GIVEN_UP}
    assert floor.alive == []
    assert not floor.host._thread.is_alive()
    assert not floor.engine.alive
    assert floor.deaths == []


def test_stopping_does_not_wait_for_an_engine_that_hangs(puppet_floor: Floor) -> None:
    puppet_floor.engine.answers_aborts = False
    _, future = puppet_floor.begin()
    wait_for(lambda: bool(puppet_floor.engine.requests), what="the engine has it")
    began = time.monotonic()
    puppet_floor.host.stop()
    assert time.monotonic() - began < generation_module.RELEASE_BOUND_S
    assert future.result(timeout=20).result is Result.GIVEN_UP
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
        ports=Ports(verify_owner=lambda *_: True, cancel_requests=lambda _: {}, take_over_lapsed=lambda _: None),
    )
    with pytest.raises(FileNotFoundError):
        host.start()
    assert threading.active_count() == before


# Room for more runs.


def room(floor: Floor) -> int:
    """As the queue knows it."""
    cell = store.connector().cell()
    boot_id = floor.host.identity.boot_id
    return int(look(cell, lambda client: client.zscore(cell.keys.room("p"), boot_id)) or 0)


def test_a_worker_tells_how_many_more_runs_it_can_take(floor: Floor) -> None:
    wait_for(lambda: room(floor) == 8, what="it has room for as many as it has slots")
    with floor.host.holding("run:1"), floor.host.holding("other:1"):
        wait_for(lambda: room(floor) == 6, what="it holds two")
    wait_for(lambda: room(floor) == 8, what="it holds none any more")
    assert floor.alive[0].kv_tokens == floor.engine.stats().kv_tokens > 0


def test_a_worker_counts_on_the_memory_that_its_runs_leave(floor: Floor) -> None:
    wait_for(lambda: len(floor.alive) == 1, what="it is alive")
    assert floor.host.room_tokens == workers.NO_BOUND, "what an idle engine has no room for is its own to refuse"
    assignment, future = floor.begin_long()
    memory = floor.engine.stats().kv_tokens
    assert 0 < floor.host.room_tokens <= memory - len(assignment.prompt_ids)
    floor.database.flags[assignment.run_id] = datetime.now(UTC)
    floor.order_cancel(assignment.run_id)
    future.result(timeout=30)
    wait_for(lambda: floor.host.room_tokens == workers.NO_BOUND, what="it has given everything back")


def test_a_worker_whose_memory_is_full_has_room_for_none(open_floor: Callable[..., Floor]) -> None:
    floor = open_floor(
        lambda: ScriptedEngine(tokenizer=TOKENIZER, script=Script(tps=10_000, prefill_ms=0, tokens=50), kv_tokens=16)
    )
    wait_for(lambda: room(floor) == 8, what="it has room")
    assignment, future = floor.begin_long()
    wait_for(lambda: room(floor) == 0, what="its memory is full")
    floor.database.flags[assignment.run_id] = datetime.now(UTC)
    floor.order_cancel(assignment.run_id)
    future.result(timeout=30)
    wait_for(lambda: room(floor) == 8, what="it has room again")
