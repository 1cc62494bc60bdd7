"""The reaper on real parts: whatever died or was forgotten, every run ends and every hold is settled."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing import api as billing
from billing.models import UsageEntry
from inference import admission, publishing, reaper, runs, store, token_ids
from inference.cell import admission as cell_admission
from inference.cell import queue, stream, workers
from inference.cell.link import Cell
from inference.cell.queue import Ticketed
from inference.cell.workers import LEASE_MS, Report
from inference.models import Attempt, ModelPool, Run
from inference.reaper import GRACE_MS, MAX_EPOCHS, UNCONFIRMED_MS, WAIT_BOUND, Sight
from inference.runs import Ending
from inference.tests.support import ask, hung, look, restart
from inference.tests.test_serving import TOKENIZER, Worker
from inference.tests.threads import at_once
from inference.tokenization import ChatTurn
from tests.services import Valkey, wait_for

Status = Run.Status
REPORT = Report(engine="scripted", model="m", slots=2, running=0, waiting=0, kv_usage=0.0, output_tokens=0)


class Night:
    """A cell and its database after something went wrong; `at` seconds later the reaper comes."""

    def __init__(self, *, accept: Callable[..., Run], now: datetime) -> None:
        self.accept = accept
        self.now = now
        self.sight = Sight()

    @property
    def cell(self) -> Cell:
        return store.connector().cell()

    @property
    def keys(self) -> Any:
        return self.cell.keys

    def ms(self, at: float) -> int:
        return int((self.now + timedelta(seconds=at)).timestamp() * 1000)

    def watch(self, *, until: float) -> None:
        """The reaper has seen Redis every second, up to this moment."""
        for second in range(5):
            self.sight.is_clear(incarnation=self.keys.incarnation, now=self.now + timedelta(seconds=until - 4 + second))

    def reap(self, *, at: float, watched: bool = True) -> dict[str, int]:
        if watched:
            self.watch(until=at - 0.5)
        return dict(reaper.reap(now=self.now + timedelta(seconds=at), sight=self.sight))

    def beat(self, *, at: float, boot_id: str = "w", held: tuple[str, ...] = ()) -> None:
        self.cell.call(
            workers.heartbeat(self.keys, pool="default", boot_id=boot_id, report=REPORT, held=held, now_ms=self.ms(at))
        )

    def enqueue(self, run: Run, *, at: float = 0) -> None:
        self.cell.call(
            queue.enqueue(
                self.keys,
                user_id=run.owner_id,
                pool="default",
                run_id=run.id,
                epoch=run.epoch,
                base_epoch=run.base_epoch,
                admission_id=run.admission_id,
                now_ms=self.ms(at),
            )
        )

    def pop(self, *, at: float = 0, boot_id: str = "w") -> Ticketed | None:
        call = queue.claim(self.keys, pool="default", boot_id=boot_id, now_ms=self.ms(at))
        return queue.read_claim(self.cell.call(call))

    def claim(self, run: Run, *, at: float = 0, boot_id: str = "w") -> Run:
        """A worker claims the run, in Redis and in the database."""
        run.refresh_from_db()
        self.enqueue(run, at=at)
        assert self.pop(at=at, boot_id=boot_id) == Ticketed(run_id=run.id, epoch=run.epoch)
        claimed = runs.claim(
            run_id=run.id,
            epoch=run.epoch,
            worker=boot_id,
            incarnation=self.keys.incarnation,
            now=self.now + timedelta(seconds=at),
        )
        assert claimed is not None
        return claimed

    def publish(self, run: Run, *texts: str, first_id: int = 10) -> list[int]:
        """The owner opens its epoch and shows these texts, one token each. Returns their ids."""
        opened = self.cell.call(
            stream.open_epoch(
                self.keys,
                run_id=run.id,
                epoch=run.epoch,
                base_epoch=run.base_epoch,
                seq=1,
                started={"epoch": run.epoch},
                ids_so_far=token_ids.unpack(run.carry_ids),
                text_so_far=run.carry_text,
            )
        )
        assert opened[0] == "ok"
        ids = list(range(first_id, first_id + len(texts)))
        for number, (text, token) in enumerate(zip(texts, ids, strict=True)):
            assert self.append(run, text, token, seq=opened[1] + 1 + number) == "ok"
        return ids

    def append(self, run: Run, text: str, token: int, *, seq: int) -> Any:
        call = stream.append(
            self.keys, run_id=run.id, epoch=run.epoch, seq=seq, kind="delta", data={"text": text}, ids=[token]
        )
        return self.cell.call(call)

    def settle(self, run: Run, *, tokens: int, at: float = 0) -> Run:
        ending = Ending(status=Status.DONE, text="x", own_tokens=tokens, output_tokens=tokens)
        ended = runs.settle(run_id=run.id, epoch=run.epoch, ending=ending, now=self.now + timedelta(seconds=at))
        assert ended is not None
        return ended

    def account(self, run: Run) -> dict[str, str]:
        row: dict[str, str] = look(self.cell, lambda client: client.hgetall(self.keys.account(run.owner_id)))
        return row

    def held(self, run: Run) -> set[str]:
        rows = look(self.cell, lambda client: client.hkeys(self.keys.reservations(run.owner_id)))
        return set(rows)

    def hold(self, run: Run, *, admission_id: UUID | None = None, confirmed: bool = True, at: float = 0) -> None:
        """A hold of the run's owner, in an account of generation 1."""
        billing.account_generation(user_id=run.owner_id)
        self.cell.call(cell_admission.load(self.keys, user_id=run.owner_id, generation=1, used=0, live=(), now_ms=0))
        value = f"{run.turn}|1|103|{int(confirmed)}|{self.ms(at)}"
        name = str(admission_id or run.admission_id)
        self.cell.run(lambda client: client.hset(self.keys.reservations(run.owner_id), name, value))
        self.cell.run(lambda client: client.sadd(self.keys.holders(), str(run.owner_id)))

    @property
    def waiting(self) -> list[str]:
        names: list[str] = look(self.cell, lambda client: client.zrange(self.keys.queue("default"), 0, -1))
        return names

    def events(self, run: Run) -> list[tuple[str, dict[str, Any]]]:
        rows = look(self.cell, lambda client: client.xrange(self.keys.stream(run.id)))
        return [(fields["t"], json.loads(fields["d"])) for _, fields in rows]

    def ledger(self, run: Run) -> list[tuple[int, str, int, int, int]]:
        """Epoch, reason and prompt, output, wasted tokens of each row."""
        rows = UsageEntry.objects.filter(run_id=run.id).order_by("epoch")
        return list(rows.values_list("epoch", "reason", "prompt_tokens", "output_tokens", "wasted_tokens"))


