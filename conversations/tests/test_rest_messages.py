"""The messages' routes: sending, exact shapes, paging."""

from datetime import timedelta
from itertools import chain
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from django.utils import timezone

from conversations.models import Message, Turn
from conversations.tests.support import Json, Person, reservations, settle_by_hand, subscribe
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db


def path(chat: str) -> str:
    return f"/api/v1/chats/{chat}/messages"


def test_sending_answers_202_with_the_run_the_message_and_where_to_follow(ada: Person) -> None:
    chat = ada.new_chat()
    response = ada.send(chat, "What is the capital of Italy?")
    assert response.status_code == 202
    assert response.headers["Content-Type"] == "application/json"
    body = response.json()
    run_id, message_id = body["run"]["id"], body["message"]["id"]
    assert UUID(run_id).version == UUID(message_id).version == 7
    created_at = body["run"]["created_at"]
    assert body == {
        "run": {
            "id": run_id, "chat_id": chat, "status": "queued", "pool": "default", "model": body["run"]["model"],
            "epoch": 1, "degraded": False, "created_at": created_at,
            "cancel_requested_at": None,
            "usage": {"prompt": Run.objects.get().prompt_tokens, "cached": 0, "output": 0},
            "charged": None, "waste": None, "message_id": None,
            "timings": {"queue_ms": None, "ttft_ms": None, "total_ms": None, "release_ms": None},
            "context": {
                "summary_version": 0, "first_seq": 1, "last_seq": 1, "trimmed": False,
                "prompt_tokens": Run.objects.get().prompt_tokens,
                "system_tokens": Run.objects.get().context["system_tokens"],
                "summary_tokens": 0, "max_output_tokens": 1024, "recalled": [], "recalled_tokens": 0,
            },
            "notices": [], "finish_reason": "", "error_code": "",
        },
        "message": {
            "id": message_id, "chat_id": chat, "seq": 1, "role": "user", "content": "What is the capital of Italy?",
            "state": "complete", "code": "", "degraded": False, "run_id": run_id, "created_at": created_at,
        },
        "events_url": f"/api/v1/runs/{run_id}/events",
    }  # fmt: skip
    assert created_at.endswith("Z")


def test_a_repeat_answers_200_with_the_same_body(ada: Person) -> None:
    chat = ada.new_chat()
    first = ada.send(chat)
    again = ada.send(chat)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()


def test_a_repeat_after_the_answer_tells_of_the_run_as_it_is_now(ada: Person) -> None:
    chat = ada.new_chat()
    first = ada.sent(chat)
    ended = settle_by_hand(first["run"]["id"])
    again = ada.send(chat).json()
    assert (again["run"]["id"], again["run"]["status"]) == (first["run"]["id"], "done")
    assert again["run"]["message_id"] == str(ended.message_id)
    assert again["message"] == first["message"]


@pytest.mark.parametrize("other", [{"content": "Other"}, {"pool": "default"}, {"max_output_tokens": 5}], ids=str)
def test_the_same_turn_id_with_anything_else_asked_answers_409(ada: Person, other: Json) -> None:
    chat = ada.new_chat()
    ada.sent(chat)
    response = ada.send(chat, **{"content": "Hello"} | other)
    assert response.status_code == 409
    assert (response.json()["code"], response.json()["client_turn_id"]) == ("turn_conflict", "t1")
    assert Turn.objects.count() == 1


def test_a_chat_that_is_being_answered_answers_409_with_the_run_in_the_way(ada: Person) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat)["run"]["id"]
    response = ada.send(chat, "Another", turn="t2")
    assert response.status_code == 409
    assert (response.json()["code"], response.json()["run_id"]) == ("chat_busy", run)


def test_ones_own_limit_answers_429_with_when_to_come_back(ada: Person) -> None:
    subscribe(ada, concurrent_runs=1)
    ada.sent(ada.new_chat())
    response = ada.send(ada.new_chat())
    assert response.status_code == 429
    body = response.json()
    assert (body["code"], body["limit"], body["maximum"]) == ("limit_reached", "concurrent_runs", 1)
    assert int(response.headers["Retry-After"]) == body["retry_after"] >= 1
    assert body["remaining"] == 0
    assert response.headers["RateLimit-Policy"] == '"concurrent_runs";q=1;qu="concurrent-requests"'
    assert response.headers["RateLimit"] == f'"concurrent_runs";r=0;t={body["retry_after"]}'


def test_without_a_worker_the_answer_is_503_with_when_to_come_back(ada: Person) -> None:
    ModelPool.objects.create(slug="asleep", name="Asleep")
    response = ada.send(ada.new_chat(), pool="asleep")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert int(response.headers["Retry-After"]) >= 1


