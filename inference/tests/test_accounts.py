"""Quota accounts made of the database: what was charged, what is held, and the messages of the last hour."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing import api as billing
from inference import accounts, runs
from inference.accounts import Account
from inference.models import Run
from inference.tests.gate import Gate

MINUTE = timedelta(minutes=1)
Accept = Callable[..., Run]


def recalled(gate: Gate) -> Account:
    limits = billing.limits_for(user_id=gate.user_id, now=gate.now)
    return accounts.recall(user_id=gate.user_id, limits=limits, now=gate.now)


def minutes_ago(gate: Gate) -> dict[UUID, float]:
    return {name: (gate.now - at) / MINUTE for name, at in recalled(gate).messages.items()}


def end(run: Run, *, at: datetime, began: bool = True, output_tokens: int = 5) -> None:
    """As stopped by its user, before a worker began or while it was at it."""
    if not began:
        assert runs.cancel_queued(run_id=run.id, now=at)
        return
    assert runs.claim(run_id=run.id, epoch=run.epoch, worker="w", incarnation="i", now=at)
    ending = runs.Ending(status=Run.Status.CANCELLED, text="So", own_tokens=output_tokens, output_tokens=output_tokens)
    assert runs.settle(run_id=run.id, epoch=run.epoch, ending=ending, now=at)


def retry(run: Run, *, at: datetime) -> Run:
    retried = runs.retry(
        run_id=run.id, epoch=run.epoch, pool=run.pool, model="m", admission_id=uuid4(), prompt_ids=[1],
        max_output_tokens=9, context={}, replaced_text="", now=at,
    )  # fmt: skip
    assert retried is not None
    return retried


def test_a_live_run_is_held_and_what_it_used_so_far_counts_when_it_ends(gate: Gate, accept: Accept) -> None:
    live, over = accept(turn="live", reserved_tokens=120), accept(turn="over")
    gate.charge(admission_id=live.admission_id, run_id=live.id, tokens=7, reason="lost")
    end(over, at=gate.now)
    account = recalled(gate)
    assert (account.held, [hold.admission_id for hold in account.live]) == (120, [live.admission_id])
    assert (account.used, account.debt.tokens) == (8, 8)


def test_messages_count_for_an_hour_from_when_they_were_sent(gate: Gate, accept: Accept) -> None:
    sent = {age: accept(turn=str(age), now=gate.now - age * MINUTE) for age in (0, 30, 59, 60, 90)}
    for age in (30, 60):
        end(sent[age], at=gate.now)
    assert minutes_ago(gate) == {sent[age].admission_id: age for age in (0, 30, 59)}


def test_a_retry_counts_besides_what_it_replaces(gate: Gate, accept: Accept) -> None:
    run = accept(now=gate.now - 50 * MINUTE)
    end(run, at=gate.now - 40 * MINUTE)
    retried = retry(run, at=gate.now - 10 * MINUTE)
    assert minutes_ago(gate) == {run.admission_id: 50, retried.admission_id: 10}
    end(retried, at=gate.now)
    assert minutes_ago(gate) == {run.admission_id: 50, retried.admission_id: 10}


def test_what_was_stopped_before_it_began_and_retried_counts_by_its_run(gate: Gate, accept: Accept) -> None:
    run = accept(now=gate.now - 50 * MINUTE)
    end(run, at=gate.now - 40 * MINUTE, began=False)
    retried = retry(run, at=gate.now - 10 * MINUTE)
    assert minutes_ago(gate) == {run.id: 50, retried.admission_id: 10}


def test_a_retry_of_an_old_message_counts_alone(gate: Gate, accept: Accept) -> None:
    run = accept(now=gate.now - 90 * MINUTE)
    end(run, at=gate.now - 80 * MINUTE)
    retried = retry(run, at=gate.now - 10 * MINUTE)
    assert minutes_ago(gate) == {retried.admission_id: 10}


def test_a_retry_that_another_one_followed_counts_from_its_charge(gate: Gate, accept: Accept) -> None:
    run = accept(now=gate.now - 50 * MINUTE)
    end(run, at=gate.now - 45 * MINUTE)
    second = retry(run, at=gate.now - 40 * MINUTE)
    end(second, at=gate.now - 35 * MINUTE)
    third = retry(second, at=gate.now - 30 * MINUTE)
    assert minutes_ago(gate) == {run.admission_id: 50, second.admission_id: 35, third.admission_id: 30}


def test_messages_of_erased_chats_count_from_their_first_charge(gate: Gate) -> None:
    gone, run_id = uuid4(), uuid4()
    gate.charge(admission_id=gone, run_id=run_id, tokens=7, reason="lost", at=gate.now - 20 * MINUTE)
    gate.charge(admission_id=gone, run_id=run_id, epoch=2, tokens=7, at=gate.now - 10 * MINUTE)
    assert minutes_ago(gate) == {gone: 20}


def test_a_long_answer_to_an_old_message_does_not_make_it_new(gate: Gate, accept: Accept) -> None:
    run = accept(now=gate.now - 70 * MINUTE)
    end(run, at=gate.now - 5 * MINUTE)
    assert minutes_ago(gate) == {}


def test_anothers_messages_and_holds_are_not_mine(gate: Gate, accept: Accept, django_user_model: Any) -> None:
    eve = django_user_model.objects.create_user(email="eve@example.org")
    accept(owner_id=eve.pk)
    account = recalled(gate)
    assert (account.live, account.messages, account.used) == ([], {}, 0)


@pytest.mark.parametrize(("own", "waits_s"), [(None, 300), (20, 20), (300, 300), (4000, 300)])
def test_a_run_waits_no_longer_than_pool_and_plan_allow(
    gate: Gate, accept: Accept, own: int | None, waits_s: int
) -> None:
    run = accept(queue_wait_s=own)
    assert run.deadline_at == gate.now + timedelta(seconds=waits_s)
    end(run, at=gate.now, began=False)
    retried = runs.retry(
        run_id=run.id, epoch=1, pool=run.pool, model="m", admission_id=uuid4(), prompt_ids=[1], max_output_tokens=9,
        context={}, replaced_text="", now=gate.now, queue_wait_s=own, reserved_tokens=33,
    )  # fmt: skip
    assert retried is not None
    assert (retried.deadline_at, retried.reserved_tokens) == (gate.now + timedelta(seconds=waits_s), 33)
