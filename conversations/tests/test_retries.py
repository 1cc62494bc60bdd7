"""Asking for the last answer again: which answers may be replaced, by what, and that a refusal changes nothing."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from billing.models import UsageEntry
from conversations import acceptance, chats, retries, selectors
from conversations.contracts import Retried
from conversations.errors import ChatNotFound, NotLastTurn, NotRetryable
from conversations.models import Chat, Message, Turn
from conversations.tests.support import (
    Json,
    Person,
    claim_by_hand,
    lose_redis,
    pretend_a_worker,
    queued,
    reservations,
    settle_by_hand,
    subscribe,
)
from inference import admission, publishing, reaper, runs, store
from inference import api as inference
from inference.cell import stream
from inference.cell.link import Cell
from inference.errors import AdmissionRefused, ChatBusy, RunNotFound, ServiceUnavailable
from inference.models import Attempt, ModelPool, Run

pytestmark = pytest.mark.django_db

TERMINAL = stream.TERMINAL_SEQ


@pytest.fixture
def chat(ada: Person) -> str:
    return ada.new_chat()


@pytest.fixture
def ended(ada: Person, chat: str) -> Run:
    """The run of a turn whose answer broke off."""
    return settle_by_hand(ada.sent(chat, "Who was Ada?")["run"]["id"], status="interrupted", text="Ada was")


def retry(run: Run, **changes: Any) -> Retried:
    asked: dict[str, Any] = {"owner_id": run.owner_id, "run_id": run.id, "now": timezone.now()} | changes
    return retries.retry(**asked)


def entries(run: Run) -> list[tuple[str, str]]:
    """Id and type of what the run's stream holds."""
    cell = store.connector().cell()
    rows = look(cell, lambda client: client.xrange(cell.keys.stream(run.id)))
    return [(entry_id, fields["t"]) for entry_id, fields in rows]


def look(cell: Cell, question: Callable[[Any], Any]) -> Any:
    """What the cell's client gets; the client's own types say too little to be used."""
    return cell.run(question)


def prompt_of(run_id: UUID | str) -> str:
    run = Run.objects.select_related("pool").get(id=run_id)
    raw = bytes(run.prompt_ids)
    ids = [int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)]
    return inference.tokenizer_for(inference.pool_for(plan="free", slug=None)).decode(ids)


@contextmanager
def nothing_changes(run: Run) -> Iterator[None]:
    def everything() -> tuple[object, ...]:
        rows = [repr(list(model.objects.order_by("pk").values())) for model in (Chat, Turn, Message, Run, Attempt)]
        return rows, sorted(reservations(run.owner_id)), queued(), entries(run)

    before = everything()
    yield
    assert everything() == before


@pytest.mark.parametrize("status", ["interrupted", "failed", "cancelled"])
def test_an_answer_that_did_not_end_as_it_should_is_begun_anew(ada: Person, chat: str, status: str) -> None:
    run = settle_by_hand(ada.sent(chat)["run"]["id"], status=status, text="Ada w")
    response = ada.retry(str(run.id))
    assert response.status_code == 202
    body = response.json()
    assert (body["id"], body["chat_id"], body["status"], body["epoch"]) == (str(run.id), chat, "queued", 2)
    assert body["events_url"] == f"/api/v1/runs/{run.id}/events"
    assert queued() == [f"{run.id}:2"]
    assert ada.get(f"/api/v1/chats/{chat}").json()["active_run"]["id"] == str(run.id)


def test_nothing_of_the_attempt_before_stands_on_the_run_any_more(ada: Person, chat: str) -> None:
    run_id = ada.sent(chat)["run"]["id"]
    claimed = claim_by_hand(run_id)
    runs.request_cancel(run_id=claimed.id, now=timezone.now())
    ending = runs.Ending(
        status=Run.Status.CANCELLED, text="Ada", own_tokens=3, output_tokens=3, cached_tokens=2, finish_reason="abort",
        error_code="cancelled", first_token_at=timezone.now(), release_ms=12,
    )  # fmt: skip
    ended = runs.settle(run_id=claimed.id, epoch=1, ending=ending, now=timezone.now())
    assert ended is not None
    publishing.announce_end(ended, text="Ada")
    now = timezone.now()
    retry(ended, now=now)
    run = Run.objects.get(id=run_id)
    assert (run.status, run.epoch, run.base_epoch, run.retried_at) == ("queued", 2, 2, now)
    assert run.admission_id != ended.admission_id
    assert run.created_at == ended.created_at
    assert (run.cached_tokens, run.output_tokens, run.finish_reason, run.error_code) == (0, 0, "", "")
    assert (run.stream_incarnation, bytes(run.carry_ids), run.carry_text) == ("", b"", "")
    moments = (run.cancel_requested_at, run.claimed_at, run.first_token_at, run.finished_at, run.release_ms)
    assert moments == (None, None, None, None, None)