def test_a_message_beyond_the_window_answers_400_with_the_numbers(ada: Person) -> None:
    response = ada.send(ada.new_chat(), "x" * 5000)
    body = response.json()
    assert (response.status_code, body["code"]) == (400, "too_long")
    assert body["prompt_tokens"] > 5000
    assert (body["max_prompt_tokens"], body["context_window"]) == (3840, 4096)


def test_a_message_of_the_greatest_length_is_told_the_window_not_a_server_error(ada: Person) -> None:
    body = ada.send(ada.new_chat(), "é" * 400_000).json()
    assert (body["code"], body["prompt_tokens"]) == ("too_long", body["prompt_tokens"])
    assert body["prompt_tokens"] > 800_000


def test_a_notice_stands_with_the_run(ada: Person) -> None:
    subscribe(ada, concurrent_runs=2, max_output_tokens=50)
    body = ada.sent(ada.new_chat())
    notice = {"code": "output_capped", "text": "The answer is limited to 50 tokens: your plan allows no more."}
    assert body["run"]["notices"] == [notice]
    assert ada.get(f"/api/v1/runs/{body['run']['id']}").json()["notices"] == [notice]


def test_text_comes_back_as_it_was_sent(ada: Person) -> None:
    content = " line\r\nline\u2028🙂 مرحبا <b>&amp;</b> {{x}} \x01\t"
    chat = ada.new_chat()
    assert ada.sent(chat, content)["message"]["content"] == content
    assert ada.messages(chat)[0]["content"] == content


def test_messages_come_newest_first_with_the_answer_once_it_is_there(ada: Person) -> None:
    chat = ada.new_chat()
    sent = ada.sent(chat, "Capital of Italy?")
    assert ada.messages(chat) == [sent["message"]]
    ended = settle_by_hand(sent["run"]["id"], text="Rome.")
    assert ada.messages(chat) == [
        {
            "id": str(ended.message_id), "chat_id": chat, "seq": 2, "role": "assistant", "content": "Rome.",
            "state": "complete", "code": "", "degraded": False, "run_id": sent["run"]["id"],
            "created_at": sent["run"]["created_at"],
        },
        sent["message"],
    ]  # fmt: skip


def fill(chat: str, count: int) -> None:
    now = timezone.now()
    turn = Turn.objects.create(chat_id=chat, client_turn_id="old", fingerprint="f", run_id=UUID(int=1), created_at=now)
    for seq in range(1, count + 1):
        if seq > 2:
            turn = Turn.objects.create(
                chat_id=chat, client_turn_id=f"old{seq}", fingerprint="f", run_id=UUID(int=seq), created_at=now
            )
        Message.objects.create(
            chat_id=chat, turn=turn, seq=seq, role="user" if seq != 2 else "assistant", content=str(seq),
            run_id=turn.run_id, created_at=now + timedelta(seconds=seq),
        )  # fmt: skip


def test_pages_hold_every_message_once_newest_first_with_absolute_links(ada: Person) -> None:
    chat = ada.new_chat()
    fill(chat, 7)
    url: str | None = f"{path(chat)}?limit=3"
    pages, links = [], []
    while url is not None:
        body = ada.client.get(url).json()
        assert set(body) == {"results", "next", "previous"}
        pages.append([message["seq"] for message in body["results"]])
        url = body["next"]
        links += [link for link in (body["next"], body["previous"]) if link]
    assert pages == [[7, 6, 5], [4, 3, 2], [1]]
    assert list(chain.from_iterable(pages)) == [7, 6, 5, 4, 3, 2, 1]
    assert {urlsplit(link)[:3] for link in links} == {("http", "testserver", path(chat))}


def test_a_hidden_message_is_not_listed(ada: Person) -> None:
    chat = ada.new_chat()
    fill(chat, 3)
    Message.objects.filter(seq=2).update(hidden=True)
    assert [message["seq"] for message in ada.messages(chat)] == [3, 1]


def test_messages_of_other_chats_are_not_listed(ada: Person) -> None:
    chat, other = ada.new_chat(), ada.new_chat()
    ada.sent(other)
    assert ada.messages(chat) == []


def test_a_chat_that_does_not_exist_answers_404_and_holds_nothing(ada: Person) -> None:
    for response in (ada.send(str(UUID(int=7))), ada.get(path(str(UUID(int=7))))):
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert reservations(ada.user.id) == {}


def test_reading_messages_takes_three_queries_whatever_their_number(
    ada: Person, django_assert_num_queries: Any
) -> None:
    chat = ada.new_chat()
    fill(chat, 30)
    ada.messages(chat)
    with django_assert_num_queries(3):
        # The key, the chat, the messages.
        assert len(ada.messages(chat)) == 30
