"""Subscriptions of one user never overlap: the database refuses it, and the admin says what is in the way."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test import Client
from django.utils import timezone

from billing import subscriptions
from billing.errors import SubscriptionInTheWay
from billing.models import Plan, Subscription
from chatsite.audit.models import AuditEntry
from inference.tests.threads import at_once

SCREEN = "/admin/billing/subscription/"
DAY = timedelta(days=1)


class Editor:
    """As much of Django's schema editor as a migration of ours needs; its own wants no transaction around it."""

    connection = connection

    def execute(self, sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)


EDITOR = Editor()


@pytest.fixture
def pro(db: None) -> Plan:
    return Plan.objects.get_or_create(slug="pro", defaults={"name": "Pro"})[0]


@pytest.fixture
def subscribe(ada: Any, pro: Plan, now: datetime) -> Callable[..., Subscription]:
    """Ada's subscription to Pro from so many days after now until so many."""

    def subscribe_one(starts: float, ends: float | None = None, *, user: Any = ada) -> Subscription:
        until = None if ends is None else now + ends * DAY
        return Subscription.objects.create(user=user, plan=pro, starts_at=now + starts * DAY, ends_at=until)

    return subscribe_one


OVERLAPS = [
    ((0, 10), (5, 15)),
    ((0, 10), (-5, 5)),
    ((0, 10), (2, 8)),
    ((0, 10), (-5, 15)),
    ((0, 10), (0, 10)),
    ((0, 10), (9.999, None)),
    ((0, 10), (-5, None)),
    ((0, None), (5, 15)),
    ((0, None), (-5, 0.001)),
    ((0, None), (5, None)),
]
SEPARATE = [
    ((0, 10), (10, 20)),
    ((0, 10), (-10, 0)),
    ((0, 10), (10, None)),
    ((0, None), (-10, 0)),
    ((0, 10), (11, 12)),
]


@pytest.mark.parametrize(("first", "second"), OVERLAPS)
def test_subscriptions_that_overlap_are_not_stored(subscribe: Any, first: Any, second: Any) -> None:
    subscribe(*first)
    with pytest.raises(IntegrityError), transaction.atomic():
        subscribe(*second)
    assert Subscription.objects.count() == 1


@pytest.mark.parametrize(("first", "second"), SEPARATE)
def test_one_may_begin_when_the_other_ends(subscribe: Any, first: Any, second: Any) -> None:
    subscribe(*first)
    subscribe(*second)
    assert Subscription.objects.count() == 2


def test_the_second_in_which_one_ends_is_divided_exactly(ada: Any, pro: Plan, now: datetime) -> None:
    half, microsecond = now + timedelta(milliseconds=500), timedelta(microseconds=1)
    Subscription.objects.create(user=ada, plan=pro, starts_at=now, ends_at=half)
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.create(user=ada, plan=pro, starts_at=half - microsecond)
    Subscription.objects.create(user=ada, plan=pro, starts_at=half)


