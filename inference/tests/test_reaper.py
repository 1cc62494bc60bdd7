"""The reaper on real parts: whatever died or was forgotten, every run ends and every hold is settled."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, close_old_connections

from billing import api as billing
from billing.models import UsageEntry
from inference import admission, publishing, reaper, runs, serving, store, takeover, token_ids
from inference.cell import purge as purge_module
from inference.cell import queue, stream, workers
from inference.cell.link import Cell
from inference.cell.purge import Purge
from inference.cell.queue import Ticketed
from inference.cell.workers import LEASE_MS, Report
from inference.models import Attempt, ModelPool, Run
from inference.reaper import CANCEL_GRACE, DEADLINE_GRACE, GRACE_MS, UNCONFIRMED_MS
from inference.runs import Ending
from inference.testing import queued
from inference.tests.support import ask, empty_account, hung, look, restart
from inference.tests.test_serving import TOKENIZER, Worker
from inference.tests.threads import at_once
from inference.tests.yard import waiting
from inference.tokenization import ChatTurn
from tests.services import Valkey
from tests.waiting import wait_for

Status = Run.Status
REPORT = Report(engine="scripted", model="m", slots=2, running=0, waiting=0, kv_usage=0.0, output_tokens=0, room=2)


class Night:
    """A cell and its database after something went wrong; `at` seconds later the reaper comes."""

    def __init__(self, *, accept: Callable[..., Run], now: datetime) -> None:
        self.accept = accept
        self.now = now
        self.purge = Purge()

    @property
    def cell(self) -> Cell:
        return store.connector().cell()

    @property
    def keys(self) -> Any:
        return self.cell.keys

    def ms(self, at: float) -> int:
        return int((self.now + timedelta(seconds=at)).timestamp() * 1000)

    def reap(
        self, *, at: float, meanwhile: Callable[[], object] = lambda: None, stays_in_sight: bool = True
    ) -> dict[str, int]:
        """One pass; `meanwhile` happens while it watches whether Redis stays in sight."""

        def watch(cell: Cell) -> bool:
            meanwhile()
            return stays_in_sight

        return dict(reaper.reap(now=self.now + timedelta(seconds=at), watch=watch, purge=self.purge))

    def beat(self, *, at: float, boot_id: str = "w", held: tuple[str, ...] = ()) -> None:
        self.cell.call(
            workers.heartbeat(self.keys, pool="default", boot_id=boot_id, report=REPORT, held=held, now_ms=self.ms(at))
        )

    def enqueue(self, run: Run, *, at: float = 0) -> None:
        self.cell.call(
            queue.enqueue(
                self.keys,
                pool="default",
                policy=None,
                waiting=waiting(
                    run.id,
                    epoch=run.epoch,
                    base_epoch=run.base_epoch,
                    user_id=run.owner_id,
                    tier=run.tier,
                    admission_id=run.admission_id,
                    since_ms=self.ms(at),
                ),
                now_ms=self.ms(at),
            )
        )

    def pop(self, *, at: float = 0, boot_id: str = "w") -> Ticketed | None:
        call = queue.claim(self.keys, pool="default", boot_id=boot_id, room_tokens=workers.NO_BOUND, now_ms=self.ms(at))
        claimed = queue.read_claim(self.cell.call(call))
        assert not isinstance(claimed, queue.Later)
        return claimed

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

    def settle(self, run: Run, *, tokens: int, at: float = 0, first_token_at: datetime | None = None) -> Run:
        ending = Ending(
            status=Status.DONE, text="x", own_tokens=tokens, output_tokens=tokens, first_token_at=first_token_at
        )
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
        self.cell.call(empty_account(self.keys, user_id=run.owner_id))
        value = f"{run.turn}|1|103|{int(confirmed)}|{self.ms(at)}"
        name = str(admission_id or run.admission_id)
        self.cell.run(lambda client: client.hset(self.keys.reservations(run.owner_id), name, value))
        self.cell.run(lambda client: client.sadd(self.keys.holders(), str(run.owner_id)))

    @property
    def waiting(self) -> list[str]:
        return list(self.cell.run(lambda client: queued(client, self.keys, pool="default")))

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
CLIENT_TIMEOUT_S = 2.0


def test_where_nothing_is_wrong_nothing_is_done(valkey: Valkey, night: Night) -> None:
    waiting, running = night.accept(), night.accept()
    night.hold(waiting)
    name = str(running.admission_id)
    night.cell.run(lambda c: c.hset(night.keys.reservations(running.owner_id), name, "t|1|9|1|0"))
    claimed = night.claim(running)
    night.enqueue(waiting, at=9)
    night.beat(at=9, held=(f"{claimed.id}:1", "another's:1"))
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
    bound = run.pool.queue_wait_s
    assert "gave_up" not in night.reap(at=bound - 1)
    assert night.reap(at=bound)["gave_up"] == 1
    run.refresh_from_db()
    assert (run.status, run.error_code) == (Status.FAILED, "queue_timeout")
    assert (night.waiting, night.held(run), night.ledger(run)) == ([], set(), [])
    assert night.events(run)[-1][0] == "failed"


def test_each_pool_has_its_own_wait(night: Night, pool: ModelPool) -> None:
    ModelPool.objects.filter(id=pool.id).update(queue_wait_s=7)
    pool.refresh_from_db()
    run = night.accept(pool=pool)
    assert "gave_up" not in night.reap(at=6.9)
    assert night.reap(at=7)["gave_up"] == 1
    run.refresh_from_db()
    assert run.error_code == "queue_timeout"


def test_a_requeued_run_waits_until_the_deadline_of_its_generation_and_keeps_its_text(night: Night) -> None:
    run = night.claim(night.accept(), at=100)
    night.publish(run, "so far")
    assert night.reap(at=300)["took_over"] == 1
    end = 100 + run.pool.generation_s
    assert "gave_up" not in night.reap(at=end - 1)
    assert night.reap(at=end)["gave_up"] == 1
    run.refresh_from_db()
    assert (run.status, run.error_code, run.output_tokens) == (Status.INTERRUPTED, "deadline", 1)
    assert night.ledger(run) == [(1, "lost", 0, 1, 3), (2, "interrupted", 3, 0, 0)]
    [*_, (kind, data)] = night.events(run)
    assert (kind, data["code"]) == ("interrupted", "deadline")
    assert data["last"] is not None


def test_without_redis_waiting_too_long_still_ends(valkey: Valkey, night: Night) -> None:
    run = night.accept()
    valkey.kill()
    assert night.reap(at=run.pool.queue_wait_s) == {"gave_up": 1}
    run.refresh_from_db()
    assert run.status == Status.FAILED


def test_while_redis_hangs_all_that_wait_too_long_end_at_once(valkey: Valkey, night: Night) -> None:
    waiting = [night.accept() for _ in range(8)]
    for run in waiting:
        night.hold(run)
        night.enqueue(run)
    at = waiting[0].pool.queue_wait_s
    began = time.monotonic()
    with hung(valkey):
        assert night.reap(at=at) == {"gave_up": 8}
    assert time.monotonic() - began < 2 * CLIENT_TIMEOUT_S, "Redis is asked once, not for each"
    assert {run.status for run in Run.objects.all()} == {Status.FAILED}
    assert night.reap(at=at + GRACE_MS / 1000 + 0.1)["closed"] == 8
    for run in waiting:
        assert (night.held(run), night.events(run)[-1][0]) == (set(), "failed")


@pytest.mark.parametrize(("texts", "status"), [(["so ", "far "], Status.INTERRUPTED), ([], Status.FAILED)])
def test_an_answer_that_its_worker_does_not_end_at_the_deadline_is_ended(
    night: Night, texts: list[str], status: Run.Status
) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    night.publish(run, *texts)
    end = run.pool.generation_s + DEADLINE_GRACE.total_seconds()
    night.beat(at=end, held=(f"{run.id}:1",))
    assert night.reap(at=end - 0.1) == {}
    assert night.reap(at=end) == {"ended": 1}
    run.refresh_from_db()
    assert (run.status, run.error_code, run.output_tokens) == (status, "deadline", len(texts))
    assert night.append(run, "too late", 99, seq=9) == "stop"
    assert night.held(run) == set()


def test_a_stopped_answer_that_its_worker_does_not_end_is_ended(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    night.publish(run, "so ", "far ")
    runs.request_cancel(run_id=run.id, now=night.now)
    end = CANCEL_GRACE.total_seconds()
    night.beat(at=end, held=(f"{run.id}:1",))
    assert night.reap(at=end - 0.1) == {}
    assert night.reap(at=end) == {"ended": 1}
    run.refresh_from_db()
    assert (run.status, run.output_tokens, run.release_ms) == (Status.CANCELLED, 2, end * 1000)


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


@pytest.mark.parametrize("texts", [(), ("so ", "far ")])
def test_notices_are_told_by_whoever_shows_the_first_text(night: Night, texts: tuple[str, ...]) -> None:
    notice = {"code": "context_trimmed", "text": "The oldest messages were left out."}
    run = night.accept()
    Run.objects.filter(id=run.id).update(context={"notices": [notice]})
    claimed = night.claim(run)
    if texts:
        night.publish(claimed, *texts)
    night.reap(at=LONG_AFTER)
    successor = night.claim(run, at=LONG_AFTER)
    assert successor.epoch == 2
    told = serving.assignment_of(successor, incarnation="i", now=night.now).notices
    assert list(told) == ([] if texts else [notice])


def test_an_answer_whose_lease_is_renewed_is_left_alone(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    night.beat(at=LONG_AFTER, held=(f"{run.id}:1",))
    assert night.reap(at=LONG_AFTER) == {}


def test_a_missing_lease_counts_only_where_redis_stays_in_sight(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    restart(valkey)
    store.connector().close()
    assert "took_over" not in night.reap(at=10, stays_in_sight=False)
    assert night.reap(at=11)["took_over"] == 1
    run.refresh_from_db()
    assert run.epoch == 2


def test_workers_that_beat_again_after_a_stall_of_redis_keep_their_answers(night: Night) -> None:
    """For the length of the stall no lease was renewed, and Redis answers the reaper first."""
    kept, lost = night.claim(night.accept()), night.claim(night.accept(), boot_id="gone")
    names = (f"{kept.id}:1",)
    # By a clock that is behind: what counts is that it was renewed.
    found = night.reap(at=LONG_AFTER, meanwhile=lambda: night.beat(at=0.2, held=names))
    assert found["took_over"] == 1
    kept.refresh_from_db()
    lost.refresh_from_db()
    assert (kept.epoch, lost.epoch) == (1, 2)


def test_a_lease_that_comes_while_the_reaper_watches_is_its_workers(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    restart(valkey)
    store.connector().close()
    assert "took_over" not in night.reap(at=10, meanwhile=lambda: night.beat(at=10, held=(f"{run.id}:1",)))
    run.refresh_from_db()
    assert run.epoch == 1


def test_an_answer_that_ends_while_the_reaper_watches_is_left_alone(night: Night) -> None:
    run = night.claim(night.accept())
    night.publish(run, "text")
    assert "took_over" not in night.reap(at=LONG_AFTER, meanwhile=lambda: night.settle(run, tokens=1, at=LONG_AFTER))
    assert night.append(run, "and more", 99, seq=3) == "ok", "its stream is not sealed"


def test_a_redis_that_hangs_shows_no_lost_worker(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    with hung(valkey):
        assert night.reap(at=LONG_AFTER) == {}
    run.refresh_from_db()
    assert run.epoch == 1


def test_a_pass_of_its_own_takes_over_what_is_lost(night: Night) -> None:
    run = night.claim(night.accept())
    assert reaper.reap(now=night.now + timedelta(seconds=LONG_AFTER))["took_over"] == 1
    run.refresh_from_db()
    assert run.epoch == 2


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


def test_a_reaper_that_looked_an_epoch_ago_takes_nothing_from_the_successor(night: Night) -> None:
    claimed = night.claim(night.accept())
    night.publish(claimed, "one")
    looked_at = Run.objects.get(id=claimed.id)
    assert takeover.take_over(night.cell, looked_at, now=night.now)
    successor = night.claim(claimed, boot_id="v")
    assert (successor.epoch, successor.stream_incarnation) == (2, looked_at.stream_incarnation)
    assert not takeover.take_over(night.cell, looked_at, now=night.now)
    run = Run.objects.get(id=claimed.id)
    assert (run.status, run.epoch) == (Status.STREAMING, 2)
    assert UsageEntry.objects.filter(run_id=run.id).count() == 1


def test_a_reaper_that_comes_when_the_answer_has_ended_changes_nothing(night: Night) -> None:
    claimed = night.claim(night.accept())
    night.publish(claimed, "one")
    looked_at = Run.objects.get(id=claimed.id)
    ended = night.settle(claimed, tokens=1)
    charged = night.ledger(ended)
    assert not takeover.take_over(night.cell, looked_at, now=night.now)
    run = Run.objects.get(id=claimed.id)
    assert (run.status, run.epoch, night.ledger(run)) == (Status.DONE, 1, charged)
    assert [attempt.outcome for attempt in run.attempts.all()] == [Attempt.Outcome.DONE]


def test_an_owner_that_proves_itself_in_a_new_redis_keeps_its_run(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    restart(valkey)
    store.connector().close()
    # Between the reaper's look and its commit the owner verifies: the compare-and-swap must fail.
    assert runs.verify_owner(run_id=run.id, epoch=1, incarnation=night.keys.incarnation)
    assert not takeover.take_over(night.cell, run, now=night.now)
    run.refresh_from_db()
    assert (run.status, run.epoch, night.ledger(run)) == (Status.STREAMING, 1, [])


def test_a_lost_answer_whose_cancel_was_asked_for_is_cancelled(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    night.publish(run, "so ", "far ")
    runs.request_cancel(run_id=run.id, now=night.now + timedelta(seconds=LONG_AFTER - 1))
    assert night.reap(at=LONG_AFTER) == {"took_over": 1}
    run.refresh_from_db()
    assert (run.status, run.error_code, run.output_tokens) == (Status.CANCELLED, "cancelled", 2)
    assert run.release_ms == 1000
    assert night.ledger(run) == [(1, "cancelled", 3, 2, 0)]
    [*_, (kind, data)] = night.events(run)
    assert (kind, data["last"]) == ("cancelled", "1-3")
    assert (night.held(run), night.account(run)["used"], night.waiting) == (set(), "5", [])


def drain(night: Night, run: Run, *, at: float) -> bool:
    """The run's worker goes."""
    now = night.now + timedelta(seconds=at)
    return takeover.hand_over(run_id=run.id, epoch=run.epoch, cause=Attempt.Outcome.DRAINED, now=now)


