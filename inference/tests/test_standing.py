"""Where a user stands: as Redis counts, as the database tells of a lost account, and not at all while Redis is away."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from billing import adjustments
from billing import api as billing
from billing.contracts import Limits
from inference import api as inference
from inference import store
from inference.contracts import BudgetStanding, QuotaStanding, WindowStanding
from inference.models import Run
from inference.tests.gate import Gate
from tests.services import Valkey

MINUTE = timedelta(minutes=1)
BUDGET = {"budget_tokens": 1000, "refill_per_hour": 60, "messages_per_hour": 5}


def limits(gate: Gate, **changes: Any) -> Limits:
    return replace(billing.limits_for(user_id=gate.user_id, now=gate.now), **BUDGET | changes)


def standing(gate: Gate, **changes: Any) -> QuotaStanding | None:
    return inference.quota_standing(user_id=gate.user_id, limits=limits(gate, **changes), now=gate.now)


def test_held_and_used_tokens_and_messages_are_told_with_when_they_come_back(gate: Gate) -> None:
    gate.charge(admission_id=uuid4(), tokens=300, at=gate.now)
    gate.admit("t1", **BUDGET)
    sent_at = gate.now
    gate.now += 10 * MINUTE
    gate.beat()
    gate.admit("t2", **BUDGET)
    assert standing(gate) == QuotaStanding(
        budget=BudgetStanding(
            capacity=1000, remaining=510, held=200, refill_per_hour=60, full_at=gate.now + 490 * MINUTE
        ),
        messages=WindowStanding(maximum=5, used=3, resets_at=sent_at + 60 * MINUTE),
    )


def test_of_a_lost_account_the_database_tells_and_nothing_is_voided(gate: Gate, accept: Callable[..., Run]) -> None:
    accept(now=gate.now - 5 * MINUTE)
    gate.charge(admission_id=uuid4(), tokens=300, at=gate.now - 10 * MINUTE)
    generation = billing.account_generation(user_id=gate.user_id)
    assert standing(gate) == QuotaStanding(
        budget=BudgetStanding(
            capacity=1000, remaining=607, held=103, refill_per_hour=60, full_at=gate.now + 393 * MINUTE
        ),
        messages=WindowStanding(maximum=5, used=2, resets_at=gate.now + 50 * MINUTE),
    )
    assert (billing.account_generation(user_id=gate.user_id), gate.account) == (generation, {})


def adjust(gate: Gate, *, tokens: int) -> None:
    adjustments.adjust(
        user_id=gate.user_id, tokens=tokens, cost=0, reason="An outage", author_id=None, author_email="", now=gate.now
    )


def remaining(gate: Gate) -> int:
    told = standing(gate)
    assert told is not None
    assert told.budget is not None
    return told.budget.remaining


def test_an_adjustment_counts_as_soon_as_it_is_made(
    gate: Gate, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    gate.charge(admission_id=uuid4(), tokens=300, at=gate.now)
    inference.rebuild_quota(user_id=gate.user_id, now=gate.now)
    assert remaining(gate) == 700
    with django_capture_on_commit_callbacks(execute=True):
        adjust(gate, tokens=-200)
    assert remaining(gate) == 900


def test_an_adjustment_is_made_without_redis_too(
    gate: Gate, valkey: Valkey, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    gate.charge(admission_id=uuid4(), tokens=300, at=gate.now)
    inference.rebuild_quota(user_id=gate.user_id, now=gate.now)
    generation = billing.account_generation(user_id=gate.user_id)
    valkey.kill()
    store.connector().close()
    with django_capture_on_commit_callbacks(execute=True):
        adjust(gate, tokens=-200)
    # What Redis counts is thereby out of date, and known to be.
    assert billing.account_generation(user_id=gate.user_id) == generation + 1


def test_who_used_nothing_has_everything_now(gate: Gate) -> None:
    assert standing(gate) == QuotaStanding(
        budget=BudgetStanding(capacity=1000, remaining=1000, held=0, refill_per_hour=60, full_at=gate.now),
        messages=WindowStanding(maximum=5, used=0, resets_at=None),
    )


def test_nothing_remains_below_zero_and_a_slow_refill_still_has_a_date(gate: Gate) -> None:
    gate.charge(admission_id=uuid4(), tokens=2_000_000_000)
    told = standing(gate, refill_per_hour=1)
    assert told is not None
    assert told.budget is not None
    assert told.budget.remaining == 0
    assert told.budget.full_at > gate.now


def test_a_limit_that_one_has_not_is_not_told_of(gate: Gate) -> None:
    assert standing(gate, budget_tokens=None, refill_per_hour=None, messages_per_hour=None) == QuotaStanding(
        budget=None, messages=None
    )


def test_while_redis_is_away_nobody_knows(gate: Gate, valkey: Valkey) -> None:
    valkey.kill()
    store.connector().close()
    assert standing(gate) is None


def test_of_an_account_that_has_no_level_the_database_tells(gate: Gate) -> None:
    gate.charge(admission_id=uuid4(), tokens=300, at=gate.now)
    inference.rebuild_quota(user_id=gate.user_id, now=gate.now)
    cell = store.connector().cell()
    cell.run(lambda client: client.hdel(cell.keys.account(gate.user_id), "debt", "debt_at"))
    assert remaining(gate) == 700