def tickets(valkey: Valkey) -> int:
    return int(ask(valkey, lambda client: client.llen("chatsite:celery:pool.default")))


@pytest.fixture
def night(valkey: Valkey, accept: Callable[..., Run], now: datetime) -> Night:
    return Night(accept=accept, now=now)


LONG_AFTER = LEASE_MS / 1000 + 1


def test_where_nothing_is_wrong_nothing_is_done(valkey: Valkey, night: Night) -> None:
    waiting, running = night.accept(), night.accept()
    night.hold(waiting)
    name = str(running.admission_id)
    night.cell.run(lambda c: c.hset(night.keys.reservations(running.owner_id), name, "t|1|9|1|0"))
    claimed = night.claim(running)
    night.enqueue(waiting, at=9)
    night.beat(at=9, held=(f"{claimed.id}:1",))
    assert night.reap(at=10) == {}
    assert tickets(valkey) == 0


def test_an_accepted_run_that_never_reached_the_queue_is_queued_once(valkey: Valkey, night: Night) -> None:
    run = night.accept()
    night.hold(run, confirmed=False)
    assert night.reap(at=0) == {"queued": 1}
    assert (night.waiting, tickets(valkey)) == ([f"{run.id}:1"], 1)
    assert [kind for kind, _ in night.events(run)] == ["queued"]
    assert night.reap(at=0.1) == {}


def test_a_restart_of_redis_queues_all_that_waits_again(valkey: Valkey, night: Night) -> None:
    waiting = [night.accept() for _ in range(3)]
    for run in waiting:
        night.enqueue(run)
    restart(valkey)
    store.connector().close()
    assert night.reap(at=1)["queued"] == 3
    assert set(night.waiting) == {f"{run.id}:1" for run in waiting}


