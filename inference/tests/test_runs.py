"""The state machine of runs: every transition happens once, from the state it names, with one charge."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, transaction

from billing.models import UsageEntry
from inference import runs, token_ids
from inference.contracts import SettledRun
from inference.errors import ChatBusy
from inference.models import Attempt, Run
from inference.runs import Ending
from inference.signals import run_settled
from inference.tests.threads import at_once

Accept = Callable[..., Run]
Status = Run.Status


def claim(run: Run, *, epoch: int = 1, worker: str = "w", now: datetime) -> Run | None:
    return runs.claim(run_id=run.id, epoch=epoch, worker=worker, incarnation="i1", now=now)


def ending(status: Run.Status = Status.DONE, *, tokens: int = 5, **more: Any) -> Ending:
    given: dict[str, Any] = {"text": "x" * tokens, "own_tokens": tokens, "output_tokens": tokens, **more}
    return Ending(status=status, **given)


def settle(run: Run, end: Ending, *, epoch: int = 1, now: datetime) -> Run | None:
    return runs.settle(run_id=run.id, epoch=epoch, ending=end, now=now)


def ledger(run: Run) -> list[tuple[int, str, int, int, int, int]]:
    """Epoch, reason and prompt, cached, output, wasted tokens of each row."""
    rows = UsageEntry.objects.filter(run_id=run.id).order_by("epoch")
    return list(rows.values_list("epoch", "reason", "prompt_tokens", "cached_tokens", "output_tokens", "wasted_tokens"))


@contextmanager
def heard() -> Iterator[list[SettledRun]]:
    """What is told of settled runs meanwhile."""
    told: list[SettledRun] = []

    def listen(*, settled: SettledRun, **_: Any) -> None:
        told.append(settled)

    run_settled.connect(listen)
    try:
        yield told
    finally:
        run_settled.disconnect(listen)


def test_an_accepted_run_waits_in_its_first_epoch(accept: Accept, now: datetime) -> None:
    run = Run.objects.get(id=accept().id)
    assert (run.status, run.epoch, run.base_epoch) == (Status.QUEUED, 1, 1)
    assert token_ids.unpack(run.prompt_ids) == [1, 2, 3]
    assert (run.prompt_tokens, run.reserved_tokens, run.created_at) == (3, 103, now)


def test_a_chat_has_one_active_run_and_a_second_is_told_which(accept: Accept) -> None:
    first = accept()
    with pytest.raises(ChatBusy) as refusal:
        accept(chat_id=first.chat_id)
    assert refusal.value.run_id == first.id
    assert Run.objects.count() == 1


def test_a_chat_whose_run_is_over_takes_the_next(accept: Accept, now: datetime) -> None:
    first = accept()
    runs.cancel_queued(run_id=first.id, now=now)
    assert accept(chat_id=first.chat_id).id != first.id


def test_a_run_id_that_is_taken_is_no_busy_chat(accept: Accept) -> None:
    first = accept()
    with pytest.raises(IntegrityError):
        accept(run_id=first.id)


def test_a_claim_makes_an_owner_and_an_attempt(accept: Accept, now: datetime) -> None:
    claimed = claim(accept(), now=now)
    assert claimed is not None
    assert (claimed.status, claimed.stream_incarnation, claimed.claimed_at) == (Status.STREAMING, "i1", now)
    [attempt] = Attempt.objects.filter(run=claimed)
    assert (attempt.epoch, attempt.worker, attempt.outcome) == (1, "w", Attempt.Outcome.RUNNING)


@pytest.mark.parametrize("epoch", [0, 2])
def test_only_the_present_epoch_can_be_claimed(accept: Accept, now: datetime, epoch: int) -> None:
    run = accept()
    assert claim(run, epoch=epoch, now=now) is None
    assert Run.objects.get(id=run.id).status == Status.QUEUED
    assert not Attempt.objects.exists()


def retry(run: Run, *, epoch: int = 1, now: datetime, **changes: Any) -> Run | None:
    given: dict[str, Any] = {
        "pool": run.pool, "model": "m2", "admission_id": uuid4(), "prompt_ids": [7, 8], "max_output_tokens": 50,
        "context": {"trimmed": True}, "replaced_text": "xx",
    }  # fmt: skip
    with transaction.atomic():
        return runs.retry(run_id=run.id, epoch=epoch, now=now, **given | changes)


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.FAILED, Status.INTERRUPTED])
def test_a_run_that_did_not_end_as_it_should_can_be_queued_anew(accept: Accept, now: datetime, status: str) -> None:
    run = accept()
    claim(run, now=now)
    settled = settle(run, ending(Status(status), tokens=2), now=now)
    assert settled is not None
    admission_id, later = uuid4(), now + timedelta(minutes=1)
    retried = retry(run, admission_id=admission_id, now=later)
    assert retried is not None
    assert (retried.status, retried.epoch, retried.base_epoch) == (Status.QUEUED, 2, 2)
    assert (retried.admission_id, retried.retried_at, retried.message_id) == (admission_id, later, settled.message_id)
    assert token_ids.unpack(retried.prompt_ids) == [7, 8]
    assert (retried.prompt_tokens, retried.max_output_tokens, retried.reserved_tokens) == (2, 50, 52)
    assert (retried.model, retried.context) == ("m2", {"trimmed": True})
    assert Attempt.objects.get().text == "xx"
    assert claim(run, epoch=2, now=later) is not None


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_run_is_queued_anew_only_from_the_epoch_it_is_at(accept: Accept, now: datetime, epoch: int) -> None:
    run = accept()
    assert runs.expire_queued(run_id=run.id, now=run.deadline_at) is not None
    assert retry(run, epoch=epoch, now=now) is None
    assert Run.objects.get(id=run.id).status == Status.FAILED


def test_neither_a_finished_run_nor_one_under_way_is_queued_anew(accept: Accept, now: datetime) -> None:
    run = accept()
    assert retry(run, now=now) is None
    claim(run, now=now)
    assert retry(run, now=now) is None
    settle(run, ending(), now=now)
    assert retry(run, now=now) is None
    fresh = Run.objects.get(id=run.id)
    assert (fresh.status, fresh.epoch, Attempt.objects.get().text) == (Status.DONE, 1, "")


def test_a_run_is_not_queued_anew_beside_another_one_of_its_chat(accept: Accept, now: datetime) -> None:
    first = accept()
    runs.cancel_queued(run_id=first.id, now=now)
    second = accept(chat_id=first.chat_id)
    with pytest.raises(ChatBusy) as refusal:
        retry(first, now=now)
    assert refusal.value.run_id == second.id
    assert Run.objects.get(id=first.id).status == Status.CANCELLED


def test_a_retried_run_keeps_its_message_and_takes_a_row_of_its_own(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    with heard() as told:
        settle(run, ending(Status.FAILED, tokens=2), now=now)
        retry(run, now=now)
        claim(run, epoch=2, now=now)
        settle(run, ending(tokens=6), epoch=2, now=now)
    assert told[0].message_id == told[1].message_id
    assert ledger(run) == [(1, "failed", 3, 0, 2, 0), (2, "completed", 2, 0, 6, 0)]


def test_a_claimed_run_cannot_be_claimed_again(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, worker="first", now=now)
    assert claim(run, worker="second", now=now) is None
    assert [attempt.worker for attempt in Attempt.objects.all()] == ["first"]


def test_a_cancelled_run_cannot_be_claimed(accept: Accept, now: datetime) -> None:
    run = accept()
    runs.cancel_queued(run_id=run.id, now=now)
    assert claim(run, now=now) is None


def test_the_owner_may_publish_in_a_new_incarnation(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    assert runs.verify_owner(run_id=run.id, epoch=1, incarnation="i2")
    assert Run.objects.get(id=run.id).stream_incarnation == "i2"


def test_nobody_else_may(accept: Accept, now: datetime) -> None:
    run = accept()
    assert not runs.verify_owner(run_id=run.id, epoch=1, incarnation="i2")
    claim(run, now=now)
    assert not runs.verify_owner(run_id=run.id, epoch=2, incarnation="i2")
    assert Run.objects.get(id=run.id).stream_incarnation == "i1"
    settle(run, ending(), now=now)
    assert not runs.verify_owner(run_id=run.id, epoch=1, incarnation="i2")


def test_a_settled_run_is_terminal_charged_and_told_of(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    later = now + timedelta(seconds=3)
    end = ending(tokens=5, ids=[4, 5], cached_tokens=2, finish_reason="stop", first_token_at=now)
    with heard() as told:
        settled = settle(run, end, now=later)
    assert settled is not None
    run.refresh_from_db()
    assert (run.status, run.finish_reason, run.finished_at) == (Status.DONE, "stop", later)
    assert (run.cached_tokens, run.output_tokens, run.first_token_at) == (2, 5, now)
    assert run.message_id is not None
    assert told == [
        SettledRun(
            run_id=run.id,
            kind="turn",
            owner_id=run.owner_id,
            chat_id=run.chat_id,
            pool="default",
            context=run.context,
            status="done",
            error_code="",
            text="xxxxx",
            output_tokens=5,
            token_ids=token_ids.pack([4, 5]),
            model=run.model,
            message_id=run.message_id,
            degraded=False,
            finished_at=later,
        )
    ]
    assert ledger(run) == [(1, "completed", 3, 2, 5, 0)]
    [attempt] = run.attempts.all()
    assert (attempt.outcome, attempt.output_tokens, attempt.ended_at) == ("done", 5, later)


def test_a_settled_run_keeps_no_prompt_and_no_carry(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    settle(run, ending(), now=now)
    run.refresh_from_db()
    assert (bytes(run.prompt_ids), bytes(run.carry_ids), run.carry_text) == (b"", b"", "")


def test_settling_twice_settles_once(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    with heard() as told:
        assert settle(run, ending(), now=now) is not None
        assert settle(run, ending(Status.FAILED), now=now) is None
    assert len(told) == 1
    assert Run.objects.get(id=run.id).status == Status.DONE
    assert len(ledger(run)) == 1


def test_a_stale_epoch_settles_nothing(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    with heard() as told:
        assert settle(run, ending(), epoch=2, now=now) is None
    assert (told, ledger(run)) == ([], [])
    assert Run.objects.get(id=run.id).status == Status.STREAMING


def test_a_waiting_run_is_not_settled(accept: Accept, now: datetime) -> None:
    run = accept()
    assert settle(run, ending(), now=now) is None
    assert Run.objects.get(id=run.id).status == Status.QUEUED


def test_a_receiver_that_fails_undoes_the_settlement(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)

    def refuse(**_: Any) -> None:
        raise RuntimeError("no message can be stored")

    run_settled.connect(refuse)
    try:
        with pytest.raises(RuntimeError), transaction.atomic():
            settle(run, ending(), now=now)
    finally:
        run_settled.disconnect(refuse)
    assert Run.objects.get(id=run.id).status == Status.STREAMING
    assert ledger(run) == []
    assert settle(run, ending(), now=now) is not None


def test_cached_tokens_never_exceed_the_prompt(accept: Accept, now: datetime) -> None:
    """A continuing epoch's prompt holds the answer so far, and may be cached as a whole."""
    run = accept()
    claim(run, now=now)
    settle(run, ending(cached_tokens=64), now=now)
    assert ledger(run) == [(1, "completed", 3, 3, 5, 0)]
    assert Run.objects.get(id=run.id).cached_tokens == 3