def test_a_run_that_is_under_way_is_answered_as_it_is(ada: Person, chat: str) -> None:
    run = Run.objects.get(id=ada.sent(chat)["run"]["id"])
    with nothing_changes(run):
        waiting = ada.retry(str(run.id))
    assert (waiting.status_code, waiting.json()["status"], waiting.json()["epoch"]) == (200, "queued", 1)
    claim_by_hand(run.id)
    streaming = ada.retry(str(run.id))
    assert (streaming.status_code, streaming.json()["status"], streaming.json()["epoch"]) == (200, "streaming", 1)


def test_repeating_a_retry_finds_the_same_attempt(ada: Person, ended: Run) -> None:
    assert ada.retry(str(ended.id)).status_code == 202
    with nothing_changes(ended):
        again = ada.retry(str(ended.id))
    assert (again.status_code, again.json()["id"], again.json()["epoch"]) == (200, str(ended.id), 2)
    assert len(reservations(ada.user.id)) == 1


def test_an_answer_that_ended_as_it_should_stays(ada: Person, chat: str) -> None:
    run = settle_by_hand(ada.sent(chat)["run"]["id"])
    with nothing_changes(run):
        response = ada.retry(str(run.id))
        with pytest.raises(NotRetryable):
            retry(run)
    assert (response.status_code, response.json()["code"]) == (409, "not_retryable")
    assert response.json()["run_status"] == "done"


def test_an_answer_that_the_chat_has_gone_past_stays(ada: Person, chat: str, ended: Run) -> None:
    later = settle_by_hand(ada.sent(chat, "And then?", turn="t2")["run"]["id"], status="failed", text="")
    with nothing_changes(ended):
        response = ada.retry(str(ended.id))
        with pytest.raises(NotLastTurn):
            retry(ended)
    assert (response.status_code, response.json()["code"]) == (409, "not_last_turn")
    assert ada.retry(str(later.id)).status_code == 202


def test_a_chat_that_is_being_answered_is_busy(ada: Person, chat: str, ended: Run) -> None:
    busy = ada.sent(chat, "And then?", turn="t2")["run"]["id"]
    with nothing_changes(ended):
        response = ada.retry(str(ended.id))
        with pytest.raises(ChatBusy):
            retry(ended)
    assert (response.status_code, response.json()["code"], response.json()["run_id"]) == (409, "chat_busy", busy)


def test_a_retry_makes_its_chat_busy(ada: Person, chat: str, ended: Run) -> None:
    retry(ended)
    response = ada.send(chat, "And then?", turn="t2")
    assert (response.status_code, response.json()["run_id"]) == (409, str(ended.id))


def test_another_users_run_is_not_there_to_be_retried(eve: Person, ended: Run) -> None:
    with nothing_changes(ended):
        assert eve.retry(str(ended.id)).status_code == 404
        with pytest.raises(ChatNotFound):
            retry(ended, owner_id=eve.user.id)
    assert reservations(eve.user.id) == {}


def test_a_run_of_a_deleted_chat_is_not_there_to_be_retried(ada: Person, chat: str, ended: Run) -> None:
    Chat.objects.filter(id=chat).update(deleted_at=timezone.now())
    with nothing_changes(ended):
        assert ada.retry(str(ended.id)).status_code == 404


# What is said, and what is hidden meanwhile.


