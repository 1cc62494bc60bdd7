"""Suspending users and deleting accounts while answers are under way: what all apps do together."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client
from django.utils import timezone

from billing import adjustments
from billing.models import DailyUsage, UsageEntry, UsageEvent
from chatsite.accounts import accounts, closing, devices, keys, suspension
from chatsite.accounts.errors import LastAdministrator
from chatsite.accounts.models import User
from conversations.models import Chat, Message, Turn
from inference import runs
from inference.models import Attempt, ModelPool, Run

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery staple"


@pytest.fixture
def ada() -> User:
    return accounts.open_account(email="ada@example.org", password=PASSWORD, name="Ada")


def a_chat(owner: User) -> Chat:
    now = timezone.now()
    return Chat.objects.create(owner=owner, title="Plans", pool="default", created_at=now, last_active_at=now)


def a_turn(chat: Chat, content: str = "Hello") -> UUID:
    """A message and the queued run that will answer it; the run's id."""
    now = timezone.now()
    run_id = uuid4()
    turn = Turn.objects.create(
        chat=chat, client_turn_id=str(run_id), fingerprint="0" * 64, run_id=run_id, created_at=now
    )
    chat.last_seq += 1
    chat.save()
    Message.objects.create(
        chat=chat, turn=turn, seq=chat.last_seq, role="user", content=content, run_id=run_id, created_at=now
    )
    pool = ModelPool.objects.get(is_default=True)
    runs.accept(
        run_id=run_id,
        owner_id=chat.owner_id,
        chat_id=chat.id,
        turn=str(turn.id),
        pool=pool,
        model="a model",
        admission_id=uuid4(),
        prompt_ids=[1, 2, 3],
        max_output_tokens=10,
        context={},
        now=now,
    )
    return run_id


def a_streaming_turn(chat: Chat) -> UUID:
    run_id = a_turn(chat)
    assert runs.claim(run_id=run_id, epoch=1, worker="w", incarnation="i", now=timezone.now())
    return run_id


def settle(run_id: UUID, status: Run.Status = Run.Status.CANCELLED) -> None:
    """What the run's worker does once it stopped."""
    ending = runs.Ending(status=status, text="So far", own_tokens=2, output_tokens=2)
    assert runs.settle(run_id=run_id, epoch=1, ending=ending, now=timezone.now())


def log_in(user: User) -> Client:
    browser = Client()
    assert browser.post("/login/", {"login": user.email, "password": PASSWORD}).status_code == 302
    return browser


def test_suspending_stops_waiting_answers_at_once_and_asks_running_ones_to_stop(ada: User) -> None:
    waiting, streaming = a_turn(a_chat(ada)), a_streaming_turn(a_chat(ada))
    assert suspension.suspend(user=ada, now=timezone.now())
    assert Run.objects.get(id=waiting).status == "cancelled"
    assert Run.objects.get(id=streaming).cancel_requested_at is not None
    assert not suspension.suspend(user=ada, now=timezone.now())


def test_the_admin_suspends_and_reinstates(ada: User) -> None:
    root = accounts.open_account(email="root@example.org", password=PASSWORD, administrator=True)
    admin, browser, waiting = log_in(root), log_in(ada), a_turn(a_chat(ada))
    form = {"action": "suspend", "_selected_action": [str(ada.pk), str(root.pk)]}
    asked = admin.post("/admin/accounts/user/", form)
    assert asked.status_code == 200
    assert "ada@example.org</a>" in asked.content.decode()
    assert "root@example.org</a>" not in asked.content.decode(), "nobody suspends themselves by accident"
    assert browser.get("/account/").status_code == 200, "nothing happens before the answer"
    form["confirmed"] = "yes"
    assert admin.post("/admin/accounts/user/", form).status_code == 302
    assert browser.get("/account/").status_code == 302
    assert Run.objects.get(id=waiting).status == "cancelled"
    assert admin.get("/admin/").status_code == 200
    admin.post("/admin/accounts/user/", form | {"action": "reinstate"})
    assert log_in(ada).get("/account/").status_code == 200


def test_deleting_needs_the_password(ada: User) -> None:
    browser = log_in(ada)
    response = browser.post("/account/delete/", {"password": "wrong"})
    assert response.status_code == 200
    assert b"not your password" in response.content
    assert User.objects.filter(pk=ada.pk, is_active=True).exists()