def test_a_run_that_used_up_its_epochs_ends_interrupted_with_its_text(night: Night, pool: ModelPool) -> None:
    run = night.accept()
    at = 0.0
    for epoch in range(1, pool.max_epochs + 1):
        claimed = night.claim(run, at=at)
        night.publish(claimed, f"part {epoch} ", first_id=10 * epoch)
        at += LONG_AFTER
        assert night.reap(at=at)["took_over"] == 1
    run.refresh_from_db()
    assert (run.status, run.error_code, run.epoch) == (Status.INTERRUPTED, "worker_lost", 3)
    assert run.output_tokens == 3
    assert [row[:4] for row in night.ledger(run)] == [
        (1, "lost", 0, 1),
        (2, "lost", 0, 1),
        (3, "interrupted", 3, 1),
    ]
    assert night.events(run)[-1][0] == "interrupted"
    assert night.events(run)[-1][1]["last"] is not None


def test_a_pool_decides_how_many_workers_may_be_lost(night: Night, pool: ModelPool) -> None:
    ModelPool.objects.filter(id=pool.id).update(max_epochs=1)
    run = night.claim(night.accept())
    night.publish(run, "text")
    night.reap(at=LONG_AFTER)
    run.refresh_from_db()
    assert (run.status, run.epoch) == (Status.INTERRUPTED, 1)