def test_the_prompt_holds_what_was_said_before_the_question_and_not_the_answer_that_goes(
    ada: Person, chat: str
) -> None:
    settle_by_hand(ada.sent(chat, "My name is Ada.", turn="t0")["run"]["id"], text="Hello Ada!")
    sent = ada.sent(chat, "Who am I?")["run"]["id"]
    asked_first = prompt_of(sent)
    run = settle_by_hand(sent, status="interrupted", text="You are Bartholomew")
    retry(run)
    assert prompt_of(sent) == asked_first
    assert "My name is Ada." in asked_first
    assert "Bartholomew" not in prompt_of(sent)
    fresh = Run.objects.get(id=sent)
    assert (fresh.context["first_seq"], fresh.context["last_seq"], fresh.context["trimmed"]) == (1, 3, False)
    assert fresh.prompt_tokens * 4 == len(fresh.prompt_ids)
    assert fresh.reserved_tokens == fresh.prompt_tokens + 1024


def test_the_answer_is_out_of_sight_until_the_new_one_takes_its_place(ada: Person, chat: str, ended: Run) -> None:
    [before, question] = ada.messages(chat)
    retry(ended)
    assert ada.messages(chat) == [question]
    assert "Ada was" not in str(ada.get(f"/api/v1/chats/{chat}/messages", limit=1).json())
    assert [found.content for found in selectors.latest_messages(chat=Chat.objects.get(), limit=9)] == ["Who was Ada?"]
    assert ada.get(f"/api/v1/runs/{ended.id}").json()["message_id"] is None
    settle_by_hand(ended.id, text="Ada was a countess.")
    [after, same_question] = ada.messages(chat)
    assert same_question == question
    assert after == before | {"content": "Ada was a countess.", "state": "complete"}
    assert Message.objects.get(id=after["id"]).token_count == 5


def test_the_answer_that_goes_stays_on_its_attempt(ended: Run) -> None:
    retry(ended)
    settle_by_hand(ended.id, status="failed", text="A")
    retry(ended)
    settle_by_hand(ended.id, text="Ada was a countess.")
    texts = list(Attempt.objects.filter(run_id=ended.id).order_by("epoch").values_list("epoch", "outcome", "text"))
    assert texts == [(1, "interrupted", "Ada was"), (2, "failed", "A"), (3, "done", "")]


def test_a_retry_that_was_stopped_before_it_began_does_not_take_an_older_attempts_text(ada: Person, ended: Run) -> None:
    retry(ended)
    assert ada.post(f"/api/v1/runs/{ended.id}/cancel").json()["status"] == "cancelled"
    retry(ended)
    assert list(Attempt.objects.filter(run_id=ended.id).values_list("epoch", "text")) == [(1, "Ada was")]
    assert Run.objects.get(id=ended.id).base_epoch == 3


def test_what_a_lost_worker_left_is_kept_although_nobody_claimed_the_next_epoch(ada: Person, chat: str) -> None:
    run = claim_by_hand(ada.sent(chat)["run"]["id"])
    published = runs.Published(ids=[5, 6], text="Ada")
    old = run.stream_incarnation
    requeued = runs.take_over(
        run_id=run.id, epoch=1, incarnation=old, published=published, cause=Attempt.Outcome.LOST, now=timezone.now()
    )
    assert isinstance(requeued, Run)
    ada.post(f"/api/v1/runs/{run.id}/cancel")
    retry(run)
    assert list(Attempt.objects.filter(run_id=run.id).values_list("epoch", "text")) == [(1, "Ada")]
    assert Run.objects.get(id=run.id).epoch == 3


def test_the_output_that_was_asked_for_is_asked_for_again(ada: Person, chat: str) -> None:
    run = settle_by_hand(ada.sent(chat, max_output_tokens=77)["run"]["id"], status="failed", text="")
    retry(run)
    assert Run.objects.get(id=run.id).max_output_tokens == 77


def test_a_limit_that_was_lifted_since_does_not_bind_the_retry(ada: Person, chat: str) -> None:
    subscribe(ada, concurrent_runs=2, max_output_tokens=50)
    run = settle_by_hand(ada.sent(chat)["run"]["id"], status="failed", text="")
    assert run.max_output_tokens == 50
    ada.user.subscriptions.all().delete()
    retried = retry(run).run
    assert Run.objects.get(id=run.id).max_output_tokens == 1024
    assert retried.context["notices"] == []


