"""Chats are opened, changed and deleted; runs leave their answers in them."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone
from uuid_utils.compat import uuid7

from billing.models import UsageEntry
from conversations import chats, selectors, turns
from conversations.contracts import Begun
from conversations.errors import ChatNotFound, InvalidRequest
from conversations.models import Chat, Message, Turn
from conversations.tests.support import Person, claim_by_hand, queued, reservations, settle_by_hand
from inference.contracts import SettledRun
from inference.errors import PoolNotFound
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def chat(ada: Person) -> Chat:
    return chats.create(owner_id=ada.user.id, title="About Rome", pool=None, now=timezone.now())


def begin(chat: Chat, content: str = "Hello", *, turn: str = "t1") -> Begun:
    return turns.begin(
        owner_id=chat.owner_id, chat_id=chat.id, content=content, client_turn_id=turn, pool=None,
        max_output_tokens=None, now=timezone.now(),
    )  # fmt: skip


def change(chat: Chat, **changes: Any) -> Chat:
    given = {"title": None, "pool": None} | changes
    return chats.change(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now(), **given)


def test_a_chat_begins_with_the_default_pool_and_a_trimmed_title(ada: Person) -> None:
    now = timezone.now()
    chat = chats.create(owner_id=ada.user.id, title="  About Rome ", pool=None, now=now)
    chat.refresh_from_db()
    assert (chat.title, chat.pool, chat.created_at, chat.last_active_at) == ("About Rome", "default", now, now)


@pytest.mark.parametrize("title", ["x" * 201, "a\0", "\ud800"])
def test_a_title_that_cannot_be_stored_is_refused(ada: Person, chat: Chat, title: str) -> None:
    with pytest.raises(InvalidRequest):
        chats.create(owner_id=ada.user.id, title=title, pool=None, now=timezone.now())
    with pytest.raises(InvalidRequest):
        change(chat, title=title)
    assert list(Chat.objects.values_list("title", flat=True)) == ["About Rome"]


@pytest.mark.parametrize("pool", ["nowhere", "", "a\0b", "\ud800"])
def test_a_pool_that_is_not_open_is_refused(ada: Person, chat: Chat, pool: str) -> None:
    with pytest.raises(PoolNotFound):
        chats.create(owner_id=ada.user.id, title="", pool=pool, now=timezone.now())
    with pytest.raises(PoolNotFound):
        change(chat, pool=pool)
    assert list(Chat.objects.values_list("pool", flat=True)) == ["default"]


def test_a_change_leaves_what_was_not_named(chat: Chat) -> None:
    ModelPool.objects.create(slug="big", name="Big")
    assert change(chat, title="Rome").title == "Rome"
    changed = change(chat, pool="big")
    assert (changed.title, changed.pool) == ("Rome", "big")
    chat.refresh_from_db()
    assert (chat.title, chat.pool) == ("Rome", "big")


def test_a_title_can_be_emptied(chat: Chat) -> None:
    assert change(chat, title=" ").title == ""


def test_a_change_of_a_chat_deleted_meanwhile_finds_no_chat(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    real = selectors.chat_for

    def chat_for(*, owner_id: UUID, chat_id: UUID) -> Chat:
        found = real(owner_id=owner_id, chat_id=chat_id)
        Chat.objects.filter(id=chat_id).delete()
        return found

    monkeypatch.setattr(selectors, "chat_for", chat_for)
    with pytest.raises(ChatNotFound):
        change(chat, title="Rome")


def test_another_users_chat_can_be_neither_changed_nor_deleted(chat: Chat, eve: Person) -> None:
    with pytest.raises(ChatNotFound):
        chats.change(owner_id=eve.user.id, chat_id=chat.id, title="Mine", pool=None, now=timezone.now())
    with pytest.raises(ChatNotFound):
        chats.delete(owner_id=eve.user.id, chat_id=chat.id, now=timezone.now())
    chat.refresh_from_db()
    assert (chat.title, chat.deleted_at) == ("About Rome", None)


def test_deleting_a_chat_erases_its_turns_messages_and_runs_and_keeps_the_ledger(chat: Chat) -> None:
    settle_by_hand(begin(chat).run.id)
    chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())
    assert (Chat.objects.count(), Turn.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0, 0)
    assert UsageEntry.objects.count() == 1


def test_deleting_a_chat_leaves_the_others_alone(chat: Chat, ada: Person) -> None:
    other = chats.create(owner_id=ada.user.id, title="Other", pool=None, now=timezone.now())
    settle_by_hand(begin(other).run.id)
    chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())
    assert list(Chat.objects.values_list("title", flat=True)) == ["Other"]
    assert (Message.objects.count(), Run.objects.count()) == (2, 1)


def test_a_deleted_chat_is_not_found_a_second_time(chat: Chat) -> None:
    chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())
    with pytest.raises(ChatNotFound):
        chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())


@pytest.mark.django_db(transaction=True)
def test_deleting_a_chat_cancels_its_waiting_run_and_erases_everything_at_once(chat: Chat) -> None:
    begin(chat)
    chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())
    assert (Chat.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
    assert queued() == []
    assert reservations(chat.owner_id) == {}


@pytest.mark.django_db(transaction=True)
def test_a_chat_deleted_while_it_is_answered_is_gone_at_once_and_erased_when_the_answer_ends(chat: Chat) -> None:
    begun = begin(chat)
    claim_by_hand(begun.run.id)
    chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())
    with pytest.raises(ChatNotFound):
        selectors.chat_for(owner_id=chat.owner_id, chat_id=chat.id)
    assert list(selectors.chats_of(owner_id=chat.owner_id)) == []
    assert Run.objects.get(id=begun.run.id).cancel_requested_at is not None
    settle_by_hand(begun.run.id, status="cancelled", text="Half")
    assert (Chat.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
    assert UsageEntry.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_failing_erasure_does_not_undo_or_fail_the_settlement(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(chat)
    claim_by_hand(begun.run.id)
    chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())

    def purge(**_: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(chats, "purge", purge)
    settle_by_hand(begun.run.id, status="cancelled")
    assert Run.objects.get(id=begun.run.id).status == "cancelled"


def test_erasing_a_chat_that_is_not_deleted_does_nothing(chat: Chat) -> None:
    chats.purge(chat_id=chat.id, now=timezone.now())
    assert Chat.objects.count() == 1


@pytest.mark.parametrize(
    ("status", "state"),
    [("done", "complete"), ("cancelled", "stopped"), ("interrupted", "interrupted"), ("failed", "failed")],
)
def test_an_answer_is_stored_with_what_became_of_it(chat: Chat, status: str, state: str) -> None:
    begun = begin(chat)
    ended = settle_by_hand(begun.run.id, status=status, text="Rome\u2028", output_tokens=3)
    [answer, question] = selectors.latest_messages(chat=chat, limit=10)
    assert (answer.id, answer.role, answer.state) == (ended.message_id, "assistant", state)
    assert answer.content == "Rome\u2028"
    assert (answer.seq, answer.run_id, answer.token_count) == (2, begun.run.id, 3)
    assert (answer.turn_id, question.state) == (question.turn_id, "complete")


def test_an_answer_makes_its_chat_the_last_active_one(chat: Chat) -> None:
    begun = begin(chat)
    ended = settle_by_hand(begun.run.id)
    chat.refresh_from_db()
    assert (chat.last_seq, chat.last_active_at) == (2, ended.finished_at)


def settled(run: Run, *, run_id: UUID | None = None, message_id: UUID | None = None) -> SettledRun:
    assert run.message_id is not None
    return SettledRun(
        run_id=run_id or run.id,
        kind="turn",
        owner_id=run.owner_id,
        chat_id=run.chat_id,
        pool="default",
        context={},
        status="done",
        error_code="",
        text="Better.",
        output_tokens=2,
        token_ids=b"\5\0\0\0\6\0\0\0",
        model=run.model,
        message_id=message_id or run.message_id,
        degraded=False,
        finished_at=timezone.now() + timedelta(minutes=1),
    )


def test_a_retried_runs_answer_replaces_the_hidden_one_in_place(chat: Chat) -> None:
    run = settle_by_hand(begin(chat).run.id, status="failed", text="Ba")
    Message.objects.filter(run_id=run.id, role="assistant").update(hidden=True)
    assert [message.seq for message in selectors.latest_messages(chat=chat, limit=10)] == [1]
    chats.store_answer(settled(run))
    [answer, _] = selectors.latest_messages(chat=chat, limit=10)
    assert (answer.id, answer.seq, answer.content, answer.state) == (run.message_id, 2, "Better.", "complete")
    chat.refresh_from_db()
    assert chat.last_seq == 2


def test_a_run_that_answers_no_turn_leaves_the_chats_alone(chat: Chat) -> None:
    run = settle_by_hand(begin(chat).run.id)
    chats.store_answer(settled(run, run_id=uuid7(), message_id=uuid7()))
    assert Message.objects.count() == 2


def test_an_answer_that_cannot_be_stored_undoes_the_settlement(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = begin(chat)

    def store_answer(_: SettledRun) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(chats, "store_answer", store_answer)
    with pytest.raises(RuntimeError):
        settle_by_hand(begun.run.id)
    assert Run.objects.get(id=begun.run.id).status == "streaming"
    assert UsageEntry.objects.count() == 0


def test_a_long_chats_history_is_read_in_one_query_and_no_further_than_it_can_matter(
    chat: Chat, django_assert_num_queries: Any
) -> None:
    fill(chat, messages=200, token_count=100)
    with django_assert_num_queries(1):
        found, is_whole = selectors.history(chat=chat, before=201, token_budget=1000, model="m")
    assert not is_whole
    # One beyond the budget, so that it shows that something is left out.
    assert [message.seq for message in found] == list(range(190, 201))


def test_a_chat_of_very_short_messages_takes_few_queries(chat: Chat, django_assert_max_num_queries: Any) -> None:
    fill(chat, messages=1000, token_count=1)
    with django_assert_max_num_queries(4):
        found, is_whole = selectors.history(chat=chat, before=1001, token_budget=4096, model="m")
    assert not is_whole
    assert [message.seq for message in found] == list(range(181, 1001))


def fill(chat: Chat, *, messages: int, token_count: int) -> None:
    now = timezone.now()
    said: list[Message] = []
    asked: list[Turn] = []
    for seq in range(1, messages + 1):
        if seq % 2:
            asked.append(Turn(chat=chat, client_turn_id=str(seq), fingerprint="f", run_id=uuid7(), created_at=now))
        role = Message.Role.USER if seq % 2 else Message.Role.ASSISTANT
        said.append(
            Message(
                chat=chat,
                turn=asked[-1],
                seq=seq,
                role=role,
                content="word",
                token_count=token_count,
                run_id=asked[-1].run_id,
                created_at=now,
            )
        )
    Turn.objects.bulk_create(asked)
    Message.objects.bulk_create(said)
    Chat.objects.filter(id=chat.id).update(last_seq=messages)