@pytest.mark.parametrize(
    ("status", "tokens", "row"),
    [
        (Status.DONE, 5, (1, "completed", 3, 0, 5, 0)),
        (Status.DONE, 0, (1, "completed", 3, 0, 0, 0)),
        (Status.CANCELLED, 5, (1, "cancelled", 3, 0, 5, 0)),
        (Status.CANCELLED, 0, (1, "cancelled", 3, 0, 0, 0)),
        (Status.INTERRUPTED, 5, (1, "interrupted", 3, 0, 5, 0)),
        (Status.INTERRUPTED, 0, (1, "interrupted", 0, 0, 0, 3)),
        (Status.FAILED, 5, (1, "failed", 3, 0, 5, 0)),
        (Status.FAILED, 0, (1, "failed", 0, 0, 0, 3)),
    ],
)
def test_the_prompt_is_paid_once_and_what_broke_before_it_showed_anything_is_waste(
    accept: Accept, now: datetime, status: Run.Status, tokens: int, row: tuple[int, str, int, int, int, int]
) -> None:
    run = accept()
    claim(run, now=now)
    settle(run, ending(status, tokens=tokens), now=now)
    assert ledger(run) == [row]


def test_a_run_cancelled_before_anybody_began_it_costs_nothing(accept: Accept, now: datetime) -> None:
    run = accept()
    with heard() as told:
        cancelled = runs.cancel_queued(run_id=run.id, now=now)
    assert cancelled is not None
    ended, text = cancelled.run, cancelled.text
    assert (ended.status, ended.error_code, ended.release_ms, text) == (Status.CANCELLED, "cancelled", 0, "")
    assert [settled.status for settled in told] == ["cancelled"]
    assert ledger(run) == []