def test_a_worker_that_goes_hands_its_answer_over_and_the_next_one_says_so(valkey: Valkey, night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    ids = night.publish(run, "so ", "far ")
    assert drain(night, run, at=1)
    run.refresh_from_db()
    assert (run.status, run.epoch, token_ids.unpack(run.carry_ids)) == (Status.QUEUED, 2, ids)
    assert [attempt.outcome for attempt in run.attempts.all()] == ["drained"]
    assert night.ledger(run) == [(1, "lost", 0, 2, 3)]
    assert (night.waiting, tickets(valkey)) == ([f"{run.id}:2"], 1)
    successor = night.claim(run, at=1, boot_id="another")
    assert serving.assignment_of(successor, incarnation="i", now=night.now).started["reason"] == "drained"
    cause = Attempt.Outcome.DRAINED
    assert not takeover.hand_over(run_id=run.id, epoch=1, cause=cause, now=night.now), "only the present owner may"


def test_handing_over_uses_up_no_epoch(night: Night, pool: ModelPool) -> None:
    run = night.accept()
    for _ in range(2 * pool.max_epochs):
        assert drain(night, night.claim(run), at=0)
    at = 0.0
    for _ in range(pool.max_epochs - 1):
        night.claim(run, at=at)
        at += LONG_AFTER
        night.reap(at=at)
        run.refresh_from_db()
        assert run.status == Status.QUEUED
    night.claim(run, at=at)
    night.reap(at=at + LONG_AFTER)
    run.refresh_from_db()
    assert (run.status, run.error_code) == (Status.INTERRUPTED, "worker_lost")


def test_handing_over_without_end_ends(night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_DRAINS", 3)
    run = night.accept()
    for _ in range(3):
        drain(night, night.claim(run), at=0)
    run.refresh_from_db()
    assert (run.status, run.error_code, run.epoch) == (Status.INTERRUPTED, "worker_stopped", 3)


def test_an_answer_past_its_deadline_is_handed_to_nobody(night: Night, pool: ModelPool) -> None:
    run = night.claim(night.accept())
    night.publish(run, "text")
    assert drain(night, run, at=pool.generation_s)
    run.refresh_from_db()
    assert (run.status, run.error_code) == (Status.INTERRUPTED, "deadline")


def test_what_was_begun_is_served_before_what_came_since(night: Night) -> None:
    begun = night.claim(night.accept())
    newcomer = night.accept(now=night.now + timedelta(seconds=1))
    night.enqueue(newcomer, at=1)
    drain(night, begun, at=2)
    assert night.pop() == Ticketed(run_id=begun.id, epoch=2)


def test_the_first_token_is_the_first_epochs_whoever_takes_over(night: Night) -> None:
    run = night.claim(night.accept())
    first = night.now + timedelta(seconds=1)
    night.publish(run)
    call = stream.append(
        night.keys, run_id=run.id, epoch=1, seq=2, kind="delta", data={"text": "a"}, ids=[1], now_ms=night.ms(1)
    )
    assert night.cell.call(call) == "ok"
    night.reap(at=LONG_AFTER)
    successor = night.claim(run, at=LONG_AFTER)
    night.publish(successor, "b")
    ended = night.settle(successor, tokens=1, first_token_at=night.now + timedelta(seconds=30))
    assert ended.first_token_at == first


def test_a_lapsed_lease_is_taken_over_at_once_and_told_of_no_more(night: Night) -> None:
    run = night.claim(night.accept())
    night.publish(run, "text")
    name = f"{run.id}:1"
    assert takeover.take_over_lapsed(pool="default", names=[name], now=datetime.now(UTC)) == 1
    run.refresh_from_db()
    assert (run.status, run.epoch) == (Status.INTERRUPTED, 1), "its deadline passed long ago"
    lapsed = night.cell.call(
        workers.heartbeat(night.keys, pool="default", boot_id="w2", report=REPORT, held=(), now_ms=store.now_ms())
    )[1]
    assert lapsed == []


def test_a_take_over_that_fails_is_told_of_again_and_keeps_no_other_waiting(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = night.claim(night.accept()), night.claim(night.accept())
    take_over = runs.take_over

    def broken(*, run_id: UUID, **arguments: Any) -> Any:
        if run_id == bad.id:
            raise OperationalError("the database is away")
        return take_over(run_id=run_id, **arguments)

    monkeypatch.setattr(runs, "take_over", broken)
    names = [f"{bad.id}:1", f"{good.id}:1"]
    assert takeover.take_over_lapsed(pool="default", names=names, now=datetime.now(UTC)) == 1
    call = workers.heartbeat(
        night.keys, pool="default", boot_id="w2", report=REPORT, held=(), now_ms=night.ms(LONG_AFTER)
    )
    assert night.cell.call(call)[1] == [f"{bad.id}:1"]


def test_a_lease_that_was_renewed_meanwhile_is_left_alone(night: Night) -> None:
    run = night.claim(night.accept(now=datetime.now(UTC)))
    night.cell.call(
        workers.heartbeat(
            night.keys, pool="default", boot_id="w", report=REPORT, held=(f"{run.id}:1",), now_ms=store.now_ms()
        )
    )
    assert takeover.take_over_lapsed(pool="default", names=[f"{run.id}:1"], now=datetime.now(UTC)) == 0
    run.refresh_from_db()
    assert (run.status, run.epoch) == (Status.STREAMING, 1)


def test_the_lapsed_lease_of_a_run_that_is_over_is_dropped(night: Night) -> None:
    run = night.claim(night.accept())
    night.settle(run, tokens=1)
    assert takeover.take_over_lapsed(pool="default", names=[f"{run.id}:1"], now=datetime.now(UTC)) == 0
    leases = look(night.cell, lambda client: client.zcard(night.keys.leases("default")))
    assert leases == 0


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


@pytest.mark.parametrize("broken", ["_requeue", "_wake", "_close_left_open", "_tidy_accounts"])
def test_one_rule_that_fails_keeps_no_other_from_being_followed(
    night: Night, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    night.claim(night.accept())
    night.enqueue(night.accept())

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(reaper, broken, fail)
    assert night.reap(at=LONG_AFTER)["took_over"] == 1


def test_one_pool_that_fails_keeps_no_other_waiting(night: Night, pool: ModelPool) -> None:
    other = ModelPool.objects.create(slug="other", model="m", context_window=4096)
    runs_of = [night.accept(pool=other), night.accept(pool=pool)]
    night.cell.run(lambda client: client.set(night.keys.leases("other"), "not a sorted set"))
    assert night.reap(at=1)["queued"] == 1
    assert night.waiting == [f"{runs_of[1].id}:1"]


@pytest.mark.django_db(transaction=True)
def test_of_several_reapers_at_once_one_takes_over(night: Night) -> None:
    run = night.claim(night.accept())
    night.publish(run, "so far")
    later = night.now + timedelta(seconds=LONG_AFTER)
    results = at_once([partial(takeover.take_over, night.cell, run, now=later) for _ in range(4)])
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


def test_a_stream_is_closed_although_its_runs_hold_is_gone(night: Night) -> None:
    """Its terminal event was lost on the way to Redis, or a rebuild dropped the hold before it was appended."""
    run = night.claim(night.accept())
    night.publish(run, "text")
    night.settle(run, tokens=5)
    assert night.held(run) == set()
    assert night.reap(at=GRACE_MS / 1000 + 0.1) == {"closed": 1}
    assert night.events(run)[-1][0] == "completed"
    assert night.reap(at=GRACE_MS / 1000 + 1) == {}


def test_the_stream_of_a_run_that_was_erased_is_not_looked_for_again(night: Night) -> None:
    run = night.claim(night.accept())
    night.publish(run, "text")
    night.settle(run, tokens=5)
    Run.objects.filter(id=run.id).delete()
    assert night.reap(at=GRACE_MS / 1000 + 0.1) == {}
    assert look(night.cell, lambda client: stream.left_open(client, night.keys)) == set()


def test_a_stream_that_is_closed_already_is_only_settled(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    ended = night.settle(run, tokens=5)
    publishing.announce_end(ended, text="x")
    night.hold(run)
    before = night.events(run)
    assert night.reap(at=GRACE_MS / 1000 + 0.1) == {"settled": 1}
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
    assert (night.account(run)["gen"], night.account(run)["used"]) == ("2", "0")
    assert night.held(run) == {str(run.admission_id)}
    assert night.reap(at=1.2) == {}


def test_an_account_that_fell_behind_is_rebuilt_unless_somebody_is_at_it(night: Night) -> None:
    run = night.claim(night.accept())
    night.hold(run)
    billing.advance_generation(user_id=run.owner_id)
    assert admission.elected(night.cell, user_id=run.owner_id)
    assert night.reap(at=1) == {}
    night.cell.run(lambda client: client.delete(night.keys.rebuilder(run.owner_id)))
    assert night.reap(at=1.2) == {"rebuilt": 1}
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
    held = [night.claim(night.accept(), at=1) for _ in range(REPORT.slots)]
    night.enqueue(night.accept())
    night.beat(at=GRACE_MS / 1000, held=tuple(f"{run.id}:1" for run in held))
    assert "woke" not in night.reap(at=GRACE_MS / 1000)
    assert tickets(valkey) == 0


def successor_is_due(run: Run) -> bool:
    """Whether the next epoch waits. It is queued only after the database has it."""
    close_old_connections()
    if not Run.objects.filter(id=run.id, status=Status.QUEUED, epoch=2).exists():
        return False
    cell = store.connector().cell()
    return f"{run.id}:2" in cell.run(lambda client: queued(client, cell.keys, pool="default"))


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
    ids = TOKENIZER.encode_chat([ChatTurn("user", "[[tokens=300 tps=30]]")])
    run = accept(prompt_ids=ids, max_output_tokens=1000, now=datetime.now(UTC))
    assert publishing.enqueue(run)
    ticket = zombie.ticket()
    cell = store.connector().cell()

    def events() -> list[tuple[str, dict[str, Any]]]:
        rows = look(cell, lambda client: client.xrange(cell.keys.stream(run.id)))
        return [(fields["t"], json.loads(fields["d"])) for _, fields in rows]

    wait_for(lambda: len(events()) > 5, what="it shows something")
    # It goes on generating, and tells nobody that it lives: the other worker hears that its lease lapsed. (It must not
    # claim the next epoch itself when its stream refuses it.)
    zombie.host._leaving = True
    zombie.host._heart.stop()
    wait_for(lambda: successor_is_due(run), what="it is taken over")

    def is_over() -> bool:
        # On a busy machine the successor may lose a lease as well, and take its own answer over.
        successor.serve()
        run.refresh_from_db()
        return not run.is_active

    wait_for(is_over, what="the answer is finished", seconds=60)
    ticket.join(timeout=30)
    assert (run.status, run.output_tokens) == (Status.DONE, 300)
    assert run.epoch >= 2
    shown = "".join(data["text"] for kind, data in events() if kind == "delta")
    assert shown == TOKENIZER.decode(zombie.engine.answer_ids(ids))
    continued = [data["continues"] for kind, data in events() if kind == "started" and data["epoch"] > 1]
    assert continued == [True] * (run.epoch - 1)
    assert events()[-1][0] == "completed"
    assert events()[-1][1]["last"] is not None
    rows = UsageEntry.objects.filter(run_id=run.id).order_by("epoch")
    assert [row.reason for row in rows] == ["lost"] * (run.epoch - 1) + ["completed"]
    assert sum(row.output_tokens for row in rows) == 300
    assert sum(row.prompt_tokens for row in rows) == run.prompt_tokens


def test_keys_of_dead_incarnations_are_dropped_a_step_at_a_time_and_nothing_else(
    valkey: Valkey, night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_module, "STEP", 100)
    waiting = night.accept()
    night.hold(waiting)
    night.enqueue(waiting)
    dead = [f"{{c0}}:dead{number % 3}:stream:{number}" for number in range(2000)]
    ask(valkey, lambda client: client.mset(dict.fromkeys([*dead, "{c1}:dead:x", "chatsite:celery:x", "other"], "1")))
    mine: list[str] = ask(valkey, lambda client: client.keys(f"{night.keys.prefix}*"))
    steps = 0
    while night.reap(at=0).get("purged") or steps == 0:
        steps += 1
    assert steps > 5, "not all at once"
    left: list[str] = ask(valkey, lambda client: client.keys("*"))
    assert sorted(left) == sorted([*mine, "{c1}:dead:x", "chatsite:celery:x", "other"])


def test_one_walk_through_the_keys_is_enough_until_redis_restarts(valkey: Valkey, night: Night) -> None:
    assert night.reap(at=0) == {}
    ask(valkey, lambda client: client.set("{c0}:dead:x", "1"))
    assert night.reap(at=1) == {}
    restart(valkey)
    ask(valkey, lambda client: client.set("{c0}:dead:x", "1"))
    store.connector().close()
    assert night.reap(at=2) == {"purged": 1}


def test_the_task_makes_one_pass(valkey: Valkey, night: Night) -> None:
    from inference import tasks

    run = night.accept(now=datetime.now(UTC))
    tasks.reap()
    assert night.waiting == [f"{run.id}:1"]
