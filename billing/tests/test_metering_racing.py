"""Consumers, settlements and deletions at the same moment, each with a database connection of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any, TypeVar

import pytest
from django.db import connection, connections, transaction
from django.db.models import Sum

from billing import api as billing
from billing import metering
from billing.models import DailyUsage, UsageEntry, UsageEvent
from billing.tests.support import record

pytestmark = pytest.mark.django_db(transaction=True)

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
# SQLite has one writer at a time: who comes second waits for the whole of the first one's transaction.
side_by_side = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")

T = TypeVar("T")


def begin(pool: ThreadPoolExecutor, call: Callable[[], T]) -> "Future[T]":
    """Start a call whose connection ends with it."""

    def run() -> T:
        try:
            return call()
        finally:
            connections.close_all()

    return pool.submit(run)


def charge(user: Any, *, output_tokens: int = 1) -> None:
    with transaction.atomic():
        record(user, at=MIDNIGHT, output_tokens=output_tokens)


def metered() -> dict[object, int]:
    rows = DailyUsage.objects.order_by().values("user").annotate(tokens=Sum("output_tokens"))
    return {row["user"]: row["tokens"] for row in rows}


@pytest.fixture
def users(ada: Any, django_user_model: Any) -> list[Any]:
    return [ada, *(django_user_model.objects.create_user(email=f"u{number}@example.org") for number in range(3))]


class Pause:
    """Stops whoever makes a day anew between reading the ledger and writing the sums, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = DailyUsage.objects.bulk_create
        self._reached, self._go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(DailyUsage.objects, "bulk_create", self._pausing)

    def _pausing(self, rows: list[DailyUsage], **how: Any) -> list[DailyUsage]:
        if not self._reached.is_set():
            self._reached.set()
            assert self._go_on.wait(timeout=30)
        return self._write(rows, **how)

    def reached(self) -> None:
        assert self._reached.wait(timeout=30)

    def go_on(self) -> None:
        self._go_on.set()


def test_two_consumers_beside_settlements_end_with_what_the_ledger_says(users: list[Any]) -> None:
    over = threading.Event()

    def consume() -> None:
        while not over.is_set() or billing.metering_backlog():
            billing.meter(limit=3)

    def settle() -> None:
        for number in range(30):
            charge(users[number % len(users)], output_tokens=number)

    with ThreadPoolExecutor(4) as pool:
        consumers = [begin(pool, consume) for _ in range(2)]
        settlements = [begin(pool, settle) for _ in range(2)]
        for settlement in settlements:
            settlement.result(timeout=60)
        over.set()
        for consumer in consumers:
            consumer.result(timeout=60)
    sums = UsageEntry.objects.order_by().values("user").annotate(tokens=Sum("output_tokens"))
    assert metered() == {row["user"]: row["tokens"] for row in sums}
    assert sum(metered().values()) == 2 * sum(range(30))


@side_by_side
def test_a_day_that_another_consumer_has_in_hand_is_left_for_the_next_time(
    users: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob, *_ = users
    charge(ada)
    pause = Pause(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        slow = begin(pool, billing.meter)
        pause.reached()
        charge(ada)
        charge(bob)
        assert billing.meter() == 1, "Bob's alone"
        assert metered() == {bob.pk: 1}
        assert billing.meter() == 0
        pause.go_on()
        assert slow.result(timeout=30) == 1
    assert metered()[ada.pk] == 1, "it had read the ledger before the second"
    assert (billing.meter(), metered()) == (1, {ada.pk: 2, bob.pk: 1})


def test_a_user_who_is_deleted_while_their_day_is_made_anew_leaves_it_without_a_name(
    users: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = users[0]
    charge(ada)
    pause = Pause(monkeypatch)
    began = threading.Event()

    def delete() -> None:
        began.set()
        with transaction.atomic():
            locked = type(ada).objects.select_for_update().get(pk=ada.pk)
            billing.complete_days(user_id=ada.pk)
            locked.delete()

    with ThreadPoolExecutor(2) as pool:
        slow = begin(pool, billing.meter)
        pause.reached()
        deletion = begin(pool, delete)
        assert began.wait(timeout=30)
        pause.go_on()
        assert slow.result(timeout=30) == 1
        deletion.result(timeout=30)
    assert (metered(), billing.metering_backlog()) == ({None: 1}, 0)


@side_by_side
def test_a_consumer_passes_over_a_user_who_is_being_deleted(users: list[Any]) -> None:
    ada = users[0]
    charge(ada)
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        locked = type(ada).objects.select_for_update().get(pk=ada.pk)
        assert begin(pool, billing.meter).result(timeout=30) == 0
        billing.complete_days(user_id=ada.pk)
        locked.delete()
    assert (metered(), billing.metering_backlog()) == ({None: 1}, 0)


def test_a_day_is_never_read_behind_the_ledger_while_it_is_metered(ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    charge(ada)
    billing.meter()
    charge(ada)
    # The event is worked off right after the reader has asked for it.
    ask = UsageEvent.objects.filter

    def asked(**which: Any) -> Any:
        found = ask(**which).aggregate

        def aggregate(**columns: Any) -> Any:
            answer = found(**columns)
            monkeypatch.undo()
            assert metering.meter() == 1
            return answer

        return type("Asked", (), {"aggregate": staticmethod(aggregate)})

    monkeypatch.setattr(UsageEvent.objects, "filter", asked)
    [day] = billing.daily_usage(user_id=ada.pk, since=date(2026, 3, 1))
    assert day.used.output == 2
    assert billing.metering_backlog() == 0
