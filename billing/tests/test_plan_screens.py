"""The admin's forms of plans and of single users' limits: what is wrong is said at its field."""

import html
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from billing import api as billing
from billing.models import LimitOverride, Plan
from billing.tests.support import plan_form
from inference.models import ModelPool

pytestmark = pytest.mark.django_db

ADD = "/admin/billing/plan/add/"
LIMITS = "/admin/billing/limitoverride/"
TOGETHER = "go together: give both, or neither"


def errors(response: Any) -> dict[str, list[str]]:
    """Field → what its form says is wrong; the page was shown again."""
    assert response.status_code == 200
    found: dict[str, list[str]] = dict(response.context["adminform"].form.errors)
    return found


def test_a_plan_is_added_with_all_its_numbers(operator: Client) -> None:
    numbers = {
        "budget_tokens": "1000", "refill_per_hour": "100", "messages_per_hour": "10", "max_prompt_tokens": "50",
        "max_output_tokens": "60", "queue_wait_s": "30", "history_days": "90", "unwatched": "shorten",
        "unwatched_tokens": "20", "overflow": "refuse", "long_memory": "on",
    }  # fmt: skip
    assert operator.post(ADD, plan_form(slug="team", name="Team", **numbers)).status_code == 302
    plan = Plan.objects.get(slug="team")
    assert (plan.budget_tokens, plan.refill_per_hour, plan.unwatched_tokens) == (1000, 100, 20)
    assert plan.long_memory
    assert not plan.is_default


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"budget_tokens": "5"}, "refill_per_hour", TOGETHER),
        ({"refill_per_hour": "5"}, "budget_tokens", TOGETHER),
        ({"budget_tokens": "0", "refill_per_hour": "5"}, "budget_tokens", "must be between 1 and 1,000,000,000,000"),
        ({"budget_tokens": "5", "refill_per_hour": "9" * 15}, "refill_per_hour", "must be between 1 and"),
        ({"unwatched": "shorten"}, "unwatched_tokens", "needs a number of tokens"),
        ({"unwatched": "stop"}, "unwatched_s", "needs a number of seconds"),
        ({"unwatched": "stop", "unwatched_s": "0"}, "unwatched_s", "must be between 1 and"),
        ({"queue_wait_s": "14401"}, "queue_wait_s", "must be between 1 and 14,400"),
        ({"concurrent_runs": "0"}, "concurrent_runs", "must be between 1 and"),
        ({"weight": "0"}, "weight", "must be between 1 and"),
        ({"output_floor": "0"}, "output_floor", "must be between 1 and"),
        (
            {"output_floor": "9", "budget_tokens": "9", "refill_per_hour": "1"},
            "output_floor",
            "must leave room for a prompt in the token budget",
        ),
        ({"messages_per_hour": "0"}, "messages_per_hour", "must be between 1 and"),
        ({"history_days": "0"}, "history_days", "must be between 1 and"),
        ({"weight": "-1"}, "weight", "greater than or equal to 0"),
        ({"weight": ""}, "weight", "required"),
        ({"slug": "free"}, "slug", "already exists"),
    ],
)
def test_what_a_plan_cannot_be_is_said_at_its_field_and_once(
    operator: Client, free: Plan, given: dict[str, str], field: str, said: str
) -> None:
    found = errors(operator.post(ADD, plan_form(**{"slug": "team"} | given)))
    assert list(found) == [field]
    assert len(found[field]) == 1
    assert said in found[field][0]
    assert not Plan.objects.filter(slug="team").exists()


def test_the_fields_of_a_plan_stand_under_headings(operator: Client) -> None:
    page = operator.get(ADD).content.decode()
    headings = [text.strip() for text in re.findall(r'class="fieldset-heading">(.*?)<', page, re.S)]
    assert headings == [
        "Token budget", "Messages", "When a pool is busy", "Answers that nobody follows", "Chats",
    ]  # fmt: skip


