"""What is removed once a day."""

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from chatsite.accounts import invitations, tasks, tidying
from chatsite.accounts.models import Invitation, User
from chatsite.accounts.tests.conftest import is_logged_in, log_in
from chatsite.accounts.tidying import Tidied

DAY = timedelta(days=1)
NOTHING = Tidied(sessions=0, devices=0, invitations=0, accounts=0)


def end_session(browser: Client, at: datetime) -> None:
    """Let the browser's session have ended at this time, unused since the day before."""
    key = browser.session.session_key
    Session.objects.filter(session_key=key).update(expire_date=at)
    UserSession.objects.filter(session_key=key).update(last_seen_at=at - DAY)


def test_expired_sessions_go_with_their_devices_and_living_ones_stay(ada: User) -> None:
    now = timezone.now()
    expired, living = log_in(ada.email), log_in(ada.email)
    end_session(expired, now - timedelta(seconds=1))
    UserSession.objects.filter(session_key=living.session.session_key).update(last_seen_at=now - 10 * DAY)
    assert tidying.tidy(now=now) == Tidied(sessions=1, devices=1, invitations=0, accounts=0)
    assert is_logged_in(living)
    assert not is_logged_in(expired)
    assert [device.session_key for device in UserSession.objects.all()] == [living.session.session_key]
    assert tidying.tidy(now=now) == NOTHING


def test_a_device_that_was_just_seen_is_left_alone(ada: User) -> None:
    now = timezone.now()
    UserSession.objects.create(user=ada, session_key="a" * 32, ip="192.0.2.1", user_agent="x", last_seen_at=now)
    assert tidying.tidy(now=now) == NOTHING
    assert tidying.tidy(now=now + DAY + timedelta(seconds=1)).devices == 1


def test_invitations_that_ran_out_unused_go_after_a_month_and_used_ones_stay(ada: User, now: datetime) -> None:
    unused = invitations.create(created_by=ada, now=now, expires_at=now + DAY).invitation
    used = invitations.create(created_by=ada, now=now, expires_at=now + DAY)
    invitations.redeem(token=used.token, user=ada, now=now)
    last_moment = now + DAY + tidying.INVITATION_KEPT
    assert tidying.tidy(now=last_moment).invitations == 0
    assert tidying.tidy(now=last_moment + timedelta(seconds=1)).invitations == 1
    assert [invitation.pk for invitation in Invitation.objects.all()] == [used.invitation.pk]
    assert unused.pk != used.invitation.pk


def test_a_closed_account_that_waits_for_no_answer_is_finished(ada: User, bob: User, now: datetime) -> None:
    User.objects.filter(pk=ada.pk).update(closing_at=now, is_active=False)
    assert tidying.tidy(now=now).accounts == 1
    assert [user.pk for user in User.objects.all()] == [bob.pk]


@pytest.mark.django_db
def test_much_is_removed_with_as_many_queries_as_little(ada: User, django_assert_num_queries: Any) -> None:
    now = timezone.now()
    for count in (1, 30):
        for _ in range(count):
            key = uuid4().hex
            Session.objects.create(session_key=key, session_data="", expire_date=now - DAY)
            UserSession.objects.create(
                user=ada, session_key=key, ip="192.0.2.1", user_agent="x", last_seen_at=now - 2 * DAY
            )
            invitations.create(created_by=None, now=now - 60 * DAY)
        with django_assert_num_queries(4):
            assert tidying.tidy(now=now) == Tidied(sessions=count, devices=count, invitations=count, accounts=0)


def test_beat_asks_for_it_daily(ada: User) -> None:
    entry: Any = settings.CELERY_BEAT_SCHEDULE["tidy"]
    assert (entry["task"], entry["schedule"]) == (tasks.tidy.name, 24 * 3600)
    end_session(log_in(ada.email), timezone.now() - DAY)
    tasks.tidy()
    assert Session.objects.count() == 0