def test_a_run_whose_pool_was_closed_since_is_answered_by_the_default_one(ada: Person, chat: str) -> None:
    big = ModelPool.objects.create(slug="big", name="Big", context_window=8192, max_output_tokens=4096)
    pretend_a_worker("big")
    run = settle_by_hand(ada.sent(chat, pool="big", max_output_tokens=4000)["run"]["id"], status="failed", text="")
    big.is_open = False
    big.save()
    retried = retry(run).run
    assert (retried.pool, Run.objects.get(id=run.id).max_output_tokens) == ("default", 1024)
    assert queued() == [f"{run.id}:2"]


def test_the_times_of_a_retried_run_count_from_the_retry(ada: Person, chat: str, ended: Run) -> None:
    later = ended.created_at + timedelta(minutes=30)
    retry(ended, now=later)
    runs.claim(
        run_id=ended.id, epoch=2, worker="w", incarnation="i", now=later + timedelta(milliseconds=7)
    )  # fmt: skip
    assert ada.get(f"/api/v1/runs/{ended.id}").json()["timings"]["queue_ms"] == 7
    assert Chat.objects.get().last_active_at == later


# Holds and charges.


def test_each_attempt_has_its_own_row_and_its_own_admission(ended: Run) -> None:
    retry(ended)
    settle_by_hand(ended.id, text="Ada was a countess.", output_tokens=19)
    run = Run.objects.get(id=ended.id)
    rows = UsageEntry.objects.filter(run_id=ended.id).order_by("epoch")
    assert list(rows.values_list("epoch", "reason", "prompt_tokens", "output_tokens", "admission_id")) == [
        (1, "interrupted", ended.prompt_tokens, 5, ended.admission_id),
        (2, "completed", run.prompt_tokens, 19, run.admission_id),
    ]
    assert (run.output_tokens, reservations(ended.owner_id)) == (19, {})


def test_a_retry_stopped_before_a_worker_came_costs_nothing(ada: Person, ended: Run) -> None:
    retry(ended)
    ada.post(f"/api/v1/runs/{ended.id}/cancel")
    assert list(UsageEntry.objects.values_list("epoch", flat=True)) == [1]
    assert reservations(ada.user.id) == {}


def test_the_hold_of_the_attempt_before_does_not_count_against_its_retry(ada: Person, chat: str) -> None:
    """The worker died between its commit and the settlement of its hold."""
    subscribe(ada, concurrent_runs=1)
    run = claim_by_hand(ada.sent(chat)["run"]["id"])
    ending = runs.Ending(status=Run.Status.INTERRUPTED, text="Ada", own_tokens=3, output_tokens=3)
    assert runs.settle(run_id=run.id, epoch=1, ending=ending, now=timezone.now()) is not None
    assert list(reservations(ada.user.id)) == [str(run.admission_id)]
    assert retry(run).created
    fresh = Run.objects.get(id=run.id)
    [(held, value)] = reservations(ada.user.id).items()
    assert held == str(fresh.admission_id)
    turn, base, tokens, state, _ = value.split("|")
    assert (turn, base, int(tokens), state) == (fresh.turn, "2", fresh.reserved_tokens, "1")


def test_a_limit_of_ones_own_refuses_a_retry_and_the_stream_before_is_closed_all_the_same(
    ada: Person, chat: str
) -> None:
    subscribe(ada, concurrent_runs=1)
    run = claim_by_hand(ada.sent(chat)["run"]["id"])
    ending = runs.Ending(status=Run.Status.INTERRUPTED, text="", own_tokens=0, output_tokens=0)
    assert runs.settle(run_id=run.id, epoch=1, ending=ending, now=timezone.now()) is not None
    admission.settle(user_id=ada.user.id, admission_id=run.admission_id)
    ada.sent(ada.new_chat())
    response = ada.retry(str(run.id))
    assert (response.status_code, response.json()["code"]) == (429, "limit_reached")
    assert response.headers["Retry-After"]
    assert entries(run)[-1] == (f"1-{TERMINAL}", "interrupted")
    with nothing_changes(run), pytest.raises(AdmissionRefused):
        retry(run)


def test_without_a_worker_a_retry_is_refused_for_now(ada: Person, ended: Run) -> None:
    cell = store.connector().cell()
    cell.run(lambda client: client.delete(cell.keys.workers("default")))
    with nothing_changes(ended):
        response = ada.retry(str(ended.id))
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert response.headers["Retry-After"]


