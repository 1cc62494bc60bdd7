"""Retries that race each other, a new message, a cancel and the deletion of their chat; in real threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone

from conversations import acceptance, chats, retries
from conversations.contracts import Begun, Retried
from conversations.errors import ChatNotFound
from conversations.models import Chat, Message, Turn
from conversations.tests.support import Person, closing_connections, queued, reservations, settle_by_hand, subscribe
from conversations.tests.test_turns_racing import begin
from conversations.tests.threads import Hold, at_once
from inference import api as inference
from inference.errors import ChatBusy, RunNotFound
from inference.models import Attempt, Run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def chat(ada: Person) -> Chat:
    return chats.create(owner_id=ada.user.id, title="", pool=None, now=timezone.now())


@pytest.fixture
def ended(chat: Chat) -> Run:
    """The run of a turn whose answer broke off."""
    return settle_by_hand(begin(chat).run.id, status="interrupted", text="Ada was")


def retry(run: Run) -> Retried:
    return retries.retry(owner_id=run.owner_id, run_id=run.id, now=timezone.now())


def delete(run: Run) -> None:
    chats.delete(owner_id=run.owner_id, chat_id=run.chat_id, now=timezone.now())


def test_retries_in_flight_become_one_attempt_and_one_hold(ended: Run) -> None:
    outcomes = at_once([lambda: retry(ended)] * 6)
    retried = [outcome for outcome in outcomes if isinstance(outcome, Retried)]
    assert len(retried) == 6, outcomes
    assert {(one.run.id, one.run.epoch) for one in retried} == {(ended.id, 2)}
    assert sum(one.created for one in retried) == 1
    assert list(reservations(ended.owner_id)) == [str(retried[0].run.admission_id)]
    assert queued() == [f"{ended.id}:2"]
    assert Attempt.objects.get().text == "Ada was"


def test_retries_by_a_user_who_may_have_one_answer_at_a_time_are_one_and_no_refusal(ada: Person, ended: Run) -> None:
    subscribe(ada, concurrent_runs=1)
    outcomes = at_once([lambda: retry(ended)] * 4)
    assert [type(outcome) for outcome in outcomes] == [Retried] * 4, outcomes
    assert len(reservations(ada.user.id)) == 1


@pytest.mark.parametrize("number", range(4))
def test_of_a_retry_and_a_new_message_one_is_accepted_and_the_other_finds_the_chat_busy(
    chat: Chat, ended: Run, number: int
) -> None:
    retried, begun = at_once([lambda: retry(ended), lambda: begin(chat, "And then?", turn="t2")])
    winners = [outcome.run for outcome in (retried, begun) if isinstance(outcome, Retried | Begun)]
    losers = [outcome for outcome in (retried, begun) if isinstance(outcome, ChatBusy)]
    assert (len(winners), len(losers)) == (1, 1), (retried, begun)
    winner = winners[0]
    assert losers[0].run_id == winner.id
    assert [run.id for run in Run.objects.filter(status__in=Run.ACTIVE)] == [winner.id]
    assert list(reservations(ended.owner_id)) == [str(winner.admission_id)]
    assert Message.objects.filter(hidden=True).exists() == isinstance(retried, Retried)


@pytest.mark.parametrize("number", range(4))
def test_a_cancel_racing_a_retry_stops_it_or_comes_too_early(ada: Person, ended: Run, number: int) -> None:
    retried, cancelled = at_once(
        [lambda: retry(ended), lambda: inference.cancel(owner_id=ada.user.id, run_id=ended.id, now=timezone.now())]
    )
    assert not isinstance(retried, Exception), retried
    assert not isinstance(cancelled, Exception), cancelled
    run = Run.objects.get(id=ended.id)
    assert (run.status, run.epoch) in [("cancelled", 2), ("queued", 2)]
    assert len(reservations(ada.user.id)) == (run.status == "queued")
    assert Message.objects.get(role="assistant").hidden == (run.status == "queued")


@pytest.mark.parametrize("number", range(4))
def test_a_deletion_racing_a_retry_leaves_nothing(ended: Run, number: int) -> None:
    retried, deleted = at_once([lambda: retry(ended), lambda: delete(ended)])
    assert deleted is None
    assert isinstance(retried, Retried | ChatNotFound | RunNotFound), retried
    nothing_is_left(ended.owner_id)


def test_a_retry_that_meets_the_erasure_of_its_chat_gives_way_without_a_deadlock(
    ended: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry has its run and wants the chat; the erasure has the chat and wants the run."""
    hold = Hold()
    purging = threading.Event()
    real_lock, real_forget = acceptance.lock_chat, inference.forget_chat

    def lock_chat(chat: Chat) -> Chat:
        hold.wait_here()
        return real_lock(chat)

    def forget_chat(**asked: Any) -> None:
        purging.set()
        real_forget(**asked)

    monkeypatch.setattr(acceptance, "lock_chat", lock_chat)
    monkeypatch.setattr(inference, "forget_chat", forget_chat)
    with ThreadPoolExecutor(2) as pool:
        retrying = pool.submit(closing_connections(retry), ended)
        hold.reached()
        deleting = pool.submit(closing_connections(delete), ended)
        # SQLite has one writer at a time: there the deletion has not even begun.
        assert connection.vendor == "sqlite" or purging.wait(timeout=30)
        hold.go_on()
        assert isinstance(retrying.exception(timeout=60), ChatNotFound | RunNotFound | None)
        deleting.result(timeout=60)
    nothing_is_left(ended.owner_id)


def nothing_is_left(owner_id: UUID) -> None:
    assert [model.objects.count() for model in (Chat, Turn, Message, Run, Attempt)] == [0, 0, 0, 0, 0]
    assert (reservations(owner_id), queued()) == ({}, [])
