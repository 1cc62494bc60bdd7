"""The worker's side of Django: it serves what waits, settles what comes of it, and leaks nothing when that fails."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, close_old_connections, connection, connections

from billing.models import UsageEntry
from inference import publishing, reaper, runs, serving, store, takeover, tickets, token_ids, worker_hooks
from inference.cell import stream, workers
from inference.cell.workers import NO_BOUND, Report
from inference.models import Attempt, ModelPool, Run
from inference.serving import Server
from inference.testing import CHATML, queued, tiny_tokenizer
from inference.tests.support import ask as look_at
from inference.tests.support import empty_account, look
from inference.tokenization import ChatTurn
from inference.worker import generation as generation_module
from inference.worker import guard
from inference.worker.engine import Engine
from inference.worker.generation import Assignment, Outcome, Result
from inference.worker.host import Host, Identity, Ports
from inference.worker.scripted_answers import Script
from inference.worker.scripted_engine import ScriptedEngine
from tests.services import Valkey
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

TOKENIZER = tiny_tokenizer()
Status = Run.Status


class Worker:
    """A worker process: its server, its host, and the threads in which tickets come."""

    def __init__(self, *, pool: ModelPool, valkey: Valkey, slots: int, stall_s: float = 20.0) -> None:
        self.deaths: list[str] = []
        self.engine = ScriptedEngine(tokenizer=TOKENIZER, script=Script(tps=10_000, prefill_ms=0, tokens=40))
        self.host = Host(
            identity=Identity(
                pool=pool.slug,
                boot_id=tickets.boot_id(node=f"{uuid4()}@test"),
                engine="scripted",
                model="m",
                slots=slots,
                stall_s=stall_s,
            ),
            start_engine=self._start,
            redis_url=lambda: valkey.url,
            ports=Ports(
                verify_owner=serving._verify_owner,
                cancel_requests=serving._cancel_requests,
                take_over_lapsed=lambda names: serving._take_over_lapsed(pool=pool.slug, names=names),
            ),
            on_death=lambda: self.deaths.append("dead"),
        )
        self.host.start()
        self.server = Server(pool=pool, host=self.host)
        self.tickets: list[threading.Thread] = []

    async def _start(self) -> Engine:
        return self.engine

    def ticket(self, *, expected: bool = False) -> threading.Thread:
        """A ticket arrives; Celery gives it a thread."""
        thread = threading.Thread(target=self._serve, args=(expected,))
        self.tickets.append(thread)
        thread.start()
        return thread

    def _serve(self, expected: bool) -> None:
        try:
            self.server.serve_waiting(expected=expected)
        finally:
            connections.close_all()

    def serve(self) -> None:
        """A ticket, until it is done."""
        self.ticket().join(timeout=30)

    def close(self) -> None:
        if self.host._thread.is_alive():
            self.server.stop()
        for thread in self.tickets:
            thread.join(timeout=30)


@pytest.fixture
def hire(valkey: Valkey, pool: ModelPool) -> Iterator[Callable[..., Worker]]:
    hired: list[Worker] = []

    def hire_one(*, slots: int = 4, stall_s: float = 20.0) -> Worker:
        hired.append(Worker(pool=pool, valkey=valkey, slots=slots, stall_s=stall_s))
        return hired[-1]

    yield hire_one
    for worker in hired:
        worker.close()


@pytest.fixture
def worker(hire: Callable[..., Worker]) -> Worker:
    return hire()


@pytest.fixture
def ask(accept: Callable[..., Run]) -> Callable[..., Run]:
    """An accepted and enqueued run that asks something."""

    def ask_one(question: str = "Hello", **changes: Any) -> Run:
        given = {"prompt_ids": ask_ids(question), "max_output_tokens": 1000, "now": datetime.now(UTC), **changes}
        run = accept(**given)
        assert publishing.enqueue(run)
        return run

    return ask_one


ENDLESS = "[[prefill_ms=3600000]]"


def ask_ids(question: str) -> list[int]:
    return TOKENIZER.encode_chat([ChatTurn("user", question)])


Ask = Callable[..., Run]


def status(run: Run) -> str:
    close_old_connections()
    return str(Run.objects.values_list("status", flat=True).get(id=run.id))


def leases() -> list[str]:
    cell = store.connector().cell()
    names: list[str] = look(cell, lambda client: client.hkeys(cell.keys.lease_owners("default")))
    return names


def waiting() -> int:
    cell = store.connector().cell()
    return len(cell.run(lambda client: queued(client, cell.keys, pool="default")))


def events(run: Run) -> list[tuple[str, dict[str, Any]]]:
    cell = store.connector().cell()
    rows = look(cell, lambda client: client.xrange(cell.keys.stream(run.id)))
    return [(fields["t"], json.loads(fields["d"])) for _, fields in rows]


def text(run: Run) -> str:
    return "".join(data["text"] for kind, data in events(run) if kind == "delta")


def test_one_ticket_serves_everything_that_waits(worker: Worker, ask: Ask) -> None:
    asked = [ask(f"Question {i}") for i in range(5)]
    worker.serve()
    assert [status(run) for run in asked] == ["done"] * 5
    assert (waiting(), leases()) == (0, [])
    for run in asked:
        run.refresh_from_db()
        kinds = [kind for kind, _ in events(run)]
        assert (kinds[:2], kinds[-1]) == (["queued", "started"], "completed")
        assert events(run)[-1][1]["last"] is not None
        assert (run.output_tokens, run.finish_reason) == (40, "stop")
        assert run.created_at <= run.claimed_at <= run.first_token_at <= run.finished_at  # type: ignore[operator]


def test_as_many_run_at_once_as_there_are_slots(hire: Callable[..., Worker], ask: Ask) -> None:
    worker = hire(slots=2)
    asked = [ask(ENDLESS) for _ in range(3)]
    tickets = [worker.ticket() for _ in range(3)]
    wait_for(lambda: worker.engine.stats().running == 2, what="two run")
    tickets[2].join(timeout=30)
    assert not tickets[2].is_alive()
    assert [status(run) for run in asked].count("queued") == 1
    assert waiting() == 1


def test_a_full_worker_serves_the_next_run_when_a_slot_is_free(hire: Callable[..., Worker], ask: Ask) -> None:
    worker = hire(slots=1)
    first = ask("[[tokens=20 prefill_ms=300]]")
    ticket = worker.ticket()
    wait_for(lambda: worker.engine.stats().running == 1, what="the first runs")
    second = ask()
    worker.serve()
    ticket.join(timeout=30)
    assert [status(first), status(second)] == ["done", "done"]


def test_a_ticket_that_comes_between_the_last_look_and_the_return_of_the_slot_is_not_lost(
    hire: Callable[..., Worker], ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = hire(slots=1)
    serve_one = worker.server._serve_one
    late: list[Run] = []

    def look_then_knock(*, expected: bool) -> bool:
        served = serve_one(expected=expected)
        if not served and not late:
            # The slot is still taken: this run's ticket finds none.
            late.append(ask())
            worker.serve()
        return served

    monkeypatch.setattr(worker.server, "_serve_one", look_then_knock)
    worker.serve()
    assert status(late[0]) == "done"


def test_a_run_cancelled_while_it_waited_is_dropped_and_the_next_served(worker: Worker, ask: Ask) -> None:
    cancelled, next_one = ask(), ask()
    runs.cancel_queued(run_id=cancelled.id, now=datetime.now(UTC))
    worker.serve()
    assert [status(cancelled), status(next_one)] == ["cancelled", "done"]
    assert leases() == []


def test_a_cancelled_answer_keeps_its_text_and_tells_how_long_the_engine_was_held(worker: Worker, ask: Ask) -> None:
    run = ask("[[tokens=1000 tps=100]]")
    ticket = worker.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    runs.request_cancel(run_id=run.id, now=datetime.now(UTC))
    ticket.join(timeout=30)
    run.refresh_from_db()
    assert (run.status, run.error_code) == (Status.CANCELLED, "cancelled")
    assert run.release_ms is not None
    assert 0 < run.output_tokens < 1000
    [*_, (kind, data)] = events(run)
    assert (kind, data["usage"]["output"]) == ("cancelled", run.output_tokens)
    assert data["last"] is not None


def test_an_epoch_that_lost_its_run_settles_nothing(worker: Worker, ask: Ask) -> None:
    run = ask("[[tokens=1000 tps=200]]")
    ticket = worker.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    cell = store.connector().cell()
    cell.call(stream.seal(cell.keys, run_id=run.id, epoch=1, base_epoch=1))
    ticket.join(timeout=30)
    assert status(run) == "streaming"
    assert leases() == []
    assert "completed" not in [kind for kind, _ in events(run)]


def test_a_settlement_waits_for_a_database_that_is_away(
    worker: Worker, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SETTLE_AGAIN_S", 0.01)
    run = ask()
    settle = runs.settle
    failures = 3

    def away(**arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OperationalError("the database is away")
        return settle(**arguments)

    monkeypatch.setattr(runs, "settle", away)
    worker.serve()
    assert status(run) == "done"
    assert events(run)[-1][0] == "completed"


@pytest.mark.parametrize("step", ["claim", "settle"])
def test_an_error_leaks_neither_slot_nor_lease_and_ends_the_ticket(
    hire: Callable[..., Worker], ask: Ask, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    worker = hire(slots=1)
    ask()
    kept = ask()
    original = getattr(runs, step)

    def broken(**_: Any) -> Any:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(runs, step, broken)
    worker.serve()
    assert (waiting(), leases()) == (1, [])
    monkeypatch.setattr(runs, step, original)
    worker.serve()
    assert (status(kept), waiting()) == ("done", 0)


def test_a_database_that_stays_away_leaves_the_run_to_the_reaper(
    worker: Worker, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "SETTLE_AGAIN_S", 0.01)
    monkeypatch.setattr(serving.settle, "__kwdefaults__", {"patience_s": 0.05})
    run = ask()

    def away(**_: Any) -> Any:
        raise OperationalError("the database is away")

    monkeypatch.setattr(runs, "settle", away)
    worker.serve()
    assert (status(run), leases()) == ("streaming", [])


def test_the_lease_is_held_until_the_answer_is_settled(
    worker: Worker, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask()
    settle = runs.settle
    expiries: list[float] = []

    def expiry() -> float:
        cell = store.connector().cell()
        return float(look(cell, lambda client: client.zscore(cell.keys.leases("default"), f"{run.id}:1")) or 0)

    def slow(**arguments: Any) -> Any:
        first = expiry()
        wait_for(lambda: expiry() > first, what="the lease is renewed during the settlement")
        expiries.append(first)
        return settle(**arguments)

    monkeypatch.setattr(runs, "settle", slow)
    worker.serve()
    assert (status(run), len(expiries)) == ("done", 1)


def test_whoever_reads_the_end_finds_the_slot_free_and_the_chat_at_home(
    worker: Worker, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ask()
    tell = publishing.tell_end
    seen: list[tuple[list[str], bool]] = []

    def look_first(ended: Run, *, text: str | None) -> None:
        cell = store.connector().cell()
        home = look(cell, lambda client: client.exists(cell.keys.home(run.chat_id)))
        seen.append((leases(), bool(home)))
        tell(ended, text=text)

    monkeypatch.setattr(publishing, "tell_end", look_first)
    worker.serve()
    assert seen == [([], True)]
    assert events(run)[-1][0] == "completed"


def test_without_redis_a_ticket_ends(valkey: Valkey, worker: Worker, ask: Ask) -> None:
    run = ask()
    valkey.kill()
    worker.serve()
    assert status(run) == "queued"


def test_a_restart_of_redis_in_the_middle_of_an_answer_loses_nothing(valkey: Valkey, worker: Worker, ask: Ask) -> None:
    run = ask("[[tokens=200 tps=400]]")
    ticket = worker.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    valkey.kill()
    valkey.start()
    store.connector().close()
    ticket.join(timeout=30)
    run.refresh_from_db()
    assert (run.status, run.output_tokens) == (Status.DONE, 200)
    assert run.stream_incarnation == store.connector().cell().keys.incarnation
    kinds = [kind for kind, _ in events(run)]
    assert (kinds[0], kinds[-1]) == ("started", "completed")
    assert events(run)[-1][1]["last"] is not None


def attempts(run: Run) -> list[tuple[int, str]]:
    return list(run.attempts.order_by("epoch").values_list("epoch", "outcome"))


@pytest.mark.parametrize("how", ["leave", "stop"])
def test_a_worker_that_goes_hands_its_answers_over_and_another_goes_on(
    hire: Callable[..., Worker], ask: Ask, how: str
) -> None:
    leaving = hire()
    run = ask("[[tokens=60 tps=60]]")
    ticket = leaving.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    late = ask()
    getattr(leaving.server, how)()
    ticket.join(timeout=30)
    leaving.serve()
    assert [status(run), status(late)] == ["queued", "queued"]
    assert (attempts(run), leases()) == ([(1, "drained")], [])
    shown = text(run)
    hire().serve()
    run.refresh_from_db()
    assert (run.status, run.epoch, run.output_tokens, status(late)) == (Status.DONE, 2, 60, "done")
    assert len(text(run)) > len(shown) > 0
    assert text(run) == TOKENIZER.decode(leaving.engine.answer_ids(ask_ids("[[tokens=60 tps=60]]")))
    [_, again] = [data for kind, data in events(run) if kind == "started"]
    assert (again["epoch"], again["reason"], again["continues"]) == (2, "drained", True)
    assert [row.reason for row in UsageEntry.objects.filter(run_id=run.id).order_by("epoch")] == ["lost", "completed"]


def test_a_worker_that_goes_passes_tickets_on(valkey: Valkey, worker: Worker) -> None:
    broker = "chatsite:celery:pool.default"
    worker.serve()
    worker.server.leave()
    assert look_at(valkey, lambda client: client.llen(broker)) == 0
    worker.serve()
    assert look_at(valkey, lambda client: client.llen(broker)) == 1


def test_the_first_token_of_an_answer_handed_over_is_the_first_workers(hire: Callable[..., Worker], ask: Ask) -> None:
    leaving = hire()
    run = ask("[[tokens=60 tps=60]]")
    ticket = leaving.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    shown_at = datetime.now(UTC)
    leaving.server.leave()
    ticket.join(timeout=30)
    hire().serve()
    run.refresh_from_db()
    assert run.first_token_at is not None
    assert run.claimed_at <= run.first_token_at <= shown_at  # type: ignore[operator]


def test_a_worker_that_goes_while_redis_is_away_leaves_its_answers_to_the_reaper(
    valkey: Valkey, worker: Worker, ask: Ask
) -> None:
    run = ask("[[tokens=1000 tps=100]]")
    ticket = worker.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    valkey.kill()
    worker.server.leave()
    ticket.join(timeout=30)
    assert not ticket.is_alive()
    assert status(run) == "streaming"


@pytest.mark.parametrize("trouble", ["dies", "hangs"])
def test_a_lost_engines_answers_go_on_elsewhere_and_its_worker_claims_nothing_more(
    hire: Callable[..., Worker], ask: Ask, trouble: str
) -> None:
    worker = hire(stall_s=0.6)
    run = ask("[[tokens=60 tps=60 stall_after=20]]" if trouble == "hangs" else "[[tokens=60 tps=60]]")
    ticket = worker.ticket()
    wait_for(lambda: bool(text(run)), what="it shows something")
    late = ask()
    if trouble == "dies":
        worker.host._loop.call_soon_threadsafe(worker.engine.die)
    ticket.join(timeout=30)
    assert (status(run), attempts(run)) == ("queued", [(1, "lost")])
    worker.serve()
    assert status(late) == "queued"
    assert worker.deaths == ["dead"]
    hire().serve()
    run.refresh_from_db()
    assert (run.status, run.epoch, run.output_tokens) == (Status.DONE, 2, 60)
    [_, again] = [data for kind, data in events(run) if kind == "started"]
    assert (again["reason"], again["continues"]) == ("worker_lost", True)


def test_at_its_deadline_an_answer_breaks_off_with_its_text(pool: ModelPool, worker: Worker, ask: Ask) -> None:
    ModelPool.objects.filter(id=pool.id).update(generation_s=1)
    run = ask("[[tokens=1000 tps=100]]")
    worker.serve()
    run.refresh_from_db()
    assert (run.status, run.error_code) == (Status.INTERRUPTED, "deadline")
    assert 0 < run.output_tokens < 1000
    assert events(run)[-1][0] == "interrupted"
    assert (run.finished_at - run.claimed_at).total_seconds() < 5  # type: ignore[operator]


def test_no_database_connection_is_held_while_an_answer_is_generated(pool: ModelPool, valkey: Valkey, ask: Ask) -> None:
    held: list[bool] = []

    class Idle:
        """A host that only looks."""

        identity = Identity(pool="default", boot_id="boot", engine="scripted", model="m", slots=1)
        takes_runs = True
        room_tokens = NO_BOUND
        computed_tokens = 0
        holding = staticmethod(lambda name: contextlib.nullcontext())

        def run(self, assignment: Assignment) -> Outcome:
            held.append(connection.connection is not None)
            return Outcome(result=Result.DONE, text="", own_tokens=0, total_tokens=0, finish_reason="stop")

    run = ask()
    host: Any = Idle()
    Server(pool=pool, host=host).serve_waiting()
    assert held == [False]
    assert status(run) == "done"


@pytest.mark.parametrize(("epoch", "base", "reason"), [(1, 1, None), (2, 1, "worker_lost"), (2, 2, "retry")])
def test_an_assignment_says_why_its_epoch_began(
    accept: Callable[..., Run], epoch: int, base: int, reason: str | None
) -> None:
    run = accept(prompt_ids=[1, 2])
    run.epoch, run.base_epoch = epoch, base
    run.carry_ids, run.carry_text = token_ids.pack([7]), "x"
    assignment = serving.assignment_of(run, incarnation="i", now=run.created_at)
    assert assignment.started.get("reason") == reason
    assert (list(assignment.prompt_ids), list(assignment.carry_ids), assignment.carry_text) == ([1, 2], [7], "x")
    assert assignment.cache_salt == str(run.owner_id)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text(TOKENIZER._tokenizer.to_str())
    config = {"chat_template": CHATML, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_booted_process_serves_its_pool_until_it_is_shut_down(
    valkey: Valkey, pool: ModelPool, ask: Ask, tiny_model: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ENGINE, settings.MODEL = "scripted", str(tiny_model)
    monkeypatch.setattr(serving, "_server", None)
    run = ask("[[tps=10000 prefill_ms=0]]")
    with pytest.raises(RuntimeError, match="no engine"):
        serving.serve_waiting(pool="default")
    assert not serving.leave()
    serving.shutdown()
    serving.boot(pool_slug="default", concurrency=2, node="w@test")
    try:
        serving.serve_waiting(pool="default")
        assert status(run) == "done"
        late = ask()
        assert serving.leave()
        serving.serve_waiting(pool="default")
        assert status(late) == "queued"
    finally:
        serving.shutdown()


def test_a_process_whose_engine_died_is_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    serving._end_process()
    assert sent == [(os.getpid(), signal.SIGTERM)]


class Instance:
    """What Celery hands to its signal: a worker that consumes some queues."""

    concurrency = 4
    hostname = "worker@here"

    def __init__(self, *queues: str) -> None:
        self.app = self
        self.amqp = self
        self.queues = self
        self.consume_from = queues


@pytest.mark.parametrize("queues", [("pool.default", "pool.large"), ("pool.default",)])
def test_a_worker_that_gets_no_engine_ends_instead_of_taking_tickets(
    queues: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise FileNotFoundError("no such model")

    monkeypatch.setattr(guard, "start", lambda: None)
    monkeypatch.setattr(serving, "boot", fail)
    with pytest.raises(SystemExit):
        worker_hooks.boot_engine(instance=Instance(*queues))


def test_a_worker_of_other_queues_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    booted: list[str] = []
    monkeypatch.setattr(serving, "boot", lambda **_: booted.append("booted"))
    worker_hooks.boot_engine(instance=Instance("jobs"))
    assert booted == []


def test_a_process_that_is_told_to_stop_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from celery.signals import worker_shutting_down

    left: list[str] = []
    monkeypatch.setattr(serving, "leave", lambda: left.append("left"))
    worker_shutting_down.send(sender="w", sig="SIGTERM", how="Warm", exitcode=0)
    assert left == ["left"]


def test_a_process_with_an_engine_is_gone_in_time_whatever_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[float] = []
    monkeypatch.setattr(guard, "end_within", lambda *, seconds: bounds.append(seconds))
    monkeypatch.setattr(serving, "leave", lambda: False)
    worker_hooks.leave()
    assert bounds == []
    monkeypatch.setattr(serving, "leave", lambda: True)
    worker_hooks.leave()
    [bound] = bounds
    assert bound < 5


def test_the_bound_of_a_worker_that_goes_leaves_time_to_flush() -> None:
    assert generation_module.DROP_BOUND_S + generation_module.LEAVING_BOUND_S < worker_hooks.LEAVING_BOUND_S


# Several workers, and what they do not get at once.


@pytest.fixture
def post(hire: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> "Post":
    return Post(hire, monkeypatch)


class Post:
    """Brings tickets to the workers in this process, one for any of them to all, which does no harm."""

    def __init__(self, hire: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
        self._hire = hire
        self.workers: list[Worker] = []
        # The boot ids that tickets were for, '' = any worker.
        self.sent: list[str] = []
        monkeypatch.setattr(tickets, "send", self._send)

    def hire(self, **more: Any) -> Worker:
        self.workers.append(self._hire(**more))
        return self.workers[-1]

    def _send(self, *, pool: str, boot_id: str = "", expected: bool = False) -> bool:
        self.sent.append(boot_id)
        for worker in self.workers:
            # One that goes passes its tickets on, to others.
            if boot_id == worker.host.identity.boot_id or (not boot_id and worker.host.takes_runs):
                worker.ticket(expected=expected)
        return True


LONG = "[[tokens=1000 tps=40]]"


def sent(accept: Callable[..., Run], question: str, **changes: Any) -> Run:
    """An accepted run, queued as a send does: a worker with room is told."""
    run = accept(**{"prompt_ids": ask_ids(question), "max_output_tokens": 1000, "now": datetime.now(UTC), **changes})
    takeover.queue_up(run)
    return run


def owner(run: Run) -> str:
    close_old_connections()
    return str(Attempt.objects.values_list("worker", flat=True).get(run_id=run.id))


def is_over(*asked: Run) -> bool:
    close_old_connections()
    return not Run.objects.filter(id__in=[run.id for run in asked], status__in=Run.ACTIVE).exists()


def cancel(*asked: Run) -> None:
    for run in asked:
        runs.request_cancel(run_id=run.id, now=datetime.now(UTC))


def test_a_turn_goes_to_the_worker_that_has_its_chat_in_memory(post: Post, accept: Callable[..., Run]) -> None:
    first, second = post.hire(), post.hire()
    wait_for(lambda: len(alive()) == 2, what="both are there")
    chat = uuid4()
    turns = []
    for number in range(4):
        turns.append(sent(accept, "x" * 400, chat_id=chat, turn=f"t{number}"))
        wait_for(lambda: is_over(*turns) and not leases(), what="it is answered")
    assert {owner(run) for run in turns} in [{one.host.identity.boot_id} for one in (first, second)]


def test_what_was_kept_for_a_worker_that_does_not_come_is_taken_by_the_slots_of_another_together(
    post: Post, accept: Callable[..., Run]
) -> None:
    home = post.hire()
    wait_for(lambda: len(alive()) == 1, what="it is there")
    people = [get_user_model().objects.create_user(email=f"{name}@example.org") for name in "abc"]
    chats = [{"chat_id": uuid4(), "owner_id": person.pk} for person in people]
    before = [sent(accept, "x" * 400, turn=f"first {n}", **chat) for n, chat in enumerate(chats)]
    wait_for(lambda: is_over(*before) and not leases(), what="they are answered")
    other = post.hire()
    wait_for(lambda: len(alive()) == 2, what="another comes")
    post.workers.remove(home)
    again = [sent(accept, "x" * 400 + LONG, turn=f"second {n}", **chat) for n, chat in enumerate(chats)]
    other.ticket()
    wait_for(lambda: all(status(run) == "streaming" for run in again), what="the other has taken all of them")
    assert {owner(run) for run in again} == {other.host.identity.boot_id}
    cancel(*again)
    wait_for(lambda: is_over(*again), what="they end")


def test_a_ticket_to_a_dead_worker_costs_a_pass_of_the_reaper(post: Post, accept: Callable[..., Run]) -> None:
    worker = post.hire()
    wait_for(lambda: len(alive()) == 1, what="it is there")
    post.workers.clear()
    run = sent(accept, "Hello")
    assert (post.sent, status(run)) == ([worker.host.identity.boot_id], "queued")
    wait_for(lambda: "woke" in reaper.reap(now=datetime.now(UTC)), what="the reaper sends another", seconds=10)
    assert post.sent[-1] == "", "any worker may take it"
    worker.serve()
    assert status(run) == "done"


def test_a_look_ahead_that_is_due_sooner_counts() -> None:
    knocks: list[str] = []
    later = serving._Later(lambda: knocks.append("knock"))
    later.one_taken()
    assert knocks == [], "nothing was kept"
    later.look(after_s=3600)
    later.look(after_s=0.01)
    later.look(after_s=7200)
    wait_for(lambda: knocks == ["knock"], what="it knocks")
    later.one_taken()
    assert knocks == ["knock", "knock"], "the next may be to be had as well"
    later.none_waits()
    later.one_taken()
    assert len(knocks) == 2


def test_a_finished_run_is_charged_and_its_worker_is_the_chats_home(worker: Worker, ask: Ask) -> None:
    run = ask()
    cell = store.connector().cell()
    cell.call(empty_account(cell.keys, user_id=run.owner_id))
    worker.serve()
    run.refresh_from_db()
    home = look(cell, lambda client: client.get(cell.keys.home(run.chat_id))).split("|")
    assert home[:2] == [worker.host.identity.boot_id, str(run.prompt_tokens + run.output_tokens)]
    account = look(cell, lambda client: client.hgetall(cell.keys.account(run.owner_id)))
    assert float(account["out:default"]) == run.output_tokens
    assert leases() == []


def alive() -> list[Report]:
    cell = store.connector().cell()
    return cell.run(lambda client: workers.alive(client, cell.keys, pool="default", now_ms=store.now_ms()))
