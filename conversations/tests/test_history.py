"""Chats that their owners' plans keep no longer: which go, when, and what keeps one."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from billing.models import Plan
from billing.models.plans import MOST_HISTORY_DAYS
from conversations import chats, history, tasks
from conversations.models import Chat, Message
from conversations.tests.support import Person, settle_by_hand, subscribe
from inference.models import Run

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


@pytest.fixture
def now() -> datetime:
    return timezone.now()


def a_chat(person: Person, *, unused: timedelta, now: datetime) -> UUID:
    """A chat in which something was said, for the last time so long ago."""
    chat = person.new_chat()
    settle_by_hand(person.sent(chat)["run"]["id"])
    Chat.objects.filter(id=chat).update(last_active_at=now - unused)
    return UUID(chat)


def left() -> set[UUID]:
    return set(Chat.objects.values_list("id", flat=True))


def test_without_a_limit_nothing_is_even_looked_for(ada: Person, now: datetime, django_assert_num_queries: Any) -> None:
    a_chat(ada, unused=9999 * DAY, now=now)
    with django_assert_num_queries(1):
        assert history.step(after=None, now=now) == history.Step(deleted=0, after=None)


def test_a_chat_goes_with_all_it_holds_once_it_is_unused_for_longer_than_its_owners_plan_keeps_it(
    ada: Person, eve: Person, now: datetime
) -> None:
    subscribe(ada, history_days=30)
    old, young = a_chat(ada, unused=31 * DAY, now=now), a_chat(ada, unused=29 * DAY, now=now)
    kept = a_chat(eve, unused=9999 * DAY, now=now)
    assert history.step(after=None, now=now) == history.Step(deleted=1, after=None)
    assert left() == {young, kept}
    assert not Message.objects.filter(chat_id=old).exists()
    assert not Run.objects.filter(chat_id=old).exists()
    assert history.step(after=None, now=now).deleted == 0


def test_without_a_subscription_the_default_plans_limit_counts_and_one_without_a_limit_ends_it(
    ada: Person, eve: Person, now: datetime
) -> None:
    Plan.objects.filter(is_default=True).update(history_days=7)
    subscribe(ada)
    kept, old = a_chat(ada, unused=8 * DAY, now=now), a_chat(eve, unused=8 * DAY, now=now)
    history.step(after=None, now=now)
    assert left() == {kept}
    assert old not in left()


def test_a_chat_that_is_used_since_the_look_stays(ada: Person, now: datetime) -> None:
    chat = a_chat(ada, unused=31 * DAY, now=now)
    ada.sent(str(chat), turn="t2")
    assert not chats.delete_unused(owner_id=ada.user.pk, chat_id=chat, since=now - 30 * DAY, now=now)
    assert left() == {chat}


def test_a_chat_with_an_answer_under_way_stays_whatever_its_times_say(ada: Person, now: datetime) -> None:
    chat = UUID(ada.new_chat())
    ada.sent(str(chat))
    Chat.objects.update(last_active_at=now - 31 * DAY)
    assert not chats.delete_unused(owner_id=ada.user.pk, chat_id=chat, since=now - 30 * DAY, now=now)
    assert Run.objects.get().status == "queued"


def test_the_walk_goes_on_where_a_step_ended(ada: Person, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "STEP", 2)
    subscribe(ada, history_days=30)
    ids = sorted(a_chat(ada, unused=31 * DAY, now=now) for _ in range(5))
    steps = [history.step(after=None, now=now)]
    while steps[-1].after is not None:
        steps.append(history.step(after=steps[-1].after, now=now))
    assert [(one.deleted, one.after) for one in steps] == [(2, ids[1]), (2, ids[3]), (1, None)]
    assert not left()


def test_the_daily_task_asks_for_its_next_step_until_all_is_done(
    ada: Person, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "STEP", 2)
    monkeypatch.setattr(tasks.expire_history, "delay", tasks.expire_history)
    subscribe(ada, history_days=30)
    for _ in range(3):
        a_chat(ada, unused=31 * DAY, now=now)
    tasks.expire_history()
    assert not left()


def test_a_deletion_that_broke_off_is_finished(ada: Person, now: datetime) -> None:
    broken, fresh = (a_chat(ada, unused=DAY, now=now) for _ in range(2))
    Chat.objects.filter(id=broken).update(deleted_at=now - DAY)
    Chat.objects.filter(id=fresh).update(deleted_at=now)
    assert history.finish_deletions(now=now) == 1
    assert left() == {fresh}


def test_the_account_page_and_the_api_state_the_limit(ada: Person) -> None:
    ada.client.force_login(ada.user)
    assert b"kept until you delete them" in ada.client.get("/account/").content
    assert ada.get("/api/v1/me").json()["limits"]["history_days"] is None
    subscribe(ada, history_days=30)
    assert b"nothing was said for 30 days" in ada.client.get("/account/").content
    assert ada.get("/api/v1/me").json()["limits"]["history_days"] == 30


def test_a_chat_that_cannot_be_deleted_keeps_no_other_from_it(
    ada: Person, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(ada, history_days=30)
    stuck, gone = (a_chat(ada, unused=31 * DAY, now=now) for _ in range(2))
    real = chats.delete_unused

    def delete_unused(*, chat_id: UUID, **asked: Any) -> bool:
        if chat_id == stuck:
            raise ValueError("a riddle")
        return real(chat_id=chat_id, **asked)

    monkeypatch.setattr(chats, "delete_unused", delete_unused)
    assert history.step(after=None, now=now) == history.Step(deleted=1, after=None)
    assert left() == {stuck}
    assert gone not in left()


def test_the_longest_history_that_a_plan_may_have_is_still_a_date(ada: Person, now: datetime) -> None:
    subscribe(ada, history_days=MOST_HISTORY_DAYS)
    kept = a_chat(ada, unused=9999 * DAY, now=now)
    assert history.step(after=None, now=now).deleted == 0
    assert left() == {kept}