def test_the_last_plan_of_a_pool_is_kept_for_without_it_the_pool_would_be_everybodys(operator: Client) -> None:
    plan = Plan.objects.create(slug="team", name="Team")
    pool = ModelPool.objects.create(slug="large", name="Large")
    pool.plans.add(plan)
    address = f"/admin/billing/plan/{plan.pk}/delete/"
    assert "Team is what pools are open to" in operator.get(address).content.decode()
    operator.post(address, {"post": "yes"})
    assert list(pool.plans.all()) == [plan]
    pool.plans.clear()
    operator.post(address, {"post": "yes"})
    assert not Plan.objects.filter(pk=plan.pk).exists()


def test_a_users_limits_are_set_changed_and_taken_away(operator: Client, ada: Any) -> None:
    form = {"user": str(ada.pk), "budget_tokens": "500", "refill_per_hour": "50", "note": "A trial"}
    assert operator.post(f"{LIMITS}add/", form).status_code == 302
    limits = LimitOverride.objects.get()
    assert (limits.user_id, limits.budget_tokens, limits.concurrent_runs) == (ada.pk, 500, None)
    assert str(limits) == f"limits of {ada.pk}"
    address = f"{LIMITS}{ada.pk}/"
    assert operator.post(f"{address}change/", {"concurrent_runs": "3"}).status_code == 302
    limits = LimitOverride.objects.get()
    assert (limits.user_id, limits.budget_tokens, limits.concurrent_runs) == (ada.pk, None, 3)
    assert operator.post(f"{address}delete/", {"post": "yes"}).status_code == 302
    assert not LimitOverride.objects.exists()


def test_a_user_has_one_set_of_limits(operator: Client, ada: Any) -> None:
    LimitOverride.objects.create(user=ada)
    found = errors(operator.post(f"{LIMITS}add/", {"user": str(ada.pk), "concurrent_runs": "3"}))
    assert list(found) == ["user"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"budget_tokens": "5"}, "refill_per_hour"),
        ({"refill_per_hour": "5"}, "budget_tokens"),
        ({"concurrent_runs": "0"}, "concurrent_runs"),
        ({"until_0": "2026-02-30", "until_1": "00:00"}, "until"),
    ],
)
def test_limits_that_cannot_be_are_said_at_their_field(
    operator: Client, ada: Any, given: dict[str, str], field: str
) -> None:
    assert list(errors(operator.post(f"{LIMITS}add/", {"user": str(ada.pk)} | given))) == [field]


def test_limits_are_found_by_their_user(operator: Client, ada: Any) -> None:
    LimitOverride.objects.create(user=ada, concurrent_runs=3)
    page = operator.get(LIMITS, {"q": "ada@example.org"}).content.decode()
    assert html.escape(f"{LIMITS}{ada.pk}/change/") in page
    assert operator.get(LIMITS, {"q": "eve@example.org"}).context["cl"].result_count == 0


def test_a_form_for_one_users_limits_comes_with_the_user_chosen(operator: Client, ada: Any) -> None:
    assert f'<option value="{ada.pk}" selected' in operator.get(f"{LIMITS}add/?user={ada.pk}").content.decode()


def test_numbers_that_are_right_are_no_error(db: None) -> None:
    Plan(
        slug="a", name="A", budget_tokens=2, output_floor=1, refill_per_hour=1, unwatched="stop", unwatched_s=1
    ).clean()
    Plan(slug="a", name="A", unwatched="shorten", unwatched_tokens=1).clean()
    LimitOverride().clean()
    with pytest.raises(ValidationError):
        LimitOverride(budget_tokens=1).clean()


def test_limits_of_ones_own_count_until_their_time_is_over(ada: Any, now: datetime) -> None:
    assert not billing.has_own_limits(user_id=ada.pk, now=now)
    LimitOverride.objects.create(user=ada)
    assert billing.has_own_limits(user_id=ada.pk, now=now)
    LimitOverride.objects.update(until=now)
    assert not billing.has_own_limits(user_id=ada.pk, now=now)
    assert billing.has_own_limits(user_id=ada.pk, now=now - timedelta(microseconds=1))
