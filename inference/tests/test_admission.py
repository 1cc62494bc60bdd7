"""Admission over a real Redis and database: holds, limits, and accounts that Redis has forgotten."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from billing import api as billing
from billing.models import Plan
from inference import admission, runs, store
from inference.cell import admission as cell_admission
from inference.cell import workers
from inference.contracts import Admission
from inference.errors import AdmissionRefused, HoldTooSmall, ServiceUnavailable
from inference.models import Run
from inference.tests.gate import Gate
from inference.tests.support import ask, hung, restart
from inference.tests.threads import at_once
from tests.services import Valkey


def test_the_first_admission_loads_the_account_and_the_next_finds_it(gate: Gate) -> None:
    first = gate.admit("t1")
    assert (gate.account["gen"], gate.account["used"], first.generation) == ("2", "0", 2)
    assert gate.admit("t2").generation == 2
    assert len(gate.held) == 2
    assert billing.account_generation(user_id=gate.user_id) == 2


def test_the_same_turn_gets_the_same_hold_again(gate: Gate) -> None:
    assert gate.admit("t1", concurrent_runs=1) == gate.admit("t1", concurrent_runs=1)
    assert len(gate.held) == 1


def test_at_the_users_limit_a_turn_is_refused_and_told_the_limit(gate: Gate) -> None:
    gate.admit("t1", concurrent_runs=1)
    with pytest.raises(AdmissionRefused) as refusal:
        gate.admit("t2", concurrent_runs=1)
    assert (refusal.value.limit, refusal.value.maximum) == ("concurrent_runs", 1)
    assert refusal.value.retry_after > 0
    assert len(gate.held) == 1


def test_without_a_worker_the_service_is_unavailable_and_nothing_is_held(gate: Gate) -> None:
    ask_redis = store.connector().cell()
    ask_redis.call(workers.farewell(ask_redis.keys, pool=gate.pool.slug, boot_id="w"))
    with pytest.raises(ServiceUnavailable):
        gate.admit()
    assert gate.held == {}


@pytest.mark.parametrize("how", ["dead", "hung"])
def test_without_redis_the_service_is_unavailable(valkey: Valkey, gate: Gate, how: str) -> None:
    if how == "dead":
        valkey.kill()
        with pytest.raises(ServiceUnavailable):
            gate.admit()
    else:
        with hung(valkey), pytest.raises(ServiceUnavailable):
            gate.admit()


def test_after_a_restart_of_redis_the_account_comes_back_from_the_database(
    valkey: Valkey, gate: Gate, accept: Callable[..., Run], now: datetime
) -> None:
    running = accept(turn="running")
    gate.charge(admission_id=running.admission_id, tokens=7)
    over = accept(turn="over")
    gate.charge(admission_id=over.admission_id, tokens=30)
    runs.cancel_queued(run_id=over.id, now=now)
    restart(valkey)
    store.connector().close()
    gate.beat()
    held = gate.admit("new", concurrent_runs=2)
    # What the running answer has used so far is covered by its hold, and counted when that is settled.
    assert (gate.account["gen"], gate.account["used"]) == (str(held.generation), "30")
    now_ms = int(now.timestamp() * 1000)
    assert gate.held == {
        str(running.admission_id): f"running|1|103|1|{now_ms}",
        str(held.admission_id): f"new|1|100|0|{now_ms}",
    }
    with pytest.raises(AdmissionRefused):
        gate.admit("another", concurrent_runs=2)


def test_an_accepted_turn_finds_its_hold_again_after_a_restart(
    valkey: Valkey, gate: Gate, accept: Callable[..., Run]
) -> None:
    held = gate.admit("t1")
    accept(turn="t1", admission_id=held.admission_id)
    restart(valkey)
    store.connector().close()
    gate.beat()
    assert gate.admit("t1").admission_id == held.admission_id


def test_a_load_that_comes_late_never_lands_in_a_newer_redis(
    valkey: Valkey, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_tokens = billing.used_tokens

    def slow(**arguments: Any) -> int:
        used = used_tokens(**arguments)
        restart(valkey)
        return used

    monkeypatch.setattr(billing, "used_tokens", slow)
    with pytest.raises(ServiceUnavailable):
        gate.admit()
    assert ask(valkey, lambda client: client.keys("*account*")) == []


def test_a_stale_account_is_waited_for_and_not_rebuilt_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE_S", 0.05)
    gate.admit("t1")
    with pytest.raises(ServiceUnavailable):
        gate.admit("t2", min_generation=3)
    assert billing.account_generation(user_id=gate.user_id) == 2


def test_a_stale_account_that_somebody_rebuilds_meanwhile_admits(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.admit("t1")
    cell = store.connector().cell()
    admit = cell_admission.admit
    asked: list[int] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        asked.append(1)
        if len(asked) == 3:
            admission.rebuild(cell, user_id=gate.user_id, now=gate.now)
        return admit(*arguments, **named)

    monkeypatch.setattr(cell_admission, "admit", watched)
    assert gate.admit("t2", min_generation=3).generation == 3
    assert len(asked) >= 3


def test_a_rebuilder_that_died_is_replaced(gate: Gate) -> None:
    cell = store.connector().cell()
    cell.run(lambda client: client.set(cell.keys.rebuilder(gate.user_id), "1", px=50))
    assert gate.admit().generation == 2


def test_settling_turns_the_hold_into_what_the_ledger_says(gate: Gate) -> None:
    held = gate.admit()
    gate.charge(admission_id=held.admission_id, tokens=7)
    gate.charge(admission_id=held.admission_id, tokens=5)
    for _ in range(2):
        admission.settle(user_id=gate.user_id, admission_id=held.admission_id)
    assert (gate.account["used"], gate.held) == ("12", {})


def test_releasing_gives_everything_back(gate: Gate) -> None:
    held = gate.admit()
    admission.release(held)
    assert (gate.account["used"], gate.held) == ("0", {})


@pytest.mark.django_db(transaction=True)
def test_a_new_users_first_sends_at_once_void_none_of_each_other(gate: Gate) -> None:
    results = at_once([partial(gate.admit, f"t{i}", concurrent_runs=8) for i in range(8)])
    assert all(isinstance(result, Admission) for result in results), results
    assert len({result.generation for result in results if isinstance(result, Admission)}) == 1
    assert len(gate.held) == 8


@pytest.mark.django_db(transaction=True)
def test_sends_at_once_never_exceed_the_limit(gate: Gate) -> None:
    results = at_once([partial(gate.admit, f"t{i}", concurrent_runs=3) for i in range(8)])
    assert sum(isinstance(result, Admission) for result in results) == 3
    assert sum(isinstance(result, AdmissionRefused) for result in results) == 5
    assert len(gate.held) == 3


def test_an_answer_is_admitted_with_what_the_budget_has_left(gate: Gate) -> None:
    budget: dict[str, Any] = {"budget_tokens": 75, "refill_per_hour": 60, "output_floor": 35}
    held = gate.admit(**budget)
    assert (held.max_output_tokens, held.reserved_tokens) == (35, 75)
    assert gate.held[str(held.admission_id)].split("|")[2] == "75"


@pytest.mark.parametrize(("output", "admitted"), [(35, True), (36, False)])
def test_whoever_asks_for_less_than_the_floor_needs_no_more(gate: Gate, output: int, admitted: bool) -> None:
    budget: dict[str, Any] = {"budget_tokens": 75, "refill_per_hour": 60, "output_floor": 64}
    if admitted:
        assert gate.admit(output=output, **budget).max_output_tokens == 35
    else:
        with pytest.raises(AdmissionRefused):
            gate.admit(output=output, **budget)


def test_a_repeat_gets_what_the_first_hold_leaves_beside_its_own_prompt(gate: Gate) -> None:
    first = gate.admit(prompt=40, output=60)
    again = gate.admit(prompt=70, output=60, budget_tokens=1, refill_per_hour=1)
    assert (again.admission_id, again.max_output_tokens, again.reserved_tokens) == (first.admission_id, 30, 100)


def test_a_repeat_gets_no_more_than_it_asks_for(gate: Gate) -> None:
    gate.admit(prompt=40, output=60)
    again = gate.admit(prompt=10, output=60)
    assert (again.max_output_tokens, again.reserved_tokens) == (60, 100)


def test_a_repeat_whose_prompt_fills_the_first_hold_begins_again(gate: Gate) -> None:
    gate.admit(prompt=40, output=60)
    with pytest.raises(HoldTooSmall):
        gate.admit(prompt=100)
    assert gate.admit(prompt=99).max_output_tokens == 1


def test_a_refusal_by_messages_says_when_the_oldest_counts_no_more(gate: Gate) -> None:
    first = gate.admit("t1")
    gate.now += timedelta(minutes=10)
    gate.beat()
    with pytest.raises(AdmissionRefused) as refusal:
        gate.admit("t2", messages_per_hour=1)
    told = refusal.value
    assert (told.limit, told.maximum, told.remaining, told.retry_after) == ("messages_per_hour", 1, 0, 50 * 60)
    assert told.resets_at == gate.now + timedelta(minutes=50)
    assert list(gate.messages) == [str(first.admission_id)]


def test_a_refusal_by_budget_says_what_is_left_and_when_it_suffices(gate: Gate) -> None:
    Plan.objects.update(budget_tokens=100, refill_per_hour=60)
    admission_id = uuid4()
    gate.charge(admission_id=admission_id, tokens=90)
    with pytest.raises(AdmissionRefused) as refusal:
        gate.admit(budget_tokens=100, refill_per_hour=60, output_floor=10)
    told = refusal.value
    assert (told.limit, told.maximum, told.remaining, told.retry_after) == ("token_budget", 100, 10, 40 * 60)
    assert told.resets_at == gate.now + timedelta(minutes=40)


def test_a_wait_of_centuries_is_told_as_ten_years(gate: Gate) -> None:
    Plan.objects.update(budget_tokens=100, refill_per_hour=1)
    gate.charge(admission_id=uuid4(), tokens=2_000_000_000)
    with pytest.raises(AdmissionRefused) as refusal:
        gate.admit(budget_tokens=100, refill_per_hour=1)
    told = refusal.value
    assert told.retry_after == 315_360_000
    assert told.resets_at == gate.now + timedelta(days=3650)


def test_a_refusal_that_only_the_end_of_an_answer_lifts_names_no_time(gate: Gate) -> None:
    gate.admit("t1", budget_tokens=100, refill_per_hour=60)
    with pytest.raises(AdmissionRefused) as refusal:
        gate.admit("t2", budget_tokens=100, refill_per_hour=60)
    told = refusal.value
    assert (told.limit, told.remaining, told.resets_at) == ("token_budget", 0, None)
    assert told.retry_after > 0


def test_a_wait_beyond_all_dates_is_still_a_date(gate: Gate) -> None:
    gate.charge(admission_id=uuid4(), tokens=2_000_000_000)
    with pytest.raises(AdmissionRefused) as refusal:
        gate.admit(prompt=1_000_000_000, budget_tokens=2_000_000_000, refill_per_hour=1)
    assert refusal.value.resets_at is not None


def test_a_rebuilt_account_owes_what_the_ledger_says_and_has_said_what_the_runs_say(
    valkey: Valkey, gate: Gate, accept: Callable[..., Run], now: datetime
) -> None:
    Plan.objects.update(budget_tokens=1000, refill_per_hour=60)
    running = accept(turn="running", now=now - timedelta(minutes=20))
    gate.charge(admission_id=running.admission_id, tokens=7, reason="lost", run_id=running.id)
    gate.charge(admission_id=uuid4(), tokens=30, at=now - timedelta(minutes=10))
    restart(valkey)
    store.connector().close()
    gate.beat()
    held = gate.admit("new", budget_tokens=1000, refill_per_hour=60)
    assert (gate.account["debt"], gate.account["rate"]) == ("20.000000", "60")
    assert len(gate.messages) == 3
    assert gate.messages[str(running.admission_id)] == int((now - timedelta(minutes=20)).timestamp() * 1000)
    assert gate.messages[str(held.admission_id)] == int(now.timestamp() * 1000)


def test_a_release_takes_the_message_back_and_a_settlement_leaves_it(gate: Gate) -> None:
    first, second = gate.admit("t1"), gate.admit("t2")
    admission.release(first)
    admission.settle(user_id=gate.user_id, admission_id=second.admission_id)
    assert list(gate.messages) == [str(second.admission_id)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("known", [True, False], ids=["later", "very first"])
def test_sends_at_once_never_get_more_than_the_budget(gate: Gate, known: bool) -> None:
    if known:
        admission.release(gate.admit("before"))
    budget = {"concurrent_runs": 9, "budget_tokens": 350, "refill_per_hour": 1, "output_floor": 30}
    results = at_once([partial(gate.admit, f"t{i}", **budget) for i in range(8)])
    admitted = [result for result in results if isinstance(result, Admission)]
    # Three whole ones; what is left is no prompt and floor.
    assert [one.reserved_tokens for one in admitted] == [100, 100, 100]
    assert sum(isinstance(result, AdmissionRefused) for result in results) == 5
    assert sum(int(value.split("|")[2]) for value in gate.held.values()) == 300