def test_a_run_cancelled_while_it_waits_for_its_next_epoch_keeps_and_costs_what_was_shown(
    accept: Accept, now: datetime
) -> None:
    run = accept()
    Run.objects.filter(id=run.id).update(epoch=2, carry_ids=token_ids.pack([7, 8]), carry_text="so far")
    with heard() as told:
        cancelled = runs.cancel_queued(run_id=run.id, now=now)
    assert cancelled is not None
    ended, text = cancelled.run, cancelled.text
    assert (ended.output_tokens, text, told[0].text) == (2, "so far", "so far")
    # The tokens stand in the lost epoch's row; this one pays the prompt.
    assert ledger(run) == [(2, "cancelled", 3, 0, 0, 0)]


def test_cancelling_twice_cancels_once(accept: Accept, now: datetime) -> None:
    run = accept()
    runs.cancel_queued(run_id=run.id, now=now)
    with heard() as told:
        assert runs.cancel_queued(run_id=run.id, now=now) is None
    assert told == []


def test_a_streaming_run_is_only_flagged_and_once(accept: Accept, now: datetime) -> None:
    run = accept()
    claim(run, now=now)
    assert runs.cancel_queued(run_id=run.id, now=now) is None
    assert runs.request_cancel(run_id=run.id, now=now)
    assert runs.request_cancel(run_id=run.id, now=now + timedelta(seconds=9))
    run.refresh_from_db()
    assert (run.status, run.cancel_requested_at) == (Status.STREAMING, now)


