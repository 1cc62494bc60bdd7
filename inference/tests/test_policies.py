"""What operators set for a pool's queue reaches the scripts soon; a database that is away keeps nobody out of it."""

import time
from uuid import uuid4

import pytest
from django.db import OperationalError

from billing.models import Plan
from inference import policies
from inference.models import ModelPool, PoolWeight

pytestmark = pytest.mark.django_db


def lose_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> None:
        raise OperationalError("the database is away")

    monkeypatch.setattr(policies, "_read", away)


def test_a_pools_own_weight_of_a_plan_replaces_the_plans(pool: ModelPool) -> None:
    plan = Plan.objects.create(slug="own", name="Own", weight=5, queue_wait_s=7)
    policy = policies.policy_of(pool.pk)
    assert (policy.tiers["own"].weight, policy.tiers["own"].wait_ms, policy.tiers["own"].is_free) == (5, 7000, False)
    PoolWeight.objects.create(pool=pool, plan=plan, weight=9)
    policies.forget()
    assert policies.policy_of(pool.pk).tiers["own"].weight == 9


def test_a_plan_allows_no_longer_wait_than_the_pool(pool: ModelPool) -> None:
    Plan.objects.create(slug="patient", name="Patient", queue_wait_s=pool.queue_wait_s + 1)
    tiers = policies.policy_of(pool.pk).tiers
    assert tiers["patient"].wait_ms == pool.queue_wait_s * 1000


def test_a_policy_is_read_again_after_a_while_and_not_before(pool: ModelPool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    first = policies.policy_of(pool.pk)
    ModelPool.objects.update(mode="drain")
    now += policies.KEPT_S - 0.1
    assert policies.policy_of(pool.pk) is first
    now += 0.2
    changed = policies.policy_of(pool.pk)
    assert changed.mode == "drain"
    assert changed.version != first.version


def test_while_the_database_is_away_the_policy_read_last_counts(
    pool: ModelPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = policies.policy_of(pool.pk)
    lose_the_database(monkeypatch)
    monkeypatch.setattr(policies, "KEPT_S", 0.0)
    assert policies.last_known(pool.pk) is known
    with pytest.raises(OperationalError):
        policies.policy_of(pool.pk)


def test_while_the_database_is_away_a_pool_never_read_has_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_the_database(monkeypatch)
    assert policies.last_known(uuid4()) is None


def test_a_pool_that_is_gone_is_refused(db: None) -> None:
    with pytest.raises(ModelPool.DoesNotExist):
        policies.policy_of(uuid4())
