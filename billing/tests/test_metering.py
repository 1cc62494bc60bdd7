"""Daily usage is what the ledger adds up to, whatever becomes of the events that say when to look."""

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from importlib import import_module
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing import api as billing
from billing import metering, tasks
from billing.contracts import Charge, DayUsage, Prices, RunCharge, Used
from billing.models import DailyUsage, UsageEntry, UsageEvent
from billing.tests.support import record

DAY = timedelta(days=1)
MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
TODAY = MIDNIGHT.date()
LONG_AGO = date(2000, 1, 1)

Days = dict[tuple[UUID | None, date, str], Used]


def charge(user: Any, at: datetime = MIDNIGHT, **changes: Any) -> Charge:
    tokens = {"prompt_tokens": 100, "cached_tokens": 40, "output_tokens": 7, "wasted_tokens": 3}
    return record(user, at=at, **tokens | changes)


def used(runs: int, **changes: int) -> Used:
    """What so many charges as above come to."""
    once = {"prompt": 100, "cached": 40, "output": 7, "wasted": 3}
    return Used(**{name: runs * tokens for name, tokens in once.items()} | {"runs": runs} | changes)


def stored() -> Days:
    """All of daily usage; of days without a name, which may be many, the sum."""
    found: Days = {}
    for row in DailyUsage.objects.all():
        sums = Used(
            prompt=row.prompt_tokens,
            cached=row.cached_tokens,
            output=row.output_tokens,
            wasted=row.wasted_tokens,
            runs=row.runs,
            cost=row.cost,
        )
        key = (row.user_id, row.day, row.pool)
        found[key] = found.get(key, Used()) + sums
    return found


def meter_all() -> int:
    done = 0
    while worked_off := billing.meter():
        done += worked_off
    return done


def test_a_ledger_row_and_its_event_are_written_together_or_not_at_all(ada: Any) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        charge(ada)
        raise RuntimeError
    assert (UsageEntry.objects.count(), billing.metering_backlog()) == (0, 0)
    charge(ada, MIDNIGHT + DAY - timedelta(microseconds=1), pool="large")
    [event] = UsageEvent.objects.all()
    assert (event.user_id, event.day, event.pool) == (ada.pk, TODAY, "large")
    assert str(event) == f"{ada.pk} on 2026-03-01 in large"


@pytest.mark.django_db
def test_a_row_that_names_nobody_is_nobodys_usage() -> None:
    nobody = type("Nobody", (), {"pk": None})
    charge(nobody)
    assert (UsageEntry.objects.count(), billing.metering_backlog()) == (1, 0)


def test_metering_sums_each_users_day_by_pool_and_empties_the_backlog(ada: Any, django_user_model: Any) -> None:
    bob = django_user_model.objects.create_user(email="bob@example.org")
    charge(ada)
    charge(ada, MIDNIGHT + DAY - timedelta(microseconds=1))
    charge(ada, pool="large")
    charge(ada, MIDNIGHT + DAY)
    charge(bob)
    assert billing.metering_backlog() == 5
    assert meter_all() == 5
    assert billing.metering_backlog() == 0
    assert stored() == {
        (ada.pk, TODAY, "default"): used(2),
        (ada.pk, TODAY, "large"): used(1),
        (ada.pk, TODAY + DAY, "default"): used(1),
        (bob.pk, TODAY, "default"): used(1),
    }
    assert "2026-03-01 in large" in str(DailyUsage.objects.get(pool="large"))


def test_cost_is_summed_and_a_run_counts_once_however_often_it_was_tried(ada: Any) -> None:
    prices = Prices(prompt=0, cached=0, output=3_000_000_000_000)
    run_id = uuid4()
    charge(ada, run_id=run_id, reason="lost", prompt_tokens=0, cached_tokens=0, prices=prices)
    charge(ada, run_id=run_id, epoch=2, prices=prices)
    meter_all()
    assert stored() == {(ada.pk, TODAY, "default"): used(1, output=14, wasted=6, cost=42_000_000)}


def test_events_that_come_twice_or_late_change_nothing(ada: Any) -> None:
    charge(ada)
    event = UsageEvent.objects.get()
    meter_all()
    before = stored()
    for _ in range(3):
        UsageEvent.objects.create(user_id=event.user_id, day=event.day, pool=event.pool)
    assert meter_all() == 3
    assert stored() == before == {(ada.pk, TODAY, "default"): used(1)}


