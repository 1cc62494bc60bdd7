"""Sends that race each other, the end of an answer, and the deletion of their chat; in real threads."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from conversations import chats, turns
from conversations.contracts import Begun
from conversations.errors import ChatNotFound, TurnConflict
from conversations.models import Chat, Message, Turn
from conversations.tests.support import (
    Person,
    claim_by_hand,
    closing_connections,
    queued,
    reservations,
    settle_by_hand,
    subscribe,
)
from conversations.tests.threads import Hold, at_once
from inference import api as inference
from inference.errors import AdmissionRefused, ChatBusy
from inference.models import Run

pytestmark = pytest.mark.django_db(transaction=True)


def begin(chat: Chat, content: str = "Hello", *, turn: str = "t1") -> Begun:
    return turns.begin(
        owner_id=chat.owner_id, chat_id=chat.id, content=content, client_turn_id=turn, pool=None,
        max_output_tokens=None, now=timezone.now(),
    )  # fmt: skip


def a_chat(person: Person) -> Chat:
    return chats.create(owner_id=person.user.id, title="", pool=None, now=timezone.now())


def test_duplicates_in_flight_become_one_turn_one_run_and_one_hold(ada: Person) -> None:
    chat = a_chat(ada)
    outcomes = at_once([lambda: begin(chat)] * 6)
    begun = [outcome for outcome in outcomes if isinstance(outcome, Begun)]
    assert len(begun) == 6, outcomes
    assert len({(one.run.id, one.message.id) for one in begun}) == 1
    assert sum(one.created for one in begun) == 1
    assert (Turn.objects.count(), Message.objects.count(), Run.objects.count()) == (1, 1, 1)
    assert list(reservations(ada.user.id)) == [str(begun[0].run.admission_id)]
    assert queued() == [f"{begun[0].run.id}:1"]


def test_duplicates_with_other_contents_become_one_turn_and_conflicts(ada: Person) -> None:
    chat = a_chat(ada)
    contents = ["Hello", "Good day", "Bonjour", "Moin"]
    outcomes = at_once([lambda content=content: begin(chat, content) for content in contents])  # type: ignore[misc]
    assert sum(isinstance(outcome, Begun) for outcome in outcomes) == 1, outcomes
    assert sum(isinstance(outcome, TurnConflict) for outcome in outcomes) == 3, outcomes
    assert Turn.objects.count() == 1
    assert list(reservations(ada.user.id)) == [str(Run.objects.get().admission_id)]


def test_different_messages_for_one_chat_become_one_turn_and_refusals(ada: Person) -> None:
    subscribe(ada, concurrent_runs=8)
    chat = a_chat(ada)
    outcomes = at_once([lambda turn=turn: begin(chat, turn=turn) for turn in ("a", "b", "c", "d")])  # type: ignore[misc]
    begun = [outcome for outcome in outcomes if isinstance(outcome, Begun)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, ChatBusy)]
    assert (len(begun), len(refused)) == (1, 3), outcomes
    assert {refusal.run_id for refusal in refused} == {begun[0].run.id}
    assert Turn.objects.count() == 1
    assert list(reservations(ada.user.id)) == [str(begun[0].run.admission_id)]


@pytest.mark.parametrize("known_to_redis", [True, False], ids=["later", "very first"])
def test_five_parallel_sends_never_admit_more_than_the_plan_allows(ada: Person, known_to_redis: bool) -> None:
    subscribe(ada, concurrent_runs=2)
    if known_to_redis:
        settle_by_hand(begin(a_chat(ada)).run.id)
    mine = [a_chat(ada) for _ in range(5)]
    outcomes = at_once([lambda chat=chat: begin(chat) for chat in mine])  # type: ignore[misc]
    admitted = [outcome for outcome in outcomes if isinstance(outcome, Begun)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, AdmissionRefused)]
    assert (len(admitted), len(refused)) == (2, 3), outcomes
    assert Run.objects.filter(status__in=Run.ACTIVE).count() == 2
    assert set(reservations(ada.user.id)) == {str(one.run.admission_id) for one in admitted}


def test_a_send_that_meets_the_settlement_of_the_chats_last_run_waits_for_it_without_a_deadlock(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settlement has the run and wants the chat; a send that had the chat and wanted the run would block it."""
    chat = a_chat(ada)
    hold = Hold()
    real_store = chats.store_answer
    real_admit = inference.admit

    def store_answer(settled: Any) -> None:
        hold.wait_here()
        real_store(settled)

    def admit(**asked: Any) -> Any:
        # Between this send's look for an active run and its acceptance, another one was accepted and is being settled.
        monkeypatch.setattr(inference, "admit", real_admit)
        first = begin(chat, "First", turn="t0")
        monkeypatch.setattr(chats, "store_answer", store_answer)
        settling.append(pool.submit(closing_connections(settle_by_hand), str(first.run.id)))
        hold.reached()
        held = real_admit(**asked)
        # From here on both go on at once; whoever comes first, neither may wait for the other in a circle.
        hold.go_on()
        return held

    settling: list[Any] = []
    monkeypatch.setattr(inference, "admit", admit)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(closing_connections(begin), chat, "Second")
        begun = second.result(timeout=60)
        assert settling[0].result(timeout=60).status == Run.Status.DONE
    assert begun.created
    contents = list(Message.objects.order_by("seq").values_list("seq", "role"))
    assert contents == [(1, "user"), (2, "assistant"), (3, "user")]
    assert begun.run.context["last_seq"] == 3


@pytest.mark.parametrize("number", range(3))
def test_a_deletion_racing_a_send_leaves_no_orphan(ada: Person, number: int) -> None:
    chat = a_chat(ada)

    def delete() -> None:
        chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())

    sent, deleted = at_once([lambda: begin(chat), delete])
    assert deleted is None
    assert isinstance(sent, Begun | ChatNotFound)
    assert Chat.objects.count() == 0
    assert (Turn.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
    assert reservations(ada.user.id) == {}


def test_two_deletions_at_once_both_succeed(ada: Person) -> None:
    chat = a_chat(ada)
    settle_by_hand(begin(chat).run.id)

    def delete() -> str:
        chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())
        return "deleted"

    outcomes = at_once([delete, delete])
    assert all(outcome == "deleted" or isinstance(outcome, ChatNotFound) for outcome in outcomes), outcomes
    assert "deleted" in outcomes
    assert Chat.objects.count() == 0


def test_an_answer_settled_while_its_chat_is_being_deleted_is_erased_with_it(ada: Person) -> None:
    """The settlement has written the run and waits for the chat, which is marked as deleted meanwhile."""
    chat = a_chat(ada)
    run = begin(chat).run
    claim_by_hand(run.id)
    settled, deleted = at_once(
        [
            lambda: settle_by_hand(run.id),
            lambda: chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now()),
        ]
    )
    assert not isinstance(settled, Exception), settled
    assert not isinstance(deleted, Exception), deleted
    assert not transaction.get_connection().in_atomic_block
    assert (Chat.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
