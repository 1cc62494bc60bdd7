"""Quota accounts after Redis was lost, and the checkpoints that keep their rebuild short."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing import api as billing
from billing.models import Account, Plan
from inference import admission, checkpoints, restoring, store, tasks
from inference.cell.errors import StoreUnavailable
from inference.models import Run
from inference.tests.gate import Gate
from inference.tests.support import look, restart
from tests.services import Valkey

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def people(gate: Gate, django_user_model: Any) -> list[Gate]:
    """Seven users, each of whom was charged a moment ago."""
    found = [gate]
    for number in range(6):
        user = django_user_model.objects.create_user(email=f"{number}@example.org")
        found.append(Gate(user_id=user.pk, pool=gate.pool, now=gate.now))
    for number, one in enumerate(found):
        billing.account_generation(user_id=one.user_id)
        one.charge(admission_id=uuid4(), tokens=10 + number)
    return found


def used(people: list[Gate]) -> list[str | None]:
    return [one.account.get("used") for one in people]


def test_everybody_who_was_charged_lately_comes_back_in_batches(
    people: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "BATCH", 3)
    assert restoring.restore(now=people[0].now) == 7
    assert used(people) == [str(10 + number) for number in range(7)]
    assert [one.account["gen"] for one in people] == ["2"] * 7
    assert restoring.restore(now=people[0].now) == 0


def test_a_number_of_users_that_fills_the_last_batch_comes_back_too(
    people: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "BATCH", 7)
    assert restoring.restore(now=people[0].now) == 7
    assert restoring.restore(now=people[0].now) == 0


def test_what_the_time_does_not_suffice_for_is_done_the_next_time(
    people: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "BATCH", 2)
    passes = []
    while used(people).count(None):
        clock = iter([0.0, 0.0, 9.0])
        monkeypatch.setattr(restoring, "monotonic", lambda: next(clock))  # noqa: B023
        passes.append(restoring.restore(now=people[0].now, seconds=5))
    assert passes == [2, 2, 2, 1]


def test_after_another_loss_everybody_comes_back_again(valkey: Valkey, people: list[Gate]) -> None:
    assert restoring.restore(now=people[0].now) == 7
    restart(valkey)
    store.connector().close()
    assert restoring.restore(now=people[0].now) == 7


def test_accounts_that_are_there_are_left_alone(people: list[Gate]) -> None:
    held = people[3].admit()
    assert restoring.restore(now=people[0].now) == 6
    assert people[3].account["gen"] == str(held.generation)
    assert list(people[3].held) == [str(held.admission_id)]


def test_whose_account_somebody_else_rebuilds_is_left_to_them(people: list[Gate]) -> None:
    assert admission.elected(store.connector().cell(), user_id=people[2].user_id)
    assert restoring.restore(now=people[0].now) == 6
    assert people[2].account == {}


def test_one_that_cannot_be_helped_keeps_nobody_waiting(people: list[Gate], monkeypatch: pytest.MonkeyPatch) -> None:
    rebuild = admission.rebuild

    def sometimes(cell: Any, *, user_id: UUID, now: Any) -> None:
        if user_id == people[1].user_id:
            raise ValueError("a riddle")
        rebuild(cell, user_id=user_id, now=now)

    monkeypatch.setattr(admission, "rebuild", sometimes)
    assert restoring.restore(now=people[0].now) == 6


def test_redis_lost_again_on_the_way_ends_a_pass(
    valkey: Valkey, people: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    elected = admission.elected

    def lost(cell: Any, *, user_id: UUID) -> bool:
        mine = elected(cell, user_id=user_id)
        restart(valkey)
        return mine

    monkeypatch.setattr(admission, "elected", lost)
    with pytest.raises(StoreUnavailable):
        restoring.restore(now=people[0].now)
    store.connector().close()
    assert used(people) == [None] * 7


def test_without_redis_nothing_comes_back_and_nothing_breaks(valkey: Valkey, people: list[Gate]) -> None:
    valkey.kill()
    store.connector().close()
    tasks.restore()
    assert Account.objects.filter(quota_gen__gt=1).count() == 0


def test_the_tasks_restore_and_note(people: list[Gate]) -> None:
    tasks.restore()
    assert used(people) == [str(10 + number) for number in range(7)]
    tasks.checkpoint()
    assert Account.objects.filter(debt_at=None).count() == 0
    done = {row["user_id"]: row for row in Account.objects.values()}
    tasks.restore()
    tasks.checkpoint()
    assert {row["user_id"]: row for row in Account.objects.values()} == done


def test_a_checkpoint_lies_a_while_back_and_changes_no_level(
    gate: Gate, accept: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    Plan.objects.update(budget_tokens=1000, refill_per_hour=60)
    billing.account_generation(user_id=gate.user_id)
    for tokens, ago in ((100, HOUR), (30, MINUTE)):
        gate.charge(admission_id=uuid4(), tokens=tokens, at=gate.now - ago)
    assert checkpoints.checkpoint(now=gate.now) == 1
    account = Account.objects.get()
    assert (account.debt_tokens, account.debt_at) == (45, gate.now - 5 * MINUTE)
    assert checkpoints.checkpoint(now=gate.now + 30 * MINUTE) == 0
    gate.admit()
    # 100 an hour ago and 30 a minute ago, of which a token a minute came back.
    assert gate.account["debt"] == "70.000000"


def test_a_checkpoint_waits_for_answers_under_way(gate: Gate, accept: Callable[..., Run]) -> None:
    Plan.objects.update(budget_tokens=1000, refill_per_hour=60)
    billing.account_generation(user_id=gate.user_id)
    run = accept(now=gate.now - 2 * HOUR)
    gate.charge(admission_id=run.admission_id, run_id=run.id, tokens=50, reason="lost", at=gate.now - HOUR)
    gate.charge(admission_id=uuid4(), tokens=100, at=gate.now - 90 * MINUTE)
    assert checkpoints.checkpoint(now=gate.now) == 1
    account = Account.objects.get()
    assert (account.debt_tokens, account.debt_at) == (70, gate.now - HOUR)


def test_an_account_that_cannot_be_noted_keeps_nobody_waiting(
    people: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = billing.checkpoint

    def sometimes(*, user_id: UUID, **more: Any) -> bool:
        if user_id == people[1].user_id:
            raise ValueError("a riddle")
        return checkpoint(user_id=user_id, **more)

    monkeypatch.setattr(billing, "checkpoint", sometimes)
    assert checkpoints.checkpoint(now=people[0].now) == 6


def test_everybody_who_is_due_is_noted_the_longest_waiting_first(
    people: list[Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "BATCH", 3)
    now = people[0].now
    assert checkpoints.checkpoint(now=now, seconds=0) == 3
    for gate in people:
        gate.charge(admission_id=uuid4(), tokens=1, at=now + HOUR)
    # The three are due again; the others have never been noted.
    assert checkpoints.checkpoint(now=now + 3 * HOUR, seconds=0) == 3
    assert Account.objects.filter(debt_at=None).count() == 1
    assert checkpoints.checkpoint(now=now + 3 * HOUR) == 4
    assert not Account.objects.exclude(debt_at=now + 3 * HOUR - 5 * MINUTE).exists()


def test_how_far_it_came_stands_in_the_incarnation_that_was_lost(people: list[Gate]) -> None:
    restoring.restore(now=people[0].now)
    cell = store.connector().cell()
    assert look(cell, lambda client: client.get(cell.keys.restored())) == "all"
