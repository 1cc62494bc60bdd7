"""What a user has used, summed over the ledger."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.models.functions import TruncHour

from billing import api as billing
from billing import selectors, sums
from billing.contracts import Charge, DayUsage, Used

DAY = timedelta(days=1)
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
TODAY = MIDNIGHT.date()
NOTHING = Used(prompt=0, cached=0, output=0, wasted=0, runs=0)


def charge(user: Any, at: datetime, *, run_id: UUID | None = None, **changes: Any) -> None:
    given: dict[str, Any] = {
        "epoch": 1,
        "pool": "default",
        "reason": "completed",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "output_tokens": 7,
        "wasted_tokens": 3,
    }
    billing.record(Charge(user_id=user.pk, run_id=run_id or uuid4(), admission_id=uuid4(), at=at, **(given | changes)))


def since(user: Any, *starts: datetime) -> list[Used]:
    return billing.usage_since(user_id=user.pk, starts=list(starts))


def test_periods_begin_with_their_first_moment(ada: Any) -> None:
    charge(ada, MIDNIGHT - timedelta(microseconds=1), output_tokens=1000)
    charge(ada, MIDNIGHT)
    charge(ada, MIDNIGHT + DAY / 2, pool="large")
    today, both_days = since(ada, MIDNIGHT, MIDNIGHT - DAY)
    assert today == Used(prompt=200, cached=80, output=14, wasted=6, runs=2)
    assert both_days == Used(prompt=300, cached=120, output=1014, wasted=9, runs=3)


def test_a_run_of_many_attempts_is_one_run_and_a_lost_attempt_is_none(ada: Any) -> None:
    run_id = uuid4()
    charge(ada, MIDNIGHT, run_id=run_id, reason="lost", prompt_tokens=0, cached_tokens=0)
    assert since(ada, MIDNIGHT)[0].runs == 0
    charge(ada, MIDNIGHT, run_id=run_id, epoch=2, reason="cancelled")
    charge(ada, MIDNIGHT, run_id=run_id, epoch=3)
    assert since(ada, MIDNIGHT) == [Used(prompt=200, cached=80, output=21, wasted=9, runs=1)]
    [day] = billing.daily_usage(user_id=ada.pk, since=TODAY)
    assert day.used.runs == 1


def test_others_usage_is_nobodys_business(ada: Any, django_user_model: Any) -> None:
    eve = django_user_model.objects.create_user(email="eve@example.org")
    charge(eve, MIDNIGHT)
    assert since(ada, MIDNIGHT) == [NOTHING]
    assert billing.daily_usage(user_id=ada.pk, since=TODAY) == []


def test_days_come_newest_first_and_pool_by_pool(ada: Any) -> None:
    for at, pool in (
        (MIDNIGHT - DAY, "default"),
        (MIDNIGHT - timedelta(microseconds=1), "default"),
        (MIDNIGHT, "large"),
        (MIDNIGHT + DAY - timedelta(microseconds=1), "default"),
        (MIDNIGHT - 2 * DAY, "default"),
    ):
        charge(ada, at, pool=pool)
    once = Used(prompt=100, cached=40, output=7, wasted=3, runs=1)
    twice = Used(prompt=200, cached=80, output=14, wasted=6, runs=2)
    assert billing.daily_usage(user_id=ada.pk, since=TODAY - DAY) == [
        DayUsage(day=date(2026, 3, 1), pool="default", used=once),
        DayUsage(day=date(2026, 3, 1), pool="large", used=once),
        DayUsage(day=date(2026, 2, 28), pool="default", used=twice),
    ]


@pytest.mark.parametrize(
    ("read", "indexes"),
    [
        (
            lambda user_id: selectors.usage_since(user_id=user_id, starts=[MIDNIGHT, MIDNIGHT - 29 * DAY]),
            ["usage_user_created"],
        ),
        (
            lambda user_id: selectors.daily_usage(user_id=user_id, since=TODAY - 89 * DAY),
            # SQLite names the index of a constraint itself.
            ["usage_event_user_day", "usage_user_created", "daily_usage_once|autoindex_billing_dailyusage_2"],
        ),
    ],
)
def test_reading_is_a_query_over_an_index_for_each_table(
    ada: Any, read: Any, indexes: list[str], django_assert_num_queries: Any
) -> None:
    for number in range(5):
        charge(ada, MIDNIGHT - number * DAY, pool=f"pool-{number}")
    with django_assert_num_queries(len(indexes)) as queries:
        read(ada.pk)
    for query, index in zip(queries.captured_queries, indexes, strict=True):
        assert re.search(index, plan_of(query["sql"]))


def plan_of(sql: str) -> str:
    """How the database would go about it."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # A table of five rows is read faster without any index; whether one can serve is the question.
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN {sql}")
        else:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
        return str(cursor.fetchall())


def test_hours_are_those_of_utc_however_the_database_writes_times(ada: Any) -> None:
    for minutes in (-1, 0, 59, 60):
        charge(ada, MIDNIGHT + timedelta(minutes=minutes))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL datestyle = 'German'")
            cursor.execute("SET LOCAL timezone = 'Asia/Kathmandu'")
    hours = [(hour.begins_at, hour.tokens.prompt) for hour in billing.hourly_usage(since=MIDNIGHT - DAY)]
    an_hour = timedelta(hours=1)
    assert hours == [(MIDNIGHT - an_hour, 100), (MIDNIGHT, 200), (MIDNIGHT + an_hour, 100)]


def test_postgres_cuts_hours_itself_whatever_its_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "vendor", "postgresql")
    cut = sums._hour_column()
    assert isinstance(cut, TruncHour)
    assert cut.tzinfo is UTC
