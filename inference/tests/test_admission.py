"""Admission over a real Redis and database: holds, limits, and accounts that Redis has forgotten."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing import api as billing
from billing.contracts import Charge, Limits
from inference import admission, runs, store
from inference.cell import admission as cell_admission
from inference.cell import workers
from inference.cell.workers import Report
from inference.contracts import Admission
from inference.errors import AdmissionRefused, ServiceUnavailable
from inference.models import ModelPool, Run
from inference.tests.support import ask, hung, look, restart
from inference.tests.threads import at_once
from tests.services import Valkey

REPORT = Report(engine="scripted", model="m", slots=4, running=0, waiting=0, kv_usage=0.0, output_tokens=0)


class Gate:
    """Admissions of one user's turns to the default pool, where a worker lives."""

    def __init__(self, *, user_id: UUID, pool: ModelPool, now: datetime) -> None:
        self.user_id = user_id
        self.pool = pool
        self.now = now
        self.beat()

    def beat(self) -> None:
        cell = store.connector().cell()
        now_ms = int(self.now.timestamp() * 1000)
        cell.call(workers.heartbeat(cell.keys, pool=self.pool.slug, boot_id="w", report=REPORT, held=(), now_ms=now_ms))

    def admit(self, turn: str = "t1", *, concurrent_runs: int = 2, min_generation: int = 0) -> Admission:
        return admission.admit(
            user_id=self.user_id,
            pool=self.pool,
            turn=turn,
            base_epoch=1,
            tokens=100,
            limits=Limits(
                plan="free",
                concurrent_runs=concurrent_runs,
                max_prompt_tokens=None,
                max_output_tokens=None,
                weight=1,
            ),
            min_generation=min_generation,
            now=self.now,
        )

    @property
    def account(self) -> dict[str, str]:
        cell = store.connector().cell()
        row: dict[str, str] = look(cell, lambda client: client.hgetall(cell.keys.account(self.user_id)))
        return row

    @property
    def held(self) -> dict[str, str]:
        cell = store.connector().cell()
        rows: dict[str, str] = look(cell, lambda client: client.hgetall(cell.keys.reservations(self.user_id)))
        return rows

    def charge(self, *, admission_id: UUID, tokens: int) -> None:
        billing.record(
            Charge(
                user_id=self.user_id,
                run_id=uuid4(),
                epoch=1,
                admission_id=admission_id,
                pool=self.pool.slug,
                reason="completed",
                prompt_tokens=0,
                cached_tokens=0,
                output_tokens=tokens,
                wasted_tokens=0,
                at=self.now,
            )
        )


@pytest.fixture
def gate(valkey: Valkey, ada: Any, pool: ModelPool, now: datetime) -> Gate:
    return Gate(user_id=ada.pk, pool=pool, now=now)


def test_the_first_admission_loads_the_account_and_the_next_finds_it(gate: Gate) -> None:
    first = gate.admit("t1")
    assert (gate.account, first.generation) == ({"gen": "2", "used": "0"}, 2)
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
    assert gate.account == {"gen": str(held.generation), "used": "30"}
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