def test_a_batch_is_bounded_and_takes_few_queries_per_day(
    ada: Any, django_user_model: Any, django_assert_max_num_queries: Any
) -> None:
    users = [ada, *(django_user_model.objects.create_user(email=f"u{number}@example.org") for number in range(20))]
    for user in users:
        for _ in range(3):
            charge(user)
    # Is there anything, begin, events, two of users, three of the day, the events' end, commit.
    with django_assert_max_num_queries(10):
        assert billing.meter(limit=60) == 60
    assert billing.metering_backlog() == 3
    assert billing.meter(limit=60) == 3
    assert len(stored()) == 21
    with django_assert_max_num_queries(1):
        assert billing.meter() == 0


def test_a_consumer_that_dies_before_its_commit_leaves_all_as_it_was(ada: Any) -> None:
    charge(ada)
    meter_all()
    charge(ada)
    with pytest.raises(RuntimeError), transaction.atomic():
        assert billing.meter() == 1
        raise RuntimeError
    assert (billing.metering_backlog(), stored()) == (1, {(ada.pk, TODAY, "default"): used(1)})
    meter_all()
    assert stored() == {(ada.pk, TODAY, "default"): used(2)}


def test_the_days_of_a_user_who_is_deleted_are_whole_and_stay_without_a_name(ada: Any, django_user_model: Any) -> None:
    bob = django_user_model.objects.create_user(email="bob@example.org")
    for at in (MIDNIGHT, MIDNIGHT, MIDNIGHT + DAY):
        charge(ada, at)
        charge(bob, at)
    for user in (ada, bob):
        with transaction.atomic():
            billing.complete_days(user_id=user.pk)
            user.delete()
    assert billing.metering_backlog() == 0
    assert stored() == {(None, TODAY, "default"): used(4), (None, TODAY + DAY, "default"): used(2)}


def test_events_of_a_user_who_is_gone_do_no_harm(ada: Any, django_user_model: Any) -> None:
    bob = django_user_model.objects.create_user(email="bob@example.org")
    charge(bob)
    meter_all()
    before = stored()
    bob.delete()
    UsageEvent.objects.create(user_id=uuid4(), day=TODAY, pool="default")
    charge(ada)
    assert meter_all() == 2
    assert stored() == {(None, *key): sums for (_, *key), sums in before.items()} | {
        (ada.pk, TODAY, "default"): used(1)
    }


def test_sums_that_the_ledger_does_not_back_go_when_their_day_is_made_anew(ada: Any) -> None:
    charge(ada)
    meter_all()
    DailyUsage.objects.update(output_tokens=1, runs=9)
    DailyUsage.objects.create(user=ada, day=TODAY, pool="never", output_tokens=5)
    DailyUsage.objects.create(user=ada, day=TODAY - 9 * DAY, pool="default", output_tokens=5)
    assert list(billing.remeter()) == [(TODAY - 9 * DAY, 1), (TODAY, 1)]
    meter_all()
    assert stored() == {(ada.pk, TODAY, "default"): used(1)}


def test_everything_is_made_anew_day_by_day_with_few_users_in_memory(
    ada: Any, django_user_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "PAGE", 2)
    users = [ada, *(django_user_model.objects.create_user(email=f"u{number}@example.org") for number in range(4))]
    for user in users:
        charge(user)
        charge(user, pool="large")
    charge(ada, MIDNIGHT + 2 * DAY)
    django_user_model.objects.get(email="u3@example.org").delete()
    UsageEvent.objects.all().delete()
    assert list(billing.remeter()) == [(TODAY, 4), (TODAY + 2 * DAY, 1)]
    assert billing.metering_backlog() == 5
    meter_all()
    assert len(stored()) == 9
    assert set(stored().values()) == {used(1)}


@pytest.mark.django_db
def test_nothing_is_made_anew_of_an_empty_ledger() -> None:
    assert list(billing.remeter()) == []


