"""The account page's section on usage."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing import api as billing
from billing.contracts import Charge, Prices, Used
from chatsite.accounts import usage_panel
from chatsite.accounts.models import User
from chatsite.accounts.tests.conftest import log_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

DAY = timedelta(days=1)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """A moment that the whole site takes for the present."""
    moment = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    monkeypatch.setattr("django.utils.timezone.now", lambda: moment)
    return moment


def charge(user: User, at: datetime, **changes: Any) -> None:
    given: dict[str, Any] = {
        "prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 7, "wasted_tokens": 3, "pool": "default"
    }  # fmt: skip
    billing.record(
        Charge(
            user_id=user.pk,
            run_id=uuid4(),
            epoch=1,
            admission_id=uuid4(),
            reason="completed",
            at=at,
            **given | changes,
        )
    )


def section(user: User) -> str:
    """The section as text, its tags left out."""
    page = log_in(user.email).get("/account/").content.decode()
    found = re.search(r'<section[^>]*id="usage".*?</section>', page, re.DOTALL)
    assert found is not None
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


def test_it_tells_plan_budget_messages_and_answers_under_way(ada: User, now: datetime) -> None:
    charge(ada, now - timedelta(minutes=30), prompt_tokens=200_000, output_tokens=50_000)
    text = section(ada)
    assert "Plan Free" in text
    assert "875,000 of 1,000,000" in text
    assert "Full again in 30 minutes ( 1 Mar 2026, 12:30 UTC ). 250,000 come back in an hour." in text
    assert "Messages in the last hour 1 of 600" in text
    assert "Answers under way 0 of 20" in text
    assert "held" not in text


def test_who_has_used_nothing_has_a_full_budget_and_an_empty_chart(ada: User, now: datetime) -> None:
    text = section(ada)
    assert "1,000,000 of 1,000,000 Full." in text
    assert "the scale ends at 0" in text
    assert "Answers 0 0 Tokens charged 0 0 Tokens charged by day" in text, "no prices, no cost"


def test_a_budget_that_is_nearly_full_is_so_within_a_minute(ada: User, now: datetime) -> None:
    charge(ada, now, prompt_tokens=100, output_tokens=0)
    assert "Full again within a minute ( 1 Mar 2026, 12:00 UTC )" in section(ada)


def test_it_sums_today_and_thirty_days_and_says_what_they_cost(ada: User, now: datetime) -> None:
    price = Prices(output=500_000_000_000)
    charge(ada, now, prices=price)
    charge(ada, now, pool="large", prices=price)
    charge(ada, now - 29 * DAY, prices=price)
    charge(ada, now - 30 * DAY, prices=price)
    text = section(ada)
    assert "Today Last 30 days Answers 2 3 Tokens charged 214 321 Cost 7.00 USD 10.50 USD" in text


def test_the_chart_has_thirty_bars_and_a_table_says_the_same(ada: User, now: datetime) -> None:
    charge(ada, now)
    charge(ada, now - 29 * DAY, prompt_tokens=40)
    chart = usage_panel.of_user(user_id=ada.pk, now=now).chart
    assert (len(chart.bars), chart.top) == (30, 107)
    first, *between, last = chart.bars
    assert (first.begins_at, last.begins_at) == (date(2026, 1, 31), date(2026, 3, 1))
    assert {bar.segments for bar in between} == {()}
    assert [segment.kind for segment in last.segments] == ["output", "uncached", "cached"], "waste is nobody's"
    assert last.tokens == Used(prompt=100, cached=40, output=7, runs=1)
    text = section(ada)
    assert "31 Jan 40 40 7" in text
    assert "1 Mar 100 40 7" in text
    assert "1 Mar: 100 prompt (40 cached), 7 answers" in text


def test_a_plan_without_limits_shows_neither_bar_nor_window(ada: User, now: datetime) -> None:
    without = {"budget_tokens": None, "refill_per_hour": None, "messages_per_hour": None}
    apps.get_model("billing", "Plan")._default_manager.filter(is_default=True).update(**without)
    text = section(ada)
    assert "Tokens left" not in text
    assert "Messages" not in text
    assert "Answers under way 0 of 20" in text
    assert "cannot be told" not in text


def test_without_redis_it_says_that_it_cannot_tell_and_shows_the_rest(
    ada: User, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(ada, now)
    monkeypatch.setattr("inference.api.quota_standing", lambda **_: None)
    text = section(ada)
    assert "cannot be told at the moment" in text
    assert "Tokens left" not in text
    assert "Answers 1 1 Tokens charged 107 107" in text


def test_it_takes_as_many_queries_for_much_as_for_little(ada: User, now: datetime) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            usage_panel.of_user(user_id=ada.pk, now=now)
        return len(captured)

    charge(ada, now)
    # Redis knows the account from the first look on, or the database is asked each time: the same for both.
    little = queries()
    for number in range(30):
        charge(ada, now - number * DAY, pool=f"pool-{number}")
    assert queries() == little


def test_others_usage_is_nobodys_business(ada: User, bob: User, now: datetime) -> None:
    charge(bob, now)
    assert "Answers 0 0" in section(ada)


def test_bar_and_drawing_have_names_and_descriptions_that_are_on_the_page(ada: User, now: datetime) -> None:
    page = log_in(ada.email).get("/account/").content.decode()
    ids = set(re.findall(r' id="([^"]+)"', page))
    for role in ("meter", "img"):
        found = re.search(rf'<svg[^>]*role="{role}"[^>]*>', page)
        assert found is not None
        named = re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', found[0])
        assert len(named) == 2
        assert set(" ".join(named).split()) <= ids
    assert 'aria-valuemax="1000000"' in page
    assert 'aria-valuetext="1,000,000 of 1,000,000"' in page


@pytest.mark.parametrize(("used", "is_low"), [(900_000, False), (900_001, True), (2_000_000, True)])
def test_the_bar_of_a_budget_below_a_tenth_stands_out(ada: User, now: datetime, used: int, is_low: bool) -> None:
    charge(ada, now, prompt_tokens=used, output_tokens=0)
    page = log_in(ada.email).get("/account/").content.decode()
    assert ('class="budget low"' in page) is is_low
