"""Which limits apply to whom, and when."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from billing import api as billing
from billing.contracts import Limits
from billing.models import Plan, Subscription

DAY = timedelta(days=1)


@pytest.fixture
def pro(db: None) -> Plan:
    return Plan.objects.create(
        slug="pro", name="Pro", concurrent_runs=5, max_prompt_tokens=8000, max_output_tokens=900, weight=4
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
    )


def test_a_subscription_brings_its_plans_limits(ada: Any, free: Plan, pro: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=pro, starts_at=now - DAY)
    assert billing.limits_for(user_id=ada.pk, now=now) == Limits(
        plan="pro", concurrent_runs=5, max_prompt_tokens=8000, max_output_tokens=900, weight=4
    )


def test_a_subscription_applies_from_its_start_until_before_its_end(
    ada: Any, free: Plan, pro: Plan, now: datetime
) -> None:
    Subscription.objects.create(user=ada, plan=pro, starts_at=now, ends_at=now + DAY)
    moments = [now - timedelta(microseconds=1), now, now + DAY - timedelta(microseconds=1), now + DAY]
    assert [plan_of(ada, at) for at in moments] == ["free", "pro", "pro", "free"]


def test_of_two_subscriptions_the_later_begun_applies(ada: Any, free: Plan, pro: Plan, now: datetime) -> None:
    team = Plan.objects.create(slug="team", name="Team")
    Subscription.objects.create(user=ada, plan=pro, starts_at=now - 2 * DAY)
    Subscription.objects.create(user=ada, plan=team, starts_at=now - DAY, ends_at=now + DAY)
    assert [plan_of(ada, at) for at in (now, now + 2 * DAY)] == ["team", "pro"]


def test_one_user_has_one_open_subscription(ada: Any, pro: Plan, now: datetime) -> None:
    Subscription.objects.create(user=ada, plan=pro, starts_at=now)
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.create(user=ada, plan=pro, starts_at=now + DAY)


def test_a_subscription_ends_after_it_starts(ada: Any, pro: Plan, now: datetime) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.create(user=ada, plan=pro, starts_at=now, ends_at=now)


def test_there_is_one_default_plan(free: Plan) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(slug="other", name="Other", is_default=True)


@pytest.mark.parametrize(
    "bad", [{"concurrent_runs": 0}, {"weight": 0}, {"max_output_tokens": 0}, {"max_prompt_tokens": 0}]
)
def test_a_plan_that_allows_nothing_cannot_be_stored(db: None, bad: dict[str, int]) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Plan.objects.create(slug="bad", name="Bad", **bad)


def test_plans_and_subscriptions_say_in_the_admin_what_they_are(ada: Any, pro: Plan, now: datetime) -> None:
    assert str(pro) == "Pro"
    assert str(Subscription.objects.create(user=ada, plan=pro, starts_at=now)) == "Pro from 2026-03-01"