def test_a_run_that_a_worker_is_just_claiming_is_left_to_it(night: Night) -> None:
    run = night.accept()
    night.hold(run)
    night.enqueue(run)
    night.pop()
    assert night.reap(at=1) == {}


def test_a_run_whose_claimer_died_on_the_way_to_the_database_is_queued_again(night: Night) -> None:
    run = night.accept()
    night.hold(run)
    night.enqueue(run)
    night.pop()
    assert night.reap(at=LONG_AFTER) == {"queued": 1}
    assert night.waiting == [f"{run.id}:1"]


def test_a_run_that_nobody_came_for_fails_and_costs_nothing(night: Night) -> None:
    run = night.accept()
    night.hold(run)
    night.enqueue(run)
    bound = WAIT_BOUND.total_seconds()
    assert "gave_up" not in night.reap(at=bound - 1)
    assert night.reap(at=bound)["gave_up"] == 1
    run.refresh_from_db()
    assert (run.status, run.error_code) == (Status.FAILED, "queue_timeout")
    assert (night.waiting, night.held(run), night.ledger(run)) == ([], set(), [])
    assert night.events(run)[-1][0] == "failed"


def test_a_requeued_run_waits_its_own_time(night: Night) -> None:
    run = night.claim(night.accept())
    late = WAIT_BOUND.total_seconds() - 1
    assert night.reap(at=late)["took_over"] == 1
    assert "gave_up" not in night.reap(at=late + 10)
    assert night.reap(at=late + WAIT_BOUND.total_seconds())["gave_up"] == 1
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_without_redis_waiting_too_long_still_ends(valkey: Valkey, night: Night) -> None:
    run = night.accept()
    valkey.kill()
    assert night.reap(at=WAIT_BOUND.total_seconds(), watched=False) == {"gave_up": 1}
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_a_lost_answer_goes_on_from_what_was_published(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    ids = night.publish(run, "so ", "far ")
    assert night.reap(at=LONG_AFTER) == {"took_over": 1}
    run.refresh_from_db()
    assert (run.status, run.epoch, run.base_epoch, run.stream_incarnation) == (Status.QUEUED, 2, 1, "")
    assert (token_ids.unpack(run.carry_ids), run.carry_text) == (ids, "so far ")
    assert night.ledger(run) == [(1, "lost", 0, 2, 3)]
    assert [(a.outcome, a.output_tokens) for a in run.attempts.all()] == [(Attempt.Outcome.LOST, 2)]
    assert (night.waiting, tickets(valkey)) == ([f"{run.id}:2"], 1)
    successor = night.claim(run, at=LONG_AFTER, boot_id="another")
    assert successor.claimed_at == night.now
    night.publish(successor, "and on", first_id=90)
    kinds = [(kind, data.get("continues")) for kind, data in night.events(run)]
    assert kinds[-2:] == [("started", True), ("delta", None)]
    ended = night.settle(successor, tokens=1)
    assert night.ledger(ended) == [(1, "lost", 0, 2, 3), (2, "completed", 3, 1, 0)]


def test_the_lost_worker_publishes_nothing_afterwards(night: Night) -> None:
    run = night.claim(night.accept())
    night.publish(run, "mine")
    night.reap(at=LONG_AFTER)
    assert night.append(run, "still mine?", 99, seq=3) == "stop"
    assert (
        runs.settle(
            run_id=run.id,
            epoch=1,
            ending=Ending(status=Status.DONE, text="x", own_tokens=1, output_tokens=1),
            now=night.now,
        )
        is None
    )


def test_a_lost_worker_before_the_first_token_is_not_seen(night: Night) -> None:
    run = night.claim(night.accept())
    assert night.reap(at=LONG_AFTER)["took_over"] == 1
    assert night.ledger(run) == [(1, "lost", 0, 0, 0)]
    successor = night.claim(run, at=LONG_AFTER)
    night.publish(successor, "text")
    assert [kind for kind, _ in night.events(run)] == ["queued", "started", "delta"]


def test_an_answer_whose_lease_is_renewed_is_left_alone(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    night.beat(at=LONG_AFTER, held=(f"{run.id}:1",))
    assert night.reap(at=LONG_AFTER) == {}


def test_a_missing_lease_counts_only_after_redis_was_in_sight_for_a_leases_time(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    restart(valkey)
    store.connector().close()
    for second in range(4):
        assert "took_over" not in night.reap(at=10 + second, watched=False), second
    assert night.reap(at=14, watched=False)["took_over"] == 1
    run.refresh_from_db()
    assert run.epoch == 2


def test_after_redis_hung_workers_get_time_to_renew_their_leases(valkey: Valkey, night: Night) -> None:
    night.claim(night.accept())
    night.watch(until=10)
    with hung(valkey):
        assert night.reap(at=11, watched=False) == {}
    for second in range(4):
        assert "took_over" not in night.reap(at=12 + second, watched=False), second
    assert night.reap(at=16, watched=False)["took_over"] == 1


def test_a_reaper_that_was_not_there_for_a_while_looks_first(night: Night) -> None:
    night.claim(night.accept())
    night.watch(until=10)
    assert "took_over" not in night.reap(at=20, watched=False)


def test_a_lost_stream_leaves_what_earlier_epochs_left(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    ids = night.publish(run, "so ", "far ")
    night.reap(at=LONG_AFTER)
    second = night.claim(run, at=LONG_AFTER)
    night.publish(second, "lost ", first_id=50)
    restart(valkey)
    store.connector().close()
    assert night.reap(at=20)["took_over"] == 1
    run.refresh_from_db()
    assert (run.epoch, token_ids.unpack(run.carry_ids), run.carry_text) == (3, ids, "so far ")
    assert night.ledger(run)[1] == (2, "lost", 0, 0, 0)


def test_an_owner_that_proves_itself_in_a_new_redis_keeps_its_run(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    restart(valkey)
    store.connector().close()
    # Between the reaper's look and its commit the owner verifies: the compare-and-swap must fail.
    assert runs.verify_owner(run_id=run.id, epoch=1, incarnation=night.keys.incarnation)
    assert not reaper.take_over(night.cell, run, now=night.now)
    run.refresh_from_db()
    assert (run.status, run.epoch, night.ledger(run)) == (Status.STREAMING, 1, [])


def test_a_lost_answer_whose_cancel_was_asked_for_is_cancelled(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    night.publish(run, "so ", "far ")
    runs.request_cancel(run_id=run.id, now=night.now)
    assert night.reap(at=LONG_AFTER) == {"took_over": 1}
    run.refresh_from_db()
    assert (run.status, run.error_code, run.output_tokens) == (Status.CANCELLED, "cancelled", 2)
    assert run.release_ms == LONG_AFTER * 1000
    assert night.ledger(run) == [(1, "cancelled", 3, 2, 0)]
    [*_, (kind, data)] = night.events(run)
    assert (kind, data["last"]) == ("cancelled", "1-3")
    assert (night.held(run), night.account(run)["used"], night.waiting) == (set(), "5", [])


def test_a_run_that_used_up_its_epochs_ends_interrupted_with_its_text(night: Night) -> None:
    run = night.accept()
    at = 0.0
    for epoch in range(1, MAX_EPOCHS + 1):
        claimed = night.claim(run, at=at)
        night.publish(claimed, f"part {epoch} ", first_id=10 * epoch)
        at += LONG_AFTER
        assert night.reap(at=at)["took_over"] == 1
    run.refresh_from_db()
    assert (run.status, run.error_code, run.epoch) == (Status.INTERRUPTED, "worker_lost", MAX_EPOCHS)
    assert run.output_tokens == MAX_EPOCHS
    assert [row[:4] for row in night.ledger(run)] == [
        (1, "lost", 0, 1),
        (2, "lost", 0, 1),
        (3, "interrupted", 3, 1),
    ]
    assert night.events(run)[-1][0] == "interrupted"
    assert night.events(run)[-1][1]["last"] is not None


def test_one_run_that_cannot_be_helped_keeps_no_other_waiting(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = night.claim(night.accept()), night.claim(night.accept())
    take_over = runs.take_over

    def broken(*, run_id: UUID, **arguments: Any) -> Any:
        if run_id == bad.id:
            raise RuntimeError("nobody thought of this")
        return take_over(run_id=run_id, **arguments)

    monkeypatch.setattr(runs, "take_over", broken)
    assert night.reap(at=LONG_AFTER)["took_over"] == 1
    good.refresh_from_db()
    assert good.epoch == 2


@pytest.mark.django_db(transaction=True)
def test_of_several_reapers_at_once_one_takes_over(night: Night) -> None:
    run = night.claim(night.accept())
    night.publish(run, "so far")
    later = night.now + timedelta(seconds=LONG_AFTER)
    results = at_once([partial(reaper.take_over, night.cell, run, now=later) for _ in range(4)])
    assert sorted(results, key=str) == [False, False, False, True]
    run.refresh_from_db()
    assert (run.epoch, len(night.ledger(run))) == (2, 1)


def test_the_hold_of_a_run_that_is_over_is_settled_and_its_stream_closed(night: Night) -> None:
    """Its worker died between the commit and what follows it."""
    run = night.claim(night.accept())
    night.hold(run)
    night.publish(run, "text")
    ended = night.settle(run, tokens=5, at=60)
    assert night.reap(at=60 + GRACE_MS / 1000 - 0.1) == {}
    assert night.reap(at=60 + GRACE_MS / 1000 + 0.1) == {"closed": 1}
    assert (night.held(run), night.account(run)["used"]) == (set(), "8")
    [*_, (kind, data)] = night.events(run)
    assert (kind, data["message_id"], data["last"]) == ("completed", str(ended.message_id), None)
    assert night.reap(at=60 + GRACE_MS / 1000 + 1) == {}


def test_a_stream_that_is_closed_already_is_only_settled(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    ended = night.settle(run, tokens=5)
    publishing.announce_end(ended, text="x")
    night.hold(run)
    before = night.events(run)
    night.reap(at=GRACE_MS / 1000 + 0.1)
    assert (night.events(run), night.held(run)) == (before, set())


def test_the_hold_of_a_superseded_admission_is_settled_by_its_own_rows(night: Night) -> None:
    run = night.accept()
    superseded = run.admission_id
    claimed = night.claim(run)
    night.settle(claimed, tokens=5)
    Run.objects.filter(id=run.id).update(
        status=Status.QUEUED, finished_at=None, epoch=2, base_epoch=2, admission_id=uuid4()
    )
    run.refresh_from_db()
    night.enqueue(run, at=GRACE_MS / 1000)
    night.hold(run, admission_id=superseded)
    assert night.reap(at=GRACE_MS / 1000 + 0.1) == {"settled": 1}
    assert (night.held(run), night.account(run)["used"]) == (set(), "8")


def test_an_orphaned_hold_is_dropped_only_by_a_rebuild(night: Night) -> None:
    """Its web process died, or is only slow: then the new generation voids its acceptance."""
    run = night.claim(night.accept())
    night.hold(run, admission_id=uuid4(), confirmed=False)
    night.beat(at=UNCONFIRMED_MS / 1000, held=(f"{run.id}:1",))
    assert night.reap(at=UNCONFIRMED_MS / 1000 - 0.1) == {}
    assert night.reap(at=UNCONFIRMED_MS / 1000) == {"rebuilt": 1}
    assert night.held(run) == {str(run.admission_id)}
    assert (night.account(run)["gen"], billing.account_generation(user_id=run.owner_id)) == ("2", 2)


def test_a_hold_whose_turn_was_accepted_in_time_stays(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run, confirmed=False)
    night.beat(at=2 * UNCONFIRMED_MS / 1000, held=(f"{run.id}:1",))
    assert night.reap(at=2 * UNCONFIRMED_MS / 1000) == {}
    assert night.held(run) == {str(run.admission_id)}


def test_an_account_that_redis_lost_comes_back_while_its_answer_runs(night: Night) -> None:
    run = night.claim(night.accept())
    billing.account_generation(user_id=run.owner_id)
    assert night.reap(at=1) == {"rebuilt": 1}
    assert (night.account(run), night.held(run)) == ({"gen": "2", "used": "0"}, {str(run.admission_id)})
    assert night.reap(at=2) == {}


def test_an_account_that_fell_behind_is_rebuilt_unless_somebody_is_at_it(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    billing.advance_generation(user_id=run.owner_id)
    assert admission.elected(night.cell, user_id=run.owner_id)
    assert night.reap(at=1) == {}
    night.cell.run(lambda client: client.delete(night.keys.rebuilder(run.owner_id)))
    assert night.reap(at=2) == {"rebuilt": 1}
    assert night.account(run)["gen"] == str(billing.account_generation(user_id=run.owner_id))


def test_runs_that_wait_beside_idle_workers_are_given_tickets(valkey: Valkey, night: Night) -> None:
    waiting = [night.accept() for _ in range(3)]
    for run in waiting:
        night.hold(run)
        night.enqueue(run)
    for run in waiting[1:]:
        key, name = night.keys.reservations(run.owner_id), str(run.admission_id)
        night.cell.run(lambda client, key=key, name=name: client.hset(key, name, "t|1|9|1|0"))  # type: ignore[misc]
    night.beat(at=1)
    assert "woke" not in night.reap(at=GRACE_MS / 1000 - 0.1)
    night.beat(at=GRACE_MS / 1000)
    assert night.reap(at=GRACE_MS / 1000)["woke"] == REPORT.slots
    assert tickets(valkey) == REPORT.slots


def test_runs_that_wait_for_busy_workers_are_given_none(valkey: Valkey, night: Night) -> None:
    for _ in range(REPORT.slots):
        night.claim(night.accept(), at=1)
    night.enqueue(night.accept())
    night.beat(at=GRACE_MS / 1000)
    assert "woke" not in night.reap(at=GRACE_MS / 1000)
    assert tickets(valkey) == 0


@pytest.fixture
def two_workers(valkey: Valkey, pool: ModelPool) -> Iterator[list[Worker]]:
    hired = [Worker(pool=pool, valkey=valkey, slots=4) for _ in range(2)]
    yield hired
    for worker in hired:
        worker.close()


@pytest.mark.django_db(transaction=True)
def test_an_answer_of_a_silent_worker_is_finished_by_another_word_for_word(
    valkey: Valkey, accept: Callable[..., Run], two_workers: list[Worker]
) -> None:
    zombie, successor = two_workers
    ids = TOKENIZER.encode_chat([ChatTurn("user", "[[tokens=120 tps=100]]")])
    run = accept(prompt_ids=ids, max_output_tokens=1000, now=datetime.now(UTC))
    assert publishing.enqueue(run)
    ticket = zombie.ticket()
    cell = store.connector().cell()

    def events() -> list[tuple[str, dict[str, Any]]]:
        rows = look(cell, lambda client: client.xrange(cell.keys.stream(run.id)))
        return [(fields["t"], json.loads(fields["d"])) for _, fields in rows]

    wait_for(lambda: len(events()) > 5, what="it shows something")
    # It goes on generating, and tells nobody that it lives.
    zombie.host._loop.call_soon_threadsafe(zombie.host._tasks[0].cancel)
    later = datetime.now(UTC) + timedelta(seconds=2 * LONG_AFTER)
    run.refresh_from_db()
    assert reaper.take_over(cell, run, now=later)
    successor.serve()
    ticket.join(timeout=30)
    run.refresh_from_db()
    assert (run.status, run.epoch, run.output_tokens) == (Status.DONE, 2, 120)
    shown = "".join(data["text"] for kind, data in events() if kind == "delta")
    assert shown == TOKENIZER.decode(zombie.engine.answer_ids(ids))
    assert [data["continues"] for kind, data in events() if kind == "started" and data["epoch"] == 2] == [True]
    assert events()[-1][0] == "completed"
    assert events()[-1][1]["last"] is not None
    rows = UsageEntry.objects.filter(run_id=run.id).order_by("epoch")
    assert [row.reason for row in rows] == ["lost", "completed"]
    assert sum(row.output_tokens for row in rows) == 120
    assert sum(row.prompt_tokens for row in rows) == run.prompt_tokens


def test_the_task_makes_one_pass(valkey: Valkey, night: Night) -> None:
    from inference import tasks

    run = night.accept(now=datetime.now(UTC))
    tasks.reap()
    assert night.waiting == [f"{run.id}:1"]