def test_without_redis_a_retry_is_refused_for_now_and_the_answer_stays(
    ada: Person, chat: str, ended: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ada.messages(chat)
    lose_redis(monkeypatch)
    response = ada.retry(str(ended.id))
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert ada.messages(chat) == before
    assert Run.objects.get(id=ended.id).status == "interrupted"


# What happens between admission and acceptance is brought about from inside the admission.


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


def test_a_retry_accepted_in_between_is_found_and_keeps_the_shared_hold(ended: Run, meanwhile: Any) -> None:
    winners: list[Retried] = []
    meanwhile(lambda: winners.append(retry(ended)))
    again = retry(ended)
    assert (again.created, again.run.epoch, winners[0].created) == (False, 2, True)
    assert list(reservations(ended.owner_id)) == [str(again.run.admission_id)]
    assert queued() == [f"{ended.id}:2"]


def test_a_retry_accepted_and_ended_in_between_is_not_made_twice(ended: Run, meanwhile: Any) -> None:
    def other_request() -> None:
        retry(ended)
        settle_by_hand(ended.id, status="failed", text="")

    meanwhile(other_request)
    again = retry(ended)
    assert (again.created, again.run.epoch, again.run.status) == (False, 2, "failed")
    assert (reservations(ended.owner_id), queued()) == ({}, [])


def test_a_retry_under_another_admission_accepted_in_between_gives_the_own_hold_back(
    ended: Run, meanwhile: Any
) -> None:
    """As when the account was rebuilt between the two admissions."""

    def other_request() -> None:
        mine = reservations(ended.owner_id)
        cell = store.connector().cell()
        cell.run(lambda client: client.delete(cell.keys.reservations(ended.owner_id)))
        retry(ended)
        look(cell, lambda client: client.hset(cell.keys.reservations(ended.owner_id), mapping=mine))
        assert len(reservations(ended.owner_id)) == 2

    meanwhile(other_request)
    again = retry(ended)
    assert (again.created, again.run.epoch) == (False, 2)
    assert list(reservations(ended.owner_id)) == [str(again.run.admission_id)]


def test_a_message_accepted_in_between_makes_the_chat_busy(ada: Person, chat: str, ended: Run, meanwhile: Any) -> None:
    winners: list[Json] = []
    meanwhile(lambda: winners.append(ada.sent(chat, "And then?", turn="t2")))
    with pytest.raises(ChatBusy) as refusal:
        retry(ended)
    assert str(refusal.value.run_id) == winners[0]["run"]["id"]
    assert list(reservations(ended.owner_id)) == [str(Run.objects.get(id=refusal.value.run_id).admission_id)]
    assert [message["content"] for message in ada.messages(chat)] == ["And then?", "Ada was", "Who was Ada?"]


@pytest.mark.parametrize("moment", ["turn_answered_by", "user_message_of", "is_last"])
def test_a_message_accepted_at_any_moment_of_a_retrys_look_makes_the_chat_busy(
    ada: Person, chat: str, ended: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    real = getattr(selectors, moment)
    winners: list[Json] = []

    def look(*args: Any, **asked: Any) -> Any:
        if not winners:
            monkeypatch.setattr(selectors, moment, real)
            winners.append(ada.sent(chat, "And then?", turn="t2"))
        return real(*args, **asked)

    monkeypatch.setattr(selectors, moment, look)
    with pytest.raises(ChatBusy) as refusal:
        retry(ended)
    assert str(refusal.value.run_id) == winners[0]["run"]["id"]


def test_a_message_answered_in_between_is_not_gone_back_on(ada: Person, chat: str, ended: Run, meanwhile: Any) -> None:
    meanwhile(lambda: settle_by_hand(ada.sent(chat, "And then?", turn="t2")["run"]["id"]))
    with pytest.raises(NotLastTurn):
        retry(ended)
    assert Run.objects.get(id=ended.id).status == "interrupted"
    assert reservations(ended.owner_id) == {}


def test_an_answer_replaced_while_a_message_was_on_its_way_enters_that_messages_prompt(
    ada: Person, chat: str, ended: Run, meanwhile: Any
) -> None:
    """The message's first prompt holds the answer that is gone by the time it is stored."""

    def replace() -> None:
        retry(ended)
        settle_by_hand(ended.id, text="Ada was a countess.")

    meanwhile(replace)
    sent = ada.sent(chat, "And then?", turn="t2")["run"]["id"]
    assert "Ada was a countess." in prompt_of(sent)


def test_an_answer_that_came_back_while_a_message_was_on_its_way_enters_that_messages_prompt(
    ada: Person, chat: str, ended: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message's first prompt was made while the answer was out of sight."""
    real = inference.active_run
    moments: list[Any] = [lambda: settle_by_hand(ended.id, text="Ada was a countess.")]

    def admit(**asked: Any) -> Any:
        if moments:
            moments.pop()()
        return real_admit(**asked)

    retry(ended)
    real_admit = inference.admit
    # Seen idle, although it is not yet: as when it becomes so right after the prompt was made.
    monkeypatch.setattr(inference, "active_run", lambda **asked: None if moments else real(**asked))
    monkeypatch.setattr(inference, "admit", admit)
    sent = ada.sent(chat, "And then?", turn="t2")["run"]["id"]
    assert "Ada was a countess." in prompt_of(sent)


def test_a_chat_deleted_in_between_keeps_nothing_of_the_retry(
    ada: Person, chat: str, ended: Run, meanwhile: Any
) -> None:
    meanwhile(lambda: chats.delete(owner_id=ada.user.id, chat_id=UUID(chat), now=timezone.now()))
    with pytest.raises(RunNotFound):
        retry(ended)
    assert (Chat.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
    assert (reservations(ada.user.id), queued()) == ({}, [])


def test_a_chat_marked_as_deleted_in_between_gives_the_hold_back(
    ada: Person, chat: str, ended: Run, meanwhile: Any
) -> None:
    meanwhile(lambda: Chat.objects.filter(id=chat).update(deleted_at=timezone.now()))
    with pytest.raises(ChatNotFound):
        retry(ended)
    assert Run.objects.get(id=ended.id).status == "interrupted"
    assert reservations(ada.user.id) == {}


def test_an_account_rebuilt_in_between_is_admitted_again_under_its_new_generation(
    ended: Run, meanwhile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(lambda: admission.rebuild(store.connector().cell(), user_id=ended.owner_id, now=timezone.now()))
    asked_for: list[int] = []
    real = inference.admit

    def admit(**asked: Any) -> Any:
        asked_for.append(asked["min_generation"])
        return real(**asked)

    monkeypatch.setattr(inference, "admit", admit)
    retried = retry(ended)
    assert retried.created
    assert asked_for[0] == 0 < asked_for[1]
    assert list(reservations(ended.owner_id)) == [str(retried.run.admission_id)]


def test_a_limit_reached_by_this_very_retry_is_no_refusal(ended: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inference.admit

    def admit(**asked: Any) -> Any:
        monkeypatch.setattr(inference, "admit", real)
        assert retry(ended).created
        raise AdmissionRefused(limit="concurrent_runs", maximum=1, retry_after=5)

    monkeypatch.setattr(inference, "admit", admit)
    again = retry(ended)
    assert (again.created, again.run.epoch) == (False, 2)


def test_an_error_before_the_commit_gives_the_hold_back(ended: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def retry_run(*_: Any, **__: Any) -> Any:
        raise OperationalError("the database went away")

    monkeypatch.setattr(inference, "retry_run", retry_run)
    with nothing_changes(ended), pytest.raises(OperationalError):
        retry(ended)


@pytest.mark.django_db(transaction=True)
def test_an_error_in_the_commit_itself_keeps_the_hold_for_the_repeat(
    ended: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]
    failures = [OperationalError("the connection broke before the answer came")]

    def commit(database: BaseDatabaseWrapper) -> None:
        real(database)
        if failures and Run.objects.filter(id=ended.id, epoch=2).exists():
            raise failures.pop()

    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
    with pytest.raises(ServiceUnavailable):
        retry(ended)
    [kept] = reservations(ended.owner_id)
    again = retry(ended)
    assert (str(again.run.admission_id), again.created) == (kept, False)


# Crashes: whatever is left undone, the reaper does.


def test_a_retry_that_was_stored_and_not_queued_is_queued_by_the_reaper(
    ended: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "enqueue", lambda run: None)
    retry(ended)
    assert queued() == []
    assert entries(ended)[-1] == (f"1-{TERMINAL}", "interrupted")
    reaper.reap(now=timezone.now())
    assert queued() == [f"{ended.id}:2"]
    assert entries(ended) == [("0-1", "queued")]
    [hold] = reservations(ended.owner_id).values()
    assert hold.split("|")[3] == "1", "the hold is confirmed"


def test_a_retry_that_died_between_admission_and_commit_is_tidied_up_and_can_be_made_again(
    ended: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(acceptance, "store", die)
        patched.setattr(inference, "release", lambda held: None)
        with pytest.raises(KeyboardInterrupt):
            retry(ended)
    assert len(reservations(ended.owner_id)) == 1
    cell = store.connector().cell()
    cell.run(lambda client: client.delete(cell.keys.rebuilder(ended.owner_id)))
    reaper.reap(now=timezone.now() + timedelta(minutes=1))
    assert reservations(ended.owner_id) == {}
    assert retry(ended).created


def test_a_retry_of_an_old_run_waits_as_long_as_a_new_message_would(ended: Run) -> None:
    """The bound on waiting counts from the retry: counted from the message, it would be over at once."""
    later = ended.created_at + timedelta(minutes=30)
    bound = timedelta(seconds=ended.pool.queue_wait_s)
    retry(ended, now=later)
    reaper.reap(now=later + bound - timedelta(seconds=1))
    assert Run.objects.get(id=ended.id).status == "queued"
    reaper.reap(now=later + bound + timedelta(seconds=1))
    run = Run.objects.get(id=ended.id)
    assert (run.status, run.error_code) == ("failed", "queue_timeout")
    assert Message.objects.get(run_id=run.id, role="assistant").hidden is False


def test_the_epochs_of_a_retry_are_counted_from_its_first(ended: Run) -> None:
    retry(ended)
    now = timezone.now()
    for epoch in (2, 3, 4):
        run = runs.claim(run_id=ended.id, epoch=epoch, worker="w", incarnation="i", now=now)
        assert run is not None
        runs.take_over(
            run_id=ended.id, epoch=epoch, incarnation="i", published=None, cause=Attempt.Outcome.LOST, now=now
        )
    run = Run.objects.get(id=ended.id)
    assert (run.status, run.epoch) == ("interrupted", 4)


def test_the_terminal_event_of_the_attempt_before_comes_too_late_to_end_the_retry(ended: Run) -> None:
    late = Run.objects.select_related("pool").get(id=ended.id)
    retry(ended)
    publishing.announce_end(late, text="Ada was")
    assert entries(ended) == [("0-1", "queued")]
    assert len(reservations(ended.owner_id)) == 1


# Deleting.


def test_deleting_the_chat_of_a_retry_stops_it_and_erases_everything(ada: Person, chat: str, ended: Run) -> None:
    retry(ended)
    chats.delete(owner_id=ada.user.id, chat_id=UUID(chat), now=timezone.now())
    chats.purge(chat_id=UUID(chat), now=timezone.now())
    left = [model.objects.count() for model in (Chat, Turn, Message, Run, Attempt)]
    assert left == [0, 0, 0, 0, 0]
    assert (reservations(ada.user.id), queued()) == ({}, [])
    assert UsageEntry.objects.count() == 1


def test_a_retried_runs_queue_says_why_it_waits_again(ended: Run) -> None:
    retry(ended)
    cell = store.connector().cell()
    [(_, fields)] = look(cell, lambda client: client.xrange(cell.keys.stream(ended.id)))
    assert json.loads(fields["d"])["reason"] == "retry"


def test_a_cursor_of_the_superseded_attempt_is_not_at_the_end_any_more(ada: Person, ended: Run) -> None:
    end_of = "/api/v1/runs/{}/events?after={}-{}"
    assert ada.client.get(end_of.format(ended.id, 1, TERMINAL)).status_code == 204
    retry(ended)
    granted = ada.client.get(end_of.format(ended.id, 1, TERMINAL))
    assert (granted.status_code, granted.json()["epoch"], granted.json()["is_terminal"]) == (200, 2, False)
    settle_by_hand(ended.id)
    assert ada.client.get(end_of.format(ended.id, 1, TERMINAL)).status_code == 200
    assert ada.client.get(end_of.format(ended.id, 2, TERMINAL)).status_code == 204