def test_deleting_removes_the_content_and_keeps_unnamed_usage(
    ada: User, django_capture_on_commit_callbacks: Any
) -> None:
    chat = a_chat(ada)
    with django_capture_on_commit_callbacks(execute=True):
        settle(a_streaming_turn(chat), Run.Status.DONE)
    browser = log_in(ada)
    response = browser.post("/account/delete/", {"password": PASSWORD})
    assert response.headers["Location"] == "/login/"
    assert b"are deleted" in browser.get("/login/").content
    for model in (User, Chat, Message, Turn, Run, Attempt):
        assert not model.objects.exists(), model
    entry = UsageEntry.objects.get()
    assert entry.user_id is None
    assert (entry.prompt_tokens, entry.output_tokens) == (3, 2)
    # Nobody had metered it yet, and nobody could any more.
    day = DailyUsage.objects.get()
    assert (day.user_id, day.runs, day.prompt_tokens, day.output_tokens) == (None, 1, 3, 2)
    assert not UsageEvent.objects.exists()


def test_a_running_answer_is_stopped_and_the_rest_goes_when_it_has_ended(
    ada: User, django_capture_on_commit_callbacks: Any
) -> None:
    running, other = a_streaming_turn(a_chat(ada)), a_streaming_turn(a_chat(ada))
    browser = log_in(ada)
    browser.post("/account/delete/", {"password": PASSWORD})
    row = User.objects.get()
    assert not row.is_active
    assert (row.email, row.name) == (f"deleted-{ada.pk}@invalid", "")
    assert browser.get("/account/").status_code == 302
    assert Run.objects.filter(cancel_requested_at__isnull=False).count() == 2

    with django_capture_on_commit_callbacks(execute=True):
        settle(running)
    assert User.objects.exists(), "an answer is still under way"
    with django_capture_on_commit_callbacks(execute=True):
        settle(other)
    assert not User.objects.exists()
    assert not Message.objects.exists()
    assert [(entry.user_id, entry.output_tokens) for entry in UsageEntry.objects.all()] == [(None, 2), (None, 2)]


def test_a_deleted_account_lets_nobody_in_and_frees_its_address(ada: User) -> None:
    a_streaming_turn(a_chat(ada))
    key = keys.create(user=ada, name="", now=timezone.now()).secret
    log_in(ada)
    closing.close(user=ada, now=timezone.now())
    assert Client(headers={"authorization": f"Bearer {key}"}).get("/api/v1/me").status_code == 401
    assert Client().post("/login/", {"login": "ada@example.org", "password": PASSWORD}).status_code == 200
    assert not suspension.reinstate(user=ada)
    form = {"email": "ada@example.org", "password1": PASSWORD}
    assert Client().post("/signup/", form).status_code == 302


def test_the_last_administrator_stays(ada: User) -> None:
    root = accounts.open_account(email="root@example.org", password=PASSWORD, administrator=True)
    with pytest.raises(LastAdministrator):
        closing.close(user=root, now=timezone.now())
    response = log_in(root).post("/account/delete/", {"password": PASSWORD})
    assert b"last administrator" in response.content
    accounts.open_account(email="second@example.org", password=PASSWORD, administrator=True)
    closing.close(user=root, now=timezone.now())
    assert not User.objects.filter(pk=root.pk).exists()


def test_the_export_holds_ones_own_chats_and_usage_and_nobody_elses(
    ada: User, django_capture_on_commit_callbacks: Any
) -> None:
    bob = accounts.open_account(email="bob@example.org", password=PASSWORD)
    a_turn(a_chat(bob), "a secret of Bob's")
    ModelPool.objects.update(output_price=3_000_000)
    for user, tokens in ((ada, -1), (bob, -7)):
        adjustments.adjust(
            user_id=user.pk,
            tokens=tokens,
            cost=0,
            reason="An outage",
            author_id=None,
            author_email="r",
            now=timezone.now(),
        )
    chat = a_chat(ada)
    with django_capture_on_commit_callbacks(execute=True):
        settle(a_streaming_turn(chat), Run.Status.DONE)
    body = log_in(ada).get("/account/export/").getvalue().decode()
    assert "secret of Bob" not in body
    exported = json.loads(body)
    (only,) = exported["chats"]
    assert only["title"] == "Plans"
    assert [(message["role"], message["content"]) for message in only["messages"]] == [
        ("user", "Hello"),
        ("assistant", "So far"),
    ]
    assert exported["usage"][0]["output_tokens"] == 2
    assert "user_id" not in exported["usage"][0]
    assert (exported["usage"][0]["output_price"], exported["usage"][0]["cost"]) == (3_000_000, 6)
    assert exported["currency"] == "USD"
    (adjustment,) = exported["adjustments"]
    assert (adjustment["tokens"], adjustment["reason"]) == (-1, "An outage")


def test_a_session_that_nobody_used_for_long_is_not_listed(ada: User) -> None:
    from django.contrib.sessions.models import Session

    log_in(ada)
    Session.objects.update(expire_date=timezone.now() - timedelta(days=1))
    assert devices.of_user(user=ada, current_key=None) == []
