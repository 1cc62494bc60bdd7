"""Which limits apply to whom, and when."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from billing import api as billing
from billing.contracts import Limits, PlanInfo
from billing.models import LimitOverride, Plan, Subscription

DAY = timedelta(days=1)
OF_TEAM = Limits(
    plan="team",
    concurrent_runs=5,
    max_prompt_tokens=8000,
    max_output_tokens=900,
    weight=4,
    budget_tokens=50_000,
    refill_per_hour=1_000,
    output_floor=32,
    messages_per_hour=40,
    queue_wait_s=60,
    overflow="refuse",
    unwatched="shorten",
    unwatched_tokens=128,
    unwatched_s=None,
    long_memory=True,
)


def plan_of(ada: Any, at: datetime) -> str:
    return billing.limits_for(user_id=ada.pk, now=at).plan


def test_without_a_subscription_the_default_plan_applies(ada: Any, free: Plan, now: datetime) -> None:
    assert billing.limits_for(user_id=ada.pk, now=now) == Limits(
        plan="free",
        concurrent_runs=free.concurrent_runs,
        max_prompt_tokens=None,
        max_output_tokens=None,
        weight=1,
        budget_tokens=free.budget_tokens,
        refill_per_hour=free.refill_per_hour,
        output_floor=64,
        messages_per_hour=free.messages_per_hour,
        queue_wait_s=None,
        overflow="smaller",
        unwatched="finish",
        unwatched_tokens=None,
        unwatched_s=None,
        long_memory=False,
    )


def test_a_subscription_brings_its_plans_limits(ada: Any, free: Plan, team: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now - DAY)
    assert billing.limits_for(user_id=ada.pk, now=now) == OF_TEAM


def test_a_subscription_applies_from_its_start_until_before_its_end(
    ada: Any, free: Plan, team: Plan, now: datetime
) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now, ends_at=now + DAY)
    moments = [now - timedelta(microseconds=1), now, now + DAY - timedelta(microseconds=1), now + DAY]
    assert [plan_of(ada, at) for at in moments] == ["free", "team", "team", "free"]


def test_one_subscription_follows_another(ada: Any, free: Plan, team: Plan, now: datetime) -> None:
    other = Plan.objects.create(slug="other", name="Other")
    Subscription.objects.create(user=ada, plan=team, starts_at=now - DAY, ends_at=now)
    Subscription.objects.create(user=ada, plan=other, starts_at=now)
    assert [plan_of(ada, at) for at in (now - DAY, now)] == ["team", "other"]


def test_subscriptions_of_one_user_do_not_overlap(ada: Any, team: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now, ends_at=now + 2 * DAY)
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.create(user=ada, plan=team, starts_at=now + DAY, ends_at=now + 3 * DAY)


def test_one_user_has_one_open_subscription(ada: Any, team: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now)
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.create(user=ada, plan=team, starts_at=now + DAY)


def test_a_subscription_ends_after_it_starts(ada: Any, team: Plan, now: datetime) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.create(user=ada, plan=team, starts_at=now, ends_at=now)


def test_what_a_user_alone_may_takes_the_place_of_the_plans_number_and_leaves_the_others(
    ada: Any, team: Plan, now: datetime
) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now)
    LimitOverride.objects.create(user=ada, budget_tokens=7, refill_per_hour=3, messages_per_hour=2)
    assert billing.limits_for(user_id=ada.pk, now=now) == replace(
        OF_TEAM, budget_tokens=7, refill_per_hour=3, messages_per_hour=2
    )
    LimitOverride.objects.update(
        budget_tokens=None, refill_per_hour=None, messages_per_hour=None, concurrent_runs=9, max_output_tokens=8
    )
    assert billing.limits_for(user_id=ada.pk, now=now) == replace(OF_TEAM, concurrent_runs=9, max_output_tokens=8)


def test_what_a_user_alone_may_is_nobody_elses(
    ada: Any, free: Plan, now: datetime, django_user_model: type[Any]
) -> None:
    LimitOverride.objects.create(user=django_user_model.objects.create_user(email="eve@e.org"), concurrent_runs=9)
    assert billing.limits_for(user_id=ada.pk, now=now).concurrent_runs == free.concurrent_runs


def test_what_a_user_alone_may_ends_at_its_time(ada: Any, team: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now - DAY)
    LimitOverride.objects.create(user=ada, concurrent_runs=9, until=now)
    moments = [now - timedelta(microseconds=1), now]
    assert [billing.limits_for(user_id=ada.pk, now=at).concurrent_runs for at in moments] == [9, 5]


def test_a_plan_is_shown_with_the_users_own_numbers(ada: Any, team: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=team, starts_at=now)
    LimitOverride.objects.create(user=ada, max_prompt_tokens=100)
    assert billing.plan_for(user_id=ada.pk, now=now) == PlanInfo(
        slug="team",
        name="Team",
        concurrent_runs=5,
        max_prompt_tokens=100,
        max_output_tokens=900,
        budget_tokens=50_000,
        refill_per_hour=1_000,
        messages_per_hour=40,
        queue_wait_s=60,
        history_days=None,
    )


def test_limits_cost_a_query_each_for_subscription_default_plan_and_own_numbers(
    ada: Any, free: Plan, team: Plan, now: datetime, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(3):
        billing.limits_for(user_id=ada.pk, now=now)
    Subscription.objects.create(user=ada, plan=team, starts_at=now)
    with django_assert_num_queries(2):
        billing.limits_for(user_id=ada.pk, now=now)


def test_there_is_one_default_plan(free: Plan) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(slug="other", name="Other", is_default=True)


@pytest.mark.parametrize(
    "bad",
    [
        {"concurrent_runs": 0},
        {"weight": 0},
        {"max_output_tokens": 0},
        {"max_prompt_tokens": 0},
        {"output_floor": 0},
        {"messages_per_hour": 0},
        {"queue_wait_s": 0},
        {"budget_tokens": 5},
        {"refill_per_hour": 5},
        {"budget_tokens": 0, "refill_per_hour": 5},
        {"unwatched": "shorten"},
        {"unwatched": "stop"},
        {"history_days": 0},
    ],
)
def test_a_plan_that_allows_nothing_or_half_a_limit_cannot_be_stored(db: None, bad: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(slug="bad", name="Bad", **bad)


@pytest.mark.parametrize("bad", [{"budget_tokens": 5}, {"concurrent_runs": 0}])
def test_a_users_own_limits_are_whole_and_positive(ada: Any, bad: dict[str, int]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        LimitOverride.objects.create(user=ada, **bad)


def test_plans_and_subscriptions_say_in_the_admin_what_they_are(ada: Any, team: Plan, now: datetime) -> None:
    assert str(team) == "Team"
    assert str(Subscription.objects.create(user=ada, plan=team, starts_at=now)) == "Team from 2026-03-01"
    assert str(LimitOverride.objects.create(user=ada)) == f"limits of {ada.pk}"
