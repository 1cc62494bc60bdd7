"""Sending a message: what is accepted, what is refused, and that a refusal leaves nothing behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.models import Account
from conversations import chats, turns
from conversations.contracts import Begun
from conversations.errors import Blocked, ChatNotFound, InvalidRequest, TooLong, TurnConflict
from conversations.models import Chat, Message, Turn
from conversations.tests.support import (
    Person,
    lose_redis,
    pretend_a_worker,
    queued,
    reservations,
    settle_by_hand,
    subscribe,
)
from inference import admission, store
from inference import api as inference
from inference.errors import AdmissionRefused, ChatBusy, PoolNotFound, ServiceUnavailable
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def chat(ada: Person) -> Chat:
    return chats.create(owner_id=ada.user.id, title="", pool=None, now=timezone.now())


def begin(chat: Chat, content: str = "Hello", *, turn: str = "t1", **more: Any) -> Begun:
    asked: dict[str, Any] = {"pool": None, "max_output_tokens": None, "now": timezone.now()} | more
    return turns.begin(owner_id=chat.owner_id, chat_id=chat.id, content=content, client_turn_id=turn, **asked)


def everything_of(owner_id: UUID) -> tuple[object, ...]:
    """What a refusal must leave as it is: rows, holds and the queue."""
    chats_now = list(Chat.objects.order_by("id").values_list("id", "title", "last_seq", "last_active_at"))
    counts = [model.objects.count() for model in (Turn, Message, Run)]
    return chats_now, counts, sorted(reservations(owner_id)), queued()


@contextmanager
def nothing_changes(owner_id: UUID) -> Iterator[None]:
    before = everything_of(owner_id)
    yield
    assert everything_of(owner_id) == before


def test_an_accepted_turn_is_stored_held_and_queued_once(chat: Chat) -> None:
    now = timezone.now() + timedelta(minutes=5)
    begun = begin(chat, "What is the capital of Italy?", now=now)
    assert begun.created
    assert (begun.run.status, begun.run.pool, begun.run.epoch) == ("queued", "default", 1)
    assert (begun.message.seq, begun.message.role, begun.message.content) == (
        1,
        "user",
        "What is the capital of Italy?",
    )
    turn = Turn.objects.get(chat=chat)
    assert (turn.client_turn_id, turn.run_id, begun.message.run_id) == ("t1", begun.run.id, begun.run.id)
    [(admission, hold)] = reservations(chat.owner_id).items()
    run = Run.objects.get(id=begun.run.id)
    assert (str(run.admission_id), run.turn, run.reserved_tokens) == (
        admission, hold.split("|")[0], run.prompt_tokens + 1024,
    )  # fmt: skip
    assert hold.split("|")[3] == "1", "the hold is confirmed"
    assert queued() == [f"{begun.run.id}:1"]
    chat.refresh_from_db()
    assert (chat.last_seq, chat.last_active_at) == (1, now)


def test_the_message_is_stored_with_its_own_token_count(chat: Chat) -> None:
    begun = begin(chat, "héllo")
    assert Message.objects.get(id=begun.message.id).token_count == len("héllo".encode())


def test_the_run_keeps_the_snapshot_of_its_context(chat: Chat) -> None:
    settle_by_hand(begin(chat, "First?").run.id, text="One.")
    begun = begin(chat, "Second?", turn="t2")
    prompt_tokens = begun.run.usage.prompt
    pool = inference.pool_for(plan="free", slug=None)
    assert begun.run.context == {
        "summary_version": 0, "first_seq": 1, "last_seq": 3, "trimmed": False,
        "roomy": len(pool.system_prompt) + 4096 - 1024 - 512,
        "full_above": len(pool.system_prompt) + (4096 - 1024 - 512) * 75 // 100,
        "prompt_tokens": prompt_tokens, "system_tokens": len(pool.system_prompt), "summary_tokens": 0,
        "max_output_tokens": 1024, "notices": [],
        "revisions": inference.revisions_of(pool),
    }  # fmt: skip


def test_a_follow_up_is_asked_with_what_was_said_before(chat: Chat, tiny_model: Any) -> None:
    settle_by_hand(begin(chat, "My name is Ada.").run.id, text="Hello Ada!")
    begun = begin(chat, "Who am I?", turn="t2")
    pool = inference.pool_for(plan="free", slug=None)
    prompt = inference.tokenizer_for(pool).decode(_prompt_ids(begun.run.id))
    assert prompt.index("My name is Ada.") < prompt.index("Hello Ada!") < prompt.index("Who am I?")


def _prompt_ids(run_id: UUID) -> list[int]:
    raw = bytes(Run.objects.get(id=run_id).prompt_ids)
    return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]


@pytest.mark.parametrize(
    ("status", "text", "enters"),
    [("cancelled", "Half an ans", True), ("interrupted", "Half an ans", True), ("failed", "", False)],
)
def test_partial_answers_enter_later_prompts_and_failed_empty_ones_do_not(
    chat: Chat, status: str, text: str, enters: bool
) -> None:
    settle_by_hand(begin(chat, "First?").run.id, status=status, text=text)
    begun = begin(chat, "Second?", turn="t2")
    pool = inference.pool_for(plan="free", slug=None)
    ids = _prompt_ids(begun.run.id)
    assert ("Half an ans" in inference.tokenizer_for(pool).decode(ids)) is enters
    answers = sum(i in inference.tokenizer_for(pool).special_ids for i in ids)
    # Each message is between two marks, and one opens the answer.
    assert answers == (9 if enters else 7)


def test_a_chat_without_a_title_takes_the_first_words(chat: Chat) -> None:
    begin(chat, "  What is\n\nthe capital of Italy, and how many people live there, would you say, roughly?  ")
    chat.refresh_from_db()
    assert chat.title == "What is the capital of Italy, and how many people live…"


def test_a_title_without_spaces_is_cut_where_it_must_be(chat: Chat) -> None:
    begin(chat, "x" * 1000)
    chat.refresh_from_db()
    assert chat.title == "x" * 60 + "…"


def test_a_title_that_is_there_stays(ada: Person) -> None:
    named = chats.create(owner_id=ada.user.id, title="Geography", pool=None, now=timezone.now())
    begin(named, "What is the capital of Italy?")
    named.refresh_from_db()
    assert named.title == "Geography"


def test_a_repeat_finds_the_same_turn_and_adds_nothing(chat: Chat) -> None:
    first = begin(chat)
    with nothing_changes(chat.owner_id):
        again = begin(chat, now=timezone.now() + timedelta(hours=1))
    assert (again.run.id, again.message.id, again.created) == (first.run.id, first.message.id, False)


def test_a_repeat_finds_a_turn_that_was_answered_long_ago(chat: Chat) -> None:
    first = begin(chat)
    settle_by_hand(first.run.id)
    settle_by_hand(begin(chat, "Next", turn="t2").run.id)
    again = begin(chat)
    assert (again.run.id, again.run.status, again.created) == (first.run.id, "done", False)


def test_a_repeat_needs_neither_redis_nor_a_worker(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begin(chat)
    lose_redis(monkeypatch)
    assert begin(chat).run.id == first.run.id


@pytest.mark.parametrize(
    "other",
    [{"content": "Other"}, {"pool": "default"}, {"max_output_tokens": 7}],
    ids=lambda other: str(next(iter(other))),
)
def test_the_same_turn_id_with_anything_else_asked_is_a_conflict(chat: Chat, other: dict[str, Any]) -> None:
    begin(chat)
    with nothing_changes(chat.owner_id), pytest.raises(TurnConflict):
        begin(chat, **{"content": "Hello"} | other)


def test_a_turn_id_counts_within_its_chat_only(chat: Chat, ada: Person) -> None:
    other = chats.create(owner_id=ada.user.id, title="", pool=None, now=timezone.now())
    assert begin(chat).run.id != begin(other).run.id


def test_a_second_message_while_the_first_is_answered_is_refused_with_the_run_in_the_way(chat: Chat) -> None:
    first = begin(chat)
    with nothing_changes(chat.owner_id), pytest.raises(ChatBusy) as refusal:
        begin(chat, "Another", turn="t2")
    assert refusal.value.run_id == first.run.id


def test_a_chat_takes_the_next_message_once_the_answer_is_there(chat: Chat) -> None:
    settle_by_hand(begin(chat).run.id)
    assert begin(chat, "Another", turn="t2").message.seq == 3


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"content": ""}, "content"),
        ({"content": " \n\t\u3000"}, "content"),
        ({"content": "a\0b"}, "content"),
        ({"content": "a\ud800b"}, "content"),
        ({"content": "x" * 400_001}, "content"),
        ({"turn": ""}, "client_turn_id"),
        ({"turn": " "}, "client_turn_id"),
        ({"turn": "a\0"}, "client_turn_id"),
        ({"turn": "\udfff"}, "client_turn_id"),
        ({"turn": "x" * 129}, "client_turn_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"max_output_tokens": 1025}, "max_output_tokens"),
        ({"max_output_tokens": 10**30}, "max_output_tokens"),
    ],
    # pytest puts a test's whole name into the environment, with which no program starts when it is as long as this.
    ids=lambda value: str(value)[:40],
)
def test_a_value_beyond_its_bounds_is_refused_by_name(chat: Chat, asked: dict[str, Any], field: str) -> None:
    with nothing_changes(chat.owner_id), pytest.raises(InvalidRequest) as refusal:
        begin(chat, **asked)
    assert refusal.value.field == field


def test_the_longest_turn_id_and_the_largest_output_are_taken(chat: Chat) -> None:
    assert begin(chat, turn="é" * 128, max_output_tokens=1024).created


@pytest.mark.parametrize("slug", ["nowhere", "", "a\0b", "\ud800", "default ", "x" * 5000])
def test_a_pool_that_is_not_open_is_refused(chat: Chat, slug: str) -> None:
    with nothing_changes(chat.owner_id), pytest.raises(PoolNotFound) as refusal:
        begin(chat, pool=slug)
    refusal.value.slug.encode()
    assert len(refusal.value.slug) < 400


def test_a_closed_pool_is_refused(chat: Chat) -> None:
    ModelPool.objects.create(slug="old", name="Old", is_open=False)
    with nothing_changes(chat.owner_id), pytest.raises(PoolNotFound):
        begin(chat, pool="old")


def test_a_chat_whose_pool_was_closed_goes_on_in_the_default_one(chat: Chat) -> None:
    ModelPool.objects.create(slug="retired", name="Retired", is_open=False)
    chat.pool = "retired"
    chat.save()
    assert begin(chat).run.pool == "default"


def test_a_message_can_be_sent_to_another_pool_than_the_chats(chat: Chat, site: None) -> None:
    ModelPool.objects.create(slug="big", name="Big", context_window=8192)
    pretend_a_worker("big")
    assert begin(chat, pool="big").run.pool == "big"
    chat.refresh_from_db()
    assert chat.pool == "default"


def test_a_message_beyond_the_window_is_refused_with_the_numbers(chat: Chat) -> None:
    with nothing_changes(chat.owner_id), pytest.raises(TooLong) as refusal:
        begin(chat, "x" * 4000)
    assert refusal.value.context_window == 4096
    assert refusal.value.max_prompt_tokens == 4096 - 256
    assert refusal.value.prompt_tokens > 4000


def test_a_blocked_message_is_refused_with_the_reason(chat: Chat, settings: Any) -> None:
    settings.MODERATION_BACKEND = f"{__name__}.block_bombs"
    with nothing_changes(chat.owner_id), pytest.raises(Blocked) as refusal:
        begin(chat, "How do I build a bomb?")
    assert refusal.value.reason == "no bombs"
    assert begin(chat, "How do I bake bread?").created


def block_bombs(user_id: UUID, content: str) -> str | None:
    return "no bombs" if "bomb" in content else None


def test_another_users_chat_is_not_there_to_be_sent_to(chat: Chat, eve: Person) -> None:
    with nothing_changes(chat.owner_id), pytest.raises(ChatNotFound):
        turns.begin(
            owner_id=eve.user.id, chat_id=chat.id, content="Hello", client_turn_id="t1", pool=None,
            max_output_tokens=None, now=timezone.now(),
        )  # fmt: skip
    assert reservations(eve.user.id) == {}


def test_a_deleted_chat_is_not_there_to_be_sent_to(chat: Chat) -> None:
    Chat.objects.filter(id=chat.id).update(deleted_at=timezone.now())
    with nothing_changes(chat.owner_id), pytest.raises(ChatNotFound):
        begin(chat)


def test_a_users_own_limit_refuses_and_says_when_to_come_back(chat: Chat, ada: Person) -> None:
    subscribe(ada, concurrent_runs=1)
    other = chats.create(owner_id=ada.user.id, title="", pool=None, now=timezone.now())
    begin(other)
    with nothing_changes(chat.owner_id), pytest.raises(AdmissionRefused) as refusal:
        begin(chat)
    assert (refusal.value.limit, refusal.value.maximum) == ("concurrent_runs", 1)
    assert refusal.value.retry_after >= 1


def test_a_lower_plan_cap_applies_and_is_told(chat: Chat, ada: Person) -> None:
    subscribe(ada, concurrent_runs=2, max_output_tokens=50)
    begun = begin(chat, max_output_tokens=400)
    assert Run.objects.get(id=begun.run.id).max_output_tokens == 50
    assert begun.run.context["notices"] == [
        {"code": "output_capped", "text": "The answer is limited to 50 tokens: your plan allows no more."}
    ]


def test_what_a_plan_allows_needs_no_notice(chat: Chat, ada: Person) -> None:
    subscribe(ada, concurrent_runs=2, max_output_tokens=500)
    begun = begin(chat, max_output_tokens=400)
    assert Run.objects.get(id=begun.run.id).max_output_tokens == 400
    assert begun.run.context["notices"] == []


def test_a_history_that_was_left_out_is_told(chat: Chat) -> None:
    settle_by_hand(begin(chat, "x" * 2000).run.id, text="y" * 1500, output_tokens=1500)
    begun = begin(chat, "And now?", turn="t2")
    assert (begun.run.context["first_seq"], begun.run.context["trimmed"]) == (3, True)
    assert [notice["code"] for notice in begun.run.context["notices"]] == ["context_trimmed"]  # type: ignore[attr-defined]


def test_without_a_worker_a_send_is_refused_for_now(chat: Chat) -> None:
    cell = store.connector().cell()
    cell.run(lambda client: client.delete(cell.keys.workers("default")))
    with nothing_changes(chat.owner_id), pytest.raises(ServiceUnavailable) as refusal:
        begin(chat)
    assert refusal.value.retry_after >= 1


def test_without_redis_a_send_is_refused_for_now_and_stores_nothing(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_redis(monkeypatch)
    with pytest.raises(ServiceUnavailable):
        begin(chat)
    assert (Turn.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)


def test_a_model_whose_files_are_missing_refuses_for_now(chat: Chat) -> None:
    ModelPool.objects.update(model="/nowhere/at/all")
    with nothing_changes(chat.owner_id), pytest.raises(ServiceUnavailable):
        begin(chat)


# What happens between admission and acceptance is brought about from inside the admission, where a request stands
# between the two.


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let something happen once, right after the next admission was granted."""
    real = inference.admit
    waiting: list[Any] = []

    def admit(**asked: Any) -> Any:
        held = real(**asked)
        if waiting:
            waiting.pop()()
        return held

    monkeypatch.setattr(inference, "admit", admit)
    return waiting.append


