"""Answers' own token ids: stored with them, whoever ends the run, and part of the next prompts of the same model."""

from typing import Any

import pytest
from django.core.cache import cache
from django.utils import timezone

from conversations.models import Message
from conversations.tests.support import Person, Room, claim_by_hand, settle_by_hand
from inference import runs, token_ids
from inference.models import Attempt, Run
from inference.testing import tiny_tokenizer
from inference.tokenization import ChatTokenizer

pytestmark = pytest.mark.django_db(transaction=True)

TOKENIZER = tiny_tokenizer()


def answer_of(run_id: Any) -> Message:
    return Message.objects.get(run_id=run_id, role=Message.Role.ASSISTANT)


def ids_of(message: Message) -> list[int]:
    assert message.token_ids is not None
    return token_ids.unpack(message.token_ids)


def prompt_of(run_id: Any) -> list[int]:
    return token_ids.unpack(Run.objects.get(id=run_id).prompt_ids)


def test_a_finished_answer_keeps_its_ids_and_whose_they_are(ada: Person, room: Room) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat, "Grüße! [[tokens=30 tps=20000 prefill_ms=0]]")["run"]["id"]
    room.serve()
    stored = answer_of(run)
    assert TOKENIZER.decode(ids_of(stored)) == stored.content
    assert stored.token_model == Run.objects.get(id=run).model
    assert Message.objects.get(run_id=run, role=Message.Role.USER).token_ids is None


def test_the_next_prompt_begins_with_the_last_one_and_its_answer(ada: Person, room: Room) -> None:
    chat = ada.new_chat()
    known: list[int] = []
    for turn in range(3):
        run = ada.sent(chat, f"Number {turn}? [[tps=20000 prefill_ms=0 tokens=20]]", turn=str(turn))["run"]["id"]
        prompt = prompt_of(run)
        assert prompt[: len(known)] == known
        room.serve()
        known = [*prompt, *ids_of(answer_of(run))]


def lose(run: Run, text: str) -> list[int]:
    """End the run's epoch as if its worker were lost, having published a text; the text's ids."""
    ids = TOKENIZER.encode(text)
    taken = runs.take_over(
        run_id=run.id,
        epoch=run.epoch,
        incarnation=run.stream_incarnation,
        published=runs.Published(ids=ids, text=text),
        cause=Attempt.Outcome.LOST,
        now=timezone.now(),
    )
    assert taken is not None
    return ids


def test_an_answer_that_waits_for_its_next_worker_when_it_is_stopped_keeps_its_ids(ada: Person) -> None:
    run = claim_by_hand(ada.sent(ada.new_chat())["run"]["id"])
    ids = lose(run, "So far")
    assert runs.cancel_queued(run_id=run.id, now=timezone.now()) is not None
    assert (answer_of(run.id).content, ids_of(answer_of(run.id))) == ("So far", ids)


def test_an_answer_that_ends_with_its_worker_keeps_the_ids_that_were_published(ada: Person) -> None:
    run = claim_by_hand(ada.sent(ada.new_chat())["run"]["id"])
    assert runs.request_cancel(run_id=run.id, now=timezone.now())
    ids = lose(run, "So far")
    assert (answer_of(run.id).state, ids_of(answer_of(run.id))) == ("stopped", ids)


def test_a_retried_answer_takes_the_new_ids(ada: Person) -> None:
    run = ada.sent(ada.new_chat())["run"]["id"]
    settle_by_hand(run, status="failed", text="Bad")
    assert ids_of(answer_of(run)) == TOKENIZER.encode("Bad")
    assert ada.retry(run).status_code == 202
    settle_by_hand(run, text="Good one")
    assert ids_of(answer_of(run)) == TOKENIZER.encode("Good one")
    assert ada.retry(run).status_code == 409


def test_an_answer_without_text_has_no_ids(ada: Person) -> None:
    run = ada.sent(ada.new_chat())["run"]["id"]
    settle_by_hand(run, status="failed", text="")
    assert (answer_of(run).token_ids, answer_of(run).token_model) == (None, "")


def test_ids_of_another_model_get_into_no_prompt(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat)["run"]["id"], text="Fine.")
    seen: list[bytes] = []
    real = ChatTokenizer.encode_chat

    def encode(self: Any, messages: Any, **more: Any) -> list[int]:
        seen.extend(message.token_ids for message in messages if message.token_ids)
        return real(self, messages, **more)

    monkeypatch.setattr("inference.tokenization.ChatTokenizer.encode_chat", encode)
    settle_by_hand(ada.sent(chat, turn="t2")["run"]["id"])
    assert seen
    for known in ("what was sent is remembered", "it is not"):
        seen.clear()
        Message.objects.update(token_model="the-other")
        settle_by_hand(ada.sent(chat, turn=known)["run"]["id"])
        assert not seen
        cache.clear()