def test_what_does_not_stream_is_not_flagged(accept: Accept, now: datetime) -> None:
    run = accept()
    assert not runs.request_cancel(run_id=run.id, now=now)
    claim(run, now=now)
    settle(run, ending(), now=now)
    assert not runs.request_cancel(run_id=run.id, now=now)
    assert Run.objects.get(id=run.id).cancel_requested_at is None


def test_flags_are_found_for_the_runs_that_are_asked_for(accept: Accept, now: datetime) -> None:
    flagged, other, unflagged = accept(), accept(), accept()
    for run in (flagged, other, unflagged):
        claim(run, now=now)
    runs.request_cancel(run_id=flagged.id, now=now)
    runs.request_cancel(run_id=other.id, now=now)
    assert runs.cancel_requests(run_ids=[flagged.id, unflagged.id, uuid4()]) == {flagged.id: now}


def test_a_retried_run_keeps_its_message(accept: Accept, now: datetime) -> None:
    run = accept()
    message = uuid4()
    Run.objects.filter(id=run.id).update(message_id=message)
    claim(run, now=now)
    settled = settle(run, ending(), now=now)
    assert settled is not None
    assert settled.message_id == message


def test_the_first_token_of_an_earlier_epoch_stays_the_first(accept: Accept, now: datetime) -> None:
    run = accept()
    Run.objects.filter(id=run.id).update(first_token_at=now)
    claim(run, now=now)
    settled = settle(run, ending(first_token_at=now + timedelta(seconds=5)), now=now)
    assert settled is not None
    assert settled.first_token_at == now


@pytest.mark.django_db(transaction=True)
class TestRaces:
    """What the database decides between threads of which each has a connection of its own."""

    def test_of_many_claims_one_wins(self, accept: Accept, now: datetime) -> None:
        run = accept()
        results = at_once([partial(claim, run, worker=f"w{i}", now=now) for i in range(8)])
        winners = [result for result in results if isinstance(result, Run)]
        assert (len(winners), results.count(None)) == (1, 7)
        assert Attempt.objects.count() == 1

    def test_of_many_settlements_one_wins_and_is_charged(self, accept: Accept, now: datetime) -> None:
        run = accept()
        claim(run, now=now)
        ends = [ending(status, tokens=5) for status in (Status.DONE, Status.CANCELLED, Status.INTERRUPTED) * 2]
        results = at_once([partial(settle, run, end, now=now) for end in ends])
        assert sum(isinstance(result, Run) for result in results) == 1
        assert (results.count(None), len(ledger(run))) == (5, 1)

    def test_a_cancel_and_a_claim_never_both_succeed(self, accept: Accept, now: datetime) -> None:
        for _ in range(10):
            run = accept()
            calls: list[Callable[[], object]] = [
                partial(claim, run, now=now),
                partial(runs.cancel_queued, run_id=run.id, now=now),
            ]
            claimed, cancelled = at_once(calls)
            assert (claimed is None) != (cancelled is None)
            expected = Status.STREAMING if cancelled is None else Status.CANCELLED
            assert Run.objects.get(id=run.id).status == expected

    def test_of_many_sends_to_one_chat_one_is_accepted(self, accept: Accept) -> None:
        chat: UUID = uuid4()
        results = at_once([partial(accept, chat_id=chat) for _ in range(6)])
        accepted = [result for result in results if isinstance(result, Run)]
        assert len(accepted) == 1
        refusals = [result for result in results if isinstance(result, ChatBusy)]
        assert [refusal.run_id for refusal in refusals] == [accepted[0].id] * 5


def test_a_run_is_given_up_neither_before_its_deadline_nor_once_a_worker_has_it(accept: Accept, now: datetime) -> None:
    run = accept()
    assert runs.expire_queued(run_id=run.id, now=run.deadline_at - timedelta(seconds=1)) is None
    assert claim(run, now=now) is not None
    assert runs.expire_queued(run_id=run.id, now=run.deadline_at) is None
    assert Run.objects.get(id=run.id).status == Status.STREAMING