def test_a_ledger_that_was_kept_before_there_was_metering_is_metered(ada: Any, django_user_model: Any) -> None:
    bob = django_user_model.objects.create_user(email="bob@example.org")
    for user in (ada, bob):
        charge(user)
        charge(user, MIDNIGHT + DAY - timedelta(microseconds=1))
    bob.delete()
    UsageEvent.objects.all().delete()
    import_module("billing.migrations.0008_meter_the_ledger").meter(apps, None)
    assert billing.metering_backlog() == 1
    meter_all()
    assert stored() == {(ada.pk, TODAY, "default"): used(2), (None, TODAY, "default"): used(2)}


def test_what_is_not_metered_yet_is_read_from_the_ledger(ada: Any) -> None:
    charge(ada, MIDNIGHT - DAY)
    charge(ada)
    meter_all()
    # To tell the two sources apart.
    DailyUsage.objects.update(runs=70)
    charge(ada, MIDNIGHT + DAY / 2)
    assert billing.daily_usage(user_id=ada.pk, since=TODAY - DAY) == [
        DayUsage(day=TODAY, pool="default", used=used(2)),
        DayUsage(day=TODAY - DAY, pool="default", used=replace(used(1), runs=70)),
    ]
    meter_all()
    assert [each.used.runs for each in billing.daily_usage(user_id=ada.pk, since=TODAY - DAY)] == [2, 70]


def test_what_a_run_comes_to_is_the_sum_of_all_its_attempts(ada: Any) -> None:
    run_id = uuid4()
    for epoch in (1, 2):
        charge(ada, run_id=run_id, epoch=epoch)
    charge(ada)
    assert billing.run_charge(run_id=run_id) == RunCharge(charged=214, wasted=6)
    assert billing.run_charge(run_id=uuid4()) == RunCharge(charged=0, wasted=0)


def test_beat_has_a_bounded_share_of_the_backlog_worked_off_every_few_seconds(
    ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry: Any = settings.CELERY_BEAT_SCHEDULE["meter"]
    assert (entry["task"], entry["schedule"]) == (tasks.meter.name, 10.0)
    for _ in range(5):
        charge(ada)
    monkeypatch.setattr(metering, "BATCH", 1)
    monkeypatch.setattr(tasks, "_BATCHES", 3)
    tasks.meter()
    assert billing.metering_backlog() == 2
    tasks.meter()
    assert billing.metering_backlog() == 0


# Whose, which day, which pool and how much; how many events at most; which of the events so far once more.
RECORD = st.tuples(
    st.just("record"), st.integers(0, 1), st.integers(0, 2), st.sampled_from(["default", "large"]), st.integers(0, 9)
)
METER = st.tuples(st.just("meter"), st.integers(1, 4))
REPEAT = st.tuples(st.just("repeat"), st.integers(0, 50))
CRASH = st.tuples(st.just("crash"), st.integers(1, 4))


@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(steps=st.lists(st.one_of(RECORD, METER, REPEAT, CRASH), max_size=25))
@pytest.mark.django_db
def test_whatever_the_order_of_events_and_consumers_the_days_equal_the_ledger(steps: list[Any]) -> None:
    with transaction.atomic():
        users = [get_user_model().objects.create_user(email=f"{uuid4()}@example.org") for _ in range(2)]
        expected: defaultdict[tuple[UUID, date, str], list[Charge]] = defaultdict(list)
        events: list[dict[str, Any]] = []
        for what, *given in steps:
            match what:
                case "record":
                    who, day, pool, tokens = given
                    made = charge(users[who], MIDNIGHT + day * DAY, pool=pool, output_tokens=tokens)
                    expected[users[who].pk, made.at.date(), pool].append(made)
                    events.append({"user_id": users[who].pk, "day": made.at.date(), "pool": pool})
                case "meter":
                    billing.meter(limit=given[0])
                case "repeat" if events:
                    UsageEvent.objects.create(**events[given[0] % len(events)])
                case "crash":
                    with transaction.atomic():
                        billing.meter(limit=given[0])
                        transaction.set_rollback(True)
            sums = {
                key: used(len(made), output=sum(one.output_tokens for one in made)) for key, made in expected.items()
            }
            read = {
                (user.pk, each.day, each.pool): each.used
                for user in users
                for each in billing.daily_usage(user_id=user.pk, since=LONG_AGO)
            }
            assert read == sums, "what people read is never behind"
        meter_all()
        assert (billing.metering_backlog(), stored()) == (0, sums if steps else {})
        transaction.set_rollback(True)