def test_a_chat_deleted_in_between_keeps_nothing_of_the_turn(chat: Chat, meanwhile: Any) -> None:
    meanwhile(lambda: chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now()))
    with pytest.raises(ChatNotFound):
        begin(chat)
    assert (Turn.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
    assert reservations(chat.owner_id) == {}
    assert queued() == []


def test_another_turn_accepted_in_between_makes_the_chat_busy(chat: Chat, meanwhile: Any) -> None:
    winners: list[Begun] = []
    meanwhile(lambda: winners.append(begin(chat, "Mine first", turn="t2")))
    with pytest.raises(ChatBusy) as refusal:
        begin(chat)
    assert refusal.value.run_id == winners[0].run.id
    assert list(reservations(chat.owner_id)) == [str(winners[0].run.admission_id)]
    assert list(Message.objects.values_list("content", flat=True)) == ["Mine first"]


def test_a_turn_answered_in_between_enters_the_prompt_and_the_numbering(chat: Chat, meanwhile: Any) -> None:
    meanwhile(lambda: settle_by_hand(begin(chat, "Mine first", turn="t2").run.id, text="Yes."))
    begun = begin(chat)
    assert begun.message.seq == 3
    assert (begun.run.context["first_seq"], begun.run.context["last_seq"]) == (1, 3)
    pool = inference.pool_for(plan="free", slug=None)
    assert "Mine first" in inference.tokenizer_for(pool).decode(_prompt_ids(begun.run.id))
    assert str(begun.run.admission_id) in reservations(chat.owner_id)


def test_a_duplicate_accepted_in_between_is_answered_again_and_keeps_the_shared_hold(
    chat: Chat, meanwhile: Any
) -> None:
    winners: list[Begun] = []
    meanwhile(lambda: winners.append(begin(chat)))
    again = begin(chat)
    assert (again.run.id, again.created) == (winners[0].run.id, False)
    assert list(reservations(chat.owner_id)) == [str(again.run.admission_id)]
    assert Turn.objects.count() == 1


def test_a_duplicate_with_other_content_accepted_in_between_is_a_conflict_and_keeps_the_hold(
    chat: Chat, meanwhile: Any
) -> None:
    winners: list[Begun] = []
    meanwhile(lambda: winners.append(begin(chat, "Hello there")))
    with pytest.raises(TurnConflict):
        begin(chat)
    assert list(reservations(chat.owner_id)) == [str(winners[0].run.admission_id)]


def test_a_duplicate_accepted_while_this_request_was_refused_is_answered_again(
    chat: Chat, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal by the user's limit comes from this very turn, accepted through another process."""
    real = inference.admit
    winners: list[Begun] = []

    def admit(**asked: Any) -> Any:
        if not winners:
            monkeypatch.setattr(inference, "admit", real)
            winners.append(begin(chat))
        raise AdmissionRefused(limit="concurrent_runs", maximum=1, retry_after=5)

    monkeypatch.setattr(inference, "admit", admit)
    assert begin(chat).run.id == winners[0].run.id


def test_a_duplicate_accepted_after_the_first_look_is_not_taken_for_another_turn(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes the chat busy is this very turn, accepted between the look-up and the look for active runs."""
    real = inference.active_run
    winners: list[Begun] = []

    def active_run(**asked: Any) -> Any:
        monkeypatch.setattr(inference, "active_run", real)
        winners.append(begin(chat))
        return real(**asked)

    monkeypatch.setattr(inference, "active_run", active_run)
    again = begin(chat)
    assert (again.run.id, again.created) == (winners[0].run.id, False)


def rebuild_account(chat: Chat) -> None:
    admission.rebuild(store.connector().cell(), user_id=chat.owner_id, now=timezone.now())


def test_an_account_rebuilt_in_between_is_admitted_again_under_its_new_generation(
    chat: Chat, meanwhile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(chats.create(owner_id=chat.owner_id, title="", pool=None, now=timezone.now()))
    before = billing.account_generation(user_id=chat.owner_id)
    meanwhile(lambda: rebuild_account(chat))
    real = inference.admit
    asked_for: list[int] = []

    def admit(**asked: Any) -> Any:
        asked_for.append(asked["min_generation"])
        return real(**asked)

    monkeypatch.setattr(inference, "admit", admit)
    begun = begin(chat)
    assert begun.created
    assert asked_for == [0, before + 1]
    # The other chat's run, and this one under its second admission.
    assert len(reservations(chat.owner_id)) == 2
    assert str(begun.run.admission_id) in reservations(chat.owner_id)


def test_a_duplicate_accepted_before_a_rebuild_in_between_keeps_the_shared_hold(chat: Chat, meanwhile: Any) -> None:
    winners: list[Begun] = []

    def accept_and_rebuild() -> None:
        winners.append(begin(chat))
        rebuild_account(chat)

    meanwhile(accept_and_rebuild)
    assert begin(chat).run.id == winners[0].run.id
    assert list(reservations(chat.owner_id)) == [str(winners[0].run.admission_id)]


def test_a_rebuild_that_goes_on_for_ever_ends_in_a_refusal_for_now(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inference.admit

    def admit(**asked: Any) -> Any:
        held = real(**asked | {"min_generation": 0})
        Account.objects.filter(user_id=chat.owner_id).update(quota_gen=held.generation + 1)
        return held

    monkeypatch.setattr(inference, "admit", admit)
    with pytest.raises(ServiceUnavailable) as refusal:
        begin(chat)
    assert refusal.value.retry_after >= 1
    assert Turn.objects.count() == 0


def test_an_error_before_the_commit_gives_the_hold_back(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_run(**_: Any) -> Any:
        raise OperationalError("the database went away")

    monkeypatch.setattr(inference, "accept_run", accept_run)
    with pytest.raises(OperationalError):
        begin(chat)
    assert reservations(chat.owner_id) == {}


@pytest.mark.django_db(transaction=True)
def test_an_error_in_the_commit_itself_keeps_the_hold_for_the_repeat(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the turn was stored is unknown: given back, the hold would be missing to a run that exists."""
    begin(chats.create(owner_id=chat.owner_id, title="", pool=None, now=timezone.now()), turn="opens the account")
    held_before = set(reservations(chat.owner_id))
    real = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]
    failures = [OperationalError("the connection broke before the answer came")]

    def commit(database: BaseDatabaseWrapper) -> None:
        real(database)
        if failures and Turn.objects.filter(chat=chat).exists():
            raise failures.pop()

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    with pytest.raises(ServiceUnavailable):
        begin(chat)
    [kept] = set(reservations(chat.owner_id)) - held_before
    again = begin(chat)
    assert (str(again.run.admission_id), again.created) == (kept, False)


def test_an_accepted_turn_whose_queueing_fails_stays_accepted(
    chat: Chat, meanwhile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis dies after the admission: the run waits in the database, and a repeat finds it."""
    meanwhile(lambda: lose_redis(monkeypatch))
    begun = begin(chat)
    assert begun.created
    assert begin(chat).run.id == begun.run.id


def test_a_run_id_is_not_reused_for_unknown_turns(chat: Chat) -> None:
    first = begin(chat)
    settle_by_hand(first.run.id)
    assert begin(chat, turn=str(uuid7())).run.id != first.run.id
