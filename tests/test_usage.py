"""`/api/v1/usage`: what the ledger says of an account, its limits, and where it stands."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from billing import api as billing
from billing.contracts import Charge, Prices
from billing.models import Plan, Subscription
from chatsite.accounts import accounts, keys
from chatsite.accounts.models import User
from inference.models import ModelPool, Run

USAGE = "/api/v1/usage"
DAILY = "/api/v1/usage/daily"
ME = "/api/v1/me"
DAY = timedelta(days=1)


@pytest.fixture
def ada(db: None) -> User:
    return accounts.open_account(email="ada@example.org", password=None)


@pytest.fixture
def bob(db: None) -> User:
    return accounts.open_account(email="bob@example.org", password=None)


def client_of(user: User) -> Client:
    secret = keys.create(user=user, name="", now=timezone.now()).secret
    return Client(headers={"authorization": f"Bearer {secret}"})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """A moment that the whole site takes for the present."""
    moment = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    monkeypatch.setattr("django.utils.timezone.now", lambda: moment)
    return moment


def charge(user: User, at: datetime, **changes: Any) -> None:
    tokens = {"prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 7, "wasted_tokens": 3}
    given: dict[str, Any] = {"epoch": 1, "pool": "default", "reason": "completed", **tokens, **changes}
    billing.record(Charge(user_id=user.pk, run_id=uuid4(), admission_id=uuid4(), at=at, **given))


def begin_run(user: User, now: datetime) -> None:
    pool = ModelPool.objects.get(is_default=True)
    Run.objects.create(
        owner=user,
        chat_id=uuid4(),
        turn="t",
        pool=pool,
        model="m",
        admission_id=uuid4(),
        reserved_tokens=10,
        prompt_tokens=5,
        max_output_tokens=5,
        created_at=now,
        deadline_at=now + DAY,
    )


@pytest.mark.usefixtures("valkey")
def test_somebody_who_has_used_nothing_sees_zeros_and_the_plans_limits(ada: User, now: datetime) -> None:
    nothing = {"runs": 0, "cost": 0, "tokens": {"prompt": 0, "cached": 0, "output": 0, "wasted": 0}}
    assert client_of(ada).get(USAGE).json() == {
        "plan": "free",
        "plan_name": "Free",
        "limits": {
            "concurrent_runs": 20,
            "max_prompt_tokens": None,
            "max_output_tokens": None,
            "token_budget": 1_000_000,
            "refill_per_hour": 250_000,
            "messages_per_hour": 600,
            "queue_wait_s": None,
            "history_days": None,
            "requests_per_minute": None,
        },
        "standing": {
            "concurrent_runs": {"maximum": 20, "used": 0, "remaining": 20, "resets_at": None},
            "token_budget": {
                "maximum": 1_000_000,
                "used": 0,
                "remaining": 1_000_000,
                "resets_at": None,
                "refill_per_hour": 250_000,
            },
            "messages_per_hour": {"maximum": 600, "used": 0, "remaining": 600, "resets_at": None},
            "requests_per_minute": None,
        },
        "today": {"since": "2026-03-01T00:00:00Z", **nothing},
        "last_30_days": {"since": "2026-01-31T00:00:00Z", **nothing},
        "currency": "USD",
    }


def test_today_and_thirty_days_are_days_of_utc(ada: User, now: datetime) -> None:
    midnight = now.replace(hour=0)
    for at in (midnight, midnight - timedelta(microseconds=1), midnight - 29 * DAY):
        charge(ada, at)
    charge(ada, midnight - 29 * DAY - timedelta(microseconds=1), output_tokens=1000)
    body = client_of(ada).get(USAGE).json()
    assert body["today"]["tokens"] == {"prompt": 100, "cached": 40, "output": 7, "wasted": 3}
    assert body["today"]["runs"] == 1
    assert body["last_30_days"]["tokens"] == {"prompt": 300, "cached": 120, "output": 21, "wasted": 9}
    assert body["last_30_days"]["runs"] == 3


def test_a_plan_of_ones_own_and_the_answers_under_way_are_stated(ada: User, bob: User, now: datetime) -> None:
    plan = Plan.objects.create(slug="team", name="Team", concurrent_runs=3, max_prompt_tokens=8000)
    Subscription.objects.create(user=ada, plan=plan, starts_at=now - DAY)
    begin_run(ada, now)
    begin_run(bob, now)
    body = client_of(ada).get(USAGE).json()
    assert (body["plan"], body["plan_name"]) == ("team", "Team")
    assert (body["limits"]["concurrent_runs"], body["limits"]["max_prompt_tokens"]) == (3, 8000)
    assert body["standing"]["concurrent_runs"] == {"maximum": 3, "used": 1, "remaining": 2, "resets_at": None}


@pytest.mark.usefixtures("valkey")
@pytest.mark.parametrize("path", [USAGE, ME])
def test_budget_and_messages_stand_where_admission_counts_them(ada: User, now: datetime, path: str) -> None:
    charge(ada, now - timedelta(minutes=30), prompt_tokens=200_000, output_tokens=50_000)
    begin_run(ada, now - timedelta(minutes=45))
    standing = client_of(ada).get(path).json()["standing"]
    # Half an hour has given 125,000 of 250,000 back; 10 are held. An hour gives 250,000.
    assert standing["token_budget"] == {
        "maximum": 1_000_000,
        "used": 125_010,
        "remaining": 874_990,
        "resets_at": "2026-03-01T12:30:00.144000Z",
        "refill_per_hour": 250_000,
    }
    assert standing["messages_per_hour"] == {
        "maximum": 600,
        "used": 2,
        "remaining": 598,
        "resets_at": "2026-03-01T12:15:00Z",
    }


@pytest.mark.parametrize("path", [USAGE, ME])
def test_without_redis_the_limits_are_told_and_the_standing_is_not(ada: User, now: datetime, path: str) -> None:
    body = client_of(ada).get(path).json()
    assert (body["limits"]["token_budget"], body["limits"]["messages_per_hour"]) == (1_000_000, 600)
    assert (body["standing"]["token_budget"], body["standing"]["messages_per_hour"]) == (None, None)
    assert body["standing"]["concurrent_runs"]["maximum"] == 20


@pytest.mark.usefixtures("valkey")
def test_a_plan_without_budget_and_window_has_neither_limit_nor_standing(ada: User, now: datetime) -> None:
    Plan.objects.filter(is_default=True).update(budget_tokens=None, refill_per_hour=None, messages_per_hour=None)
    body = client_of(ada).get(USAGE).json()
    assert (body["limits"]["token_budget"], body["limits"]["messages_per_hour"]) == (None, None)
    assert (body["standing"]["token_budget"], body["standing"]["messages_per_hour"]) == (None, None)


def test_nothing_remains_below_zero_where_a_plan_has_shrunk(ada: User, now: datetime) -> None:
    Plan.objects.filter(is_default=True).update(concurrent_runs=1)
    begin_run(ada, now)
    begin_run(ada, now)
    assert client_of(ada).get(USAGE).json()["standing"]["concurrent_runs"] == {
        "maximum": 1, "used": 2, "remaining": 0, "resets_at": None
    }  # fmt: skip


def test_the_standing_of_requests_is_what_the_headers_say(ada: User, now: datetime, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE = 1000
    response = client_of(ada).get(USAGE)
    body = response.json()
    standing = body["standing"]["requests_per_minute"]
    assert body["limits"]["requests_per_minute"] == standing["maximum"] == 1000
    assert standing["used"] + standing["remaining"] == 1000
    assert f";r={standing['remaining']};" in response.headers["RateLimit"]
    assert "2026-03-01T12:00:01Z" <= standing["resets_at"] <= "2026-03-01T12:01:00Z"


def test_days_come_newest_first_with_an_entry_per_pool(ada: User, bob: User, now: datetime) -> None:
    charge(ada, now)
    charge(ada, now, pool="large", output_tokens=50, prices=Prices(output=3_000_000))
    charge(ada, now - 29 * DAY)
    charge(ada, now - 30 * DAY)
    charge(bob, now)
    body = client_of(ada).get(DAILY).json()
    assert [(day["date"], day["pool"]) for day in body["results"]] == [
        ("2026-03-01", "default"), ("2026-03-01", "large"), ("2026-01-31", "default")
    ]  # fmt: skip
    assert body["results"][1] == {
        "date": "2026-03-01",
        "pool": "large",
        "runs": 1,
        "tokens": {"prompt": 100, "cached": 40, "output": 50, "wasted": 3},
        "cost": 150,
    }
    assert body["currency"] == "USD"
    assert (body["since"], body["next"], body["previous"]) == ("2026-01-31T00:00:00Z", None, None)


@pytest.mark.parametrize(("days", "found"), [("1", 1), ("2", 2), ("30", 2), ("31", 3), ("90", 4)])
def test_as_many_days_are_listed_as_are_asked_for(ada: User, now: datetime, days: str, found: int) -> None:
    for back in (0, 1, 30, 89, 90):
        charge(ada, now - back * DAY)
    assert len(client_of(ada).get(DAILY, {"days": days}).json()["results"]) == found


@pytest.mark.parametrize("days", ["0", "91", "-1", "1.5", "1e1", "", "abc", "\u0663", "100", "9" * 400])
def test_another_number_of_days_is_refused_with_the_limit(ada: User, days: str) -> None:
    response = client_of(ada).get(DAILY, {"days": days})
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert response.json()["errors"] == {"days": ["must be a whole number from 1 to 90"]}


@pytest.mark.parametrize(("path", "most"), [(USAGE, 8), (ME, 8), (DAILY, 3)])
def test_reading_usage_takes_few_queries_however_much_was_used(
    ada: User, now: datetime, path: str, most: int, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        charge(ada, now - number * DAY, pool=f"pool-{number % 3}")
        begin_run(ada, now)
    client = client_of(ada)
    client.get(path)  # the key's own rows are read and its last use is noted
    with django_assert_max_num_queries(most + 1):
        assert client.get(path).status_code == 200


def test_daily_usage_is_up_to_the_moment_whether_it_is_metered_yet_or_not(ada: User, now: datetime) -> None:
    client = client_of(ada)
    for at in (now - DAY, now):
        charge(ada, at)
    before = client.get(DAILY).json()
    assert [day["tokens"]["output"] for day in before["results"]] == [7, 7]
    assert billing.meter() == 2
    assert client.get(DAILY).json() == before
    charge(ada, now)
    assert [day["tokens"]["output"] for day in client.get(DAILY).json()["results"]] == [14, 7]


@pytest.mark.parametrize("path", [USAGE, DAILY])
@pytest.mark.django_db
def test_strangers_are_refused(client: Client, path: str) -> None:
    assert client.get(path).status_code == 401