def test_a_change_that_makes_two_overlap_is_refused_too(subscribe: Any, now: datetime) -> None:
    first = subscribe(0, 10)
    second = subscribe(10, 20)
    for changes in ({"ends_at": now + 11 * DAY}, {"ends_at": None}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Subscription.objects.filter(pk=first.pk).update(**changes)
    Subscription.objects.filter(pk=second.pk).update(ends_at=None)
    Subscription.objects.filter(pk=first.pk).update(ends_at=now + 9 * DAY)


def test_other_users_are_in_nobodys_way(subscribe: Any, now: datetime) -> None:
    eve = get_user_model().objects.create_user(email="eve@example.org")
    subscribe(0)
    other = subscribe(0, user=eve)
    subscriptions.ensure_free(user_id=eve.pk, starts_at=now, ends_at=None, but=other.pk)


@pytest.mark.parametrize(("first", "second"), OVERLAPS)
def test_who_asks_is_told_what_is_in_the_way(subscribe: Any, ada: Any, now: datetime, first: Any, second: Any) -> None:
    there = subscribe(*first)
    starts, ends = second
    until = None if ends is None else now + ends * DAY
    with pytest.raises(SubscriptionInTheWay) as refusal:
        subscriptions.ensure_free(user_id=ada.pk, starts_at=now + starts * DAY, ends_at=until)
    assert (refusal.value.plan, refusal.value.starts_at, refusal.value.ends_at) == (
        "Pro", there.starts_at, there.ends_at,
    )  # fmt: skip
    subscriptions.ensure_free(user_id=ada.pk, starts_at=now + starts * DAY, ends_at=until, but=there.pk)


@pytest.mark.parametrize(("first", "second"), SEPARATE)
def test_a_time_that_is_free_is_nobodys(subscribe: Any, ada: Any, now: datetime, first: Any, second: Any) -> None:
    subscribe(*first)
    starts, ends = second
    until = None if ends is None else now + ends * DAY
    subscriptions.ensure_free(user_id=ada.pk, starts_at=now + starts * DAY, ends_at=until)


@pytest.mark.django_db(transaction=True)
def test_of_many_overlapping_writes_at_once_one_is_stored(ada: Any, pro: Plan, now: datetime) -> None:
    def write(day: int) -> Subscription:
        until = now + (day + 10) * DAY
        return Subscription.objects.create(user=ada, plan=pro, starts_at=now + day * DAY, ends_at=until)

    outcomes = at_once([partial(write, day) for day in range(6)])
    assert len([one for one in outcomes if isinstance(one, Subscription)]) == 1, outcomes
    # Two that wait for each other are a deadlock to Postgres, which ends it.
    assert all(isinstance(one, Subscription | DatabaseError) for one in outcomes), outcomes
    assert Subscription.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_many_writes_that_ask_first_one_is_stored_and_the_others_hear_of_it(
    ada: Any, pro: Plan, now: datetime
) -> None:
    def write(day: int) -> Subscription:
        starts_at, until = now + day * DAY, now + (day + 10) * DAY
        with transaction.atomic():
            subscriptions.ensure_free(user_id=ada.pk, starts_at=starts_at, ends_at=until)
            return Subscription.objects.create(user=ada, plan=pro, starts_at=starts_at, ends_at=until)

    outcomes = at_once([partial(write, day) for day in range(6)])
    assert sorted(type(one).__name__ for one in outcomes) == ["Subscription"] + ["SubscriptionInTheWay"] * 5, outcomes


def form(user: Any, plan: Plan, starts_at: datetime, ends_at: datetime | None = None) -> dict[str, str]:
    return {"user": str(user.pk), "plan": str(plan.pk), **split("starts_at", starts_at), **split("ends_at", ends_at)}


def split(name: str, at: datetime | None) -> dict[str, str]:
    return {f"{name}_0": f"{at:%Y-%m-%d}" if at else "", f"{name}_1": f"{at:%H:%M:%S}" if at else ""}


def test_a_subscription_is_added_and_its_end_changed(operator: Client, ada: Any, pro: Plan, now: datetime) -> None:
    assert operator.post(f"{SCREEN}add/", form(ada, pro, now)).status_code == 302
    stored = Subscription.objects.get()
    assert (stored.user_id, stored.plan, stored.starts_at, stored.ends_at) == (ada.pk, pro, now, None)
    address = f"{SCREEN}{stored.pk}/change/"
    tampered = {"starts_at_0": "2020-01-01", "starts_at_1": "00:00"}
    assert operator.post(address, split("ends_at", now + DAY) | tampered).status_code == 302
    stored = Subscription.objects.get()
    assert (stored.starts_at, stored.ends_at) == (now, now + DAY)
    acts = [(entry.action, entry.detail) for entry in AuditEntry.objects.order_by("id")]
    assert [action for action, _ in acts] == ["add", "change"]
    assert "nds at" in acts[1][1]


def test_a_form_begins_now_with_the_user_that_it_was_opened_for(operator: Client, ada: Any) -> None:
    page = operator.get(f"{SCREEN}add/?user={ada.pk}")
    assert f'<option value="{ada.pk}" selected' in page.content.decode()
    begins: datetime = page.context["adminform"].form.initial["starts_at"]
    assert timedelta(0) <= timezone.now() - begins < timedelta(minutes=1)


def said(response: Any, *, at: str = "user") -> list[str]:
    """What the form has to say; nothing but at that field."""
    assert response.status_code == 200
    found = response.context["adminform"].form.errors
    assert list(found) == [at], found
    return list(found[at])


def test_the_form_names_the_subscription_in_the_way_and_stores_nothing(
    operator: Client, subscribe: Any, ada: Any, pro: Plan, now: datetime
) -> None:
    subscribe(0, 10)
    [sentence] = said(operator.post(f"{SCREEN}add/", form(ada, pro, now + DAY)))
    assert "to Pro from 2026-03-01 12:00:00 UTC until 2026-03-11 12:00:00 UTC is in the way" in sentence
    assert operator.post(f"{SCREEN}add/", form(ada, pro, now + 10 * DAY)).status_code == 302
    [sentence] = said(operator.post(f"{SCREEN}add/", form(ada, pro, now + 20 * DAY)))
    assert "from 2026-03-11 12:00:00 UTC without an end is in the way" in sentence
    assert Subscription.objects.count() == 2


def test_prolonging_into_the_next_subscription_is_refused_in_the_form(
    operator: Client, subscribe: Any, now: datetime
) -> None:
    first = subscribe(0, 10)
    subscribe(10)
    assert "in the way" in said(operator.post(f"{SCREEN}{first.pk}/change/", split("ends_at", None)), at="ends_at")[0]
    first.refresh_from_db()
    assert first.ends_at == now + 10 * DAY


@pytest.mark.parametrize("days", [0, -1])
def test_an_end_before_the_start_is_an_error_at_the_end(
    operator: Client, subscribe: Any, ada: Any, pro: Plan, now: datetime, days: int
) -> None:
    subscribe(-30, -20)
    response = operator.post(f"{SCREEN}add/", form(ada, pro, now, now + days * DAY))
    assert dict(response.context["adminform"].form.errors) == {"ends_at": ["must be after the start"]}


def test_what_is_no_time_is_told_by_its_field_alone(operator: Client, ada: Any, pro: Plan, now: datetime) -> None:
    response = operator.post(f"{SCREEN}add/", form(ada, pro, now) | {"starts_at_0": "2026-02-30"})
    assert list(response.context["adminform"].form.errors) == ["starts_at"]
    with pytest.raises(ValidationError):
        Subscription(starts_at=now, ends_at=now).clean()


def test_a_race_that_is_lost_to_the_constraint_is_told_as_an_overlap(
    operator: Client, subscribe: Any, ada: Any, pro: Plan, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who does not ask stores a subscription after the form was found to be fine."""
    look = subscriptions.ensure_free
    looks = []

    def look_too_early(**asked: Any) -> None:
        looks.append(asked)
        if len(looks) > 1:
            look(**asked)

    monkeypatch.setattr(subscriptions, "ensure_free", look_too_early)
    subscribe(0, 5)
    assert "to Pro from" in said(operator.post(f"{SCREEN}add/", form(ada, pro, now + DAY, now + 9 * DAY)))[0]
    assert len(looks) == 2
    assert Subscription.objects.count() == 1
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_forms_sent_at_once_one_is_stored_and_none_fails(ada: Any, root: Any, pro: Plan, now: datetime) -> None:
    def send(day: int) -> int:
        browser = Client()
        browser.force_login(root)
        return int(browser.post(f"{SCREEN}add/", form(ada, pro, now + day * DAY, now + (day + 10) * DAY)).status_code)

    assert sorted(at_once([partial(send, day) for day in range(4)]), key=str) == [200, 200, 200, 302]
    assert Subscription.objects.count() == 1


def test_ending_ends_what_goes_on_and_nothing_else(subscribe: Any, now: datetime) -> None:
    past, current, future = subscribe(-10, -5), subscribe(-5, 5), subscribe(5)
    ended = [subscriptions.end(subscription_id=one.pk, now=now) for one in (past, current, future)]
    assert ended == [False, True, False]
    assert not subscriptions.end(subscription_id=current.pk, now=now)
    current.refresh_from_db()
    assert current.ends_at == now


def test_subscriptions_are_ended_from_the_list_and_each_end_is_recorded(operator: Client, ada: Any, pro: Plan) -> None:
    now = timezone.now()
    current = Subscription.objects.create(user=ada, plan=pro, starts_at=now - DAY, ends_at=now + DAY)
    future = Subscription.objects.create(user=ada, plan=pro, starts_at=now + DAY)
    chosen = {"action": "end_now", "_selected_action": [str(current.pk), str(future.pk)]}
    page = operator.post(SCREEN, chosen, follow=True).content.decode()
    assert "1 ended." in page
    assert "have not begun" in page
    current.refresh_from_db()
    assert current.ends_at is not None
    assert current.ends_at <= timezone.now()
    assert list(AuditEntry.objects.values_list("action", "object_id")) == [("change", str(current.pk))]
    # The next may begin in the same second.
    assert operator.post(f"{SCREEN}add/", form(ada, pro, current.ends_at, now + DAY)).status_code == 302


def test_ending_all_that_was_chosen_needs_no_more_words(operator: Client, ada: Any, pro: Plan) -> None:
    current = Subscription.objects.create(user=ada, plan=pro, starts_at=timezone.now() - DAY)
    page = operator.post(SCREEN, {"action": "end_now", "_selected_action": str(current.pk)}, follow=True)
    assert "have not begun" not in page.content.decode()


def test_what_overlapped_before_it_was_refused_ends_where_the_next_begins(
    subscribe: Callable[..., Subscription], ada: Any, now: datetime
) -> None:
    migration = import_module("billing.migrations.0005_plans")
    migration.allow_overlaps(apps, EDITOR)
    first, second, twin, last = subscribe(-9, 9), subscribe(0, 5), subscribe(0, 6), subscribe(3)
    migration.part(apps, EDITOR)
    migration.refuse_overlaps(apps, EDITOR)
    assert list(Subscription.objects.order_by("starts_at").values_list("id", "ends_at")) == [
        (first.id, now), (twin.id, now + 3 * DAY), (last.id, None),
    ]  # fmt: skip
    assert second.id not in Subscription.objects.values_list("id", flat=True)
    with pytest.raises(DatabaseError), transaction.atomic():
        subscribe(1, 2)
