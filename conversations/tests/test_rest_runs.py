"""The runs' and pools' routes: reading, cancelling, and leave to follow."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from conversations.tests.support import (
    Json,
    Person,
    claim_by_hand,
    lose_redis,
    queued,
    reservations,
    settle_by_hand,
)
from inference.contracts import TERMINAL_SEQ
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(ada: Person) -> Json:
    return ada.sent(ada.new_chat())


def run_path(sent: Json) -> str:
    return f"/api/v1/runs/{sent['run']['id']}"


def test_a_run_is_read_as_the_send_told_it(ada: Person, sent: Json) -> None:
    response = ada.get(run_path(sent))
    assert (response.status_code, response.json()) == (200, sent["run"])


def test_a_finished_run_tells_its_usage_timings_and_message(ada: Person, sent: Json) -> None:
    run = claim_by_hand(sent["run"]["id"])
    assert ada.get(run_path(sent)).json()["status"] == "streaming"
    ended = settle_by_hand(sent["run"]["id"], output_tokens=7)
    now = timezone.now()
    Run.objects.filter(id=run.id).update(
        created_at=now, claimed_at=now + timedelta(milliseconds=12),
        first_token_at=now + timedelta(milliseconds=80), finished_at=now + timedelta(seconds=2),
        cached_tokens=3, finish_reason="stop",
    )  # fmt: skip
    body = ada.get(run_path(sent)).json()
    assert (body["status"], body["message_id"], body["finish_reason"]) == ("done", str(ended.message_id), "stop")
    assert body["usage"] == {"prompt": run.prompt_tokens, "cached": 3, "output": 7}
    assert body["timings"] == {"queue_ms": 12, "ttft_ms": 80, "total_ms": 2000, "release_ms": None}


def test_a_run_tells_what_all_its_attempts_are_charged_and_wasted_once_it_is_over(ada: Person, sent: Json) -> None:
    run = claim_by_hand(sent["run"]["id"])
    active = ada.get(run_path(sent)).json()
    assert (active["charged"], active["waste"]) == (None, None)
    settle_by_hand(run.id, status="interrupted", text="", output_tokens=0)
    broken = ada.get(run_path(sent)).json()
    assert (broken["charged"], broken["waste"]) == (0, run.prompt_tokens)
    assert ada.post(f"{run_path(sent)}/retry").status_code == 202
    claim_by_hand(run.id)
    assert ada.get(run_path(sent)).json()["charged"] is None, "it is not over"
    settle_by_hand(run.id, output_tokens=7)
    ended = ada.get(run_path(sent)).json()
    assert (ended["charged"], ended["waste"]) == (ended["usage"]["prompt"] + 7, run.prompt_tokens)


def test_a_run_that_nobody_began_is_charged_nothing(ada: Person, sent: Json) -> None:
    body = ada.post(f"{run_path(sent)}/cancel").json()
    assert (body["charged"], body["waste"]) == (0, 0)


def test_cancelling_a_waiting_run_ends_it_at_once_and_gives_its_hold_back(ada: Person, sent: Json) -> None:
    response = ada.post(f"{run_path(sent)}/cancel")
    body = response.json()
    assert (response.status_code, body["status"], body["error_code"]) == (200, "cancelled", "cancelled")
    assert body["cancel_requested_at"] is None
    assert body == ada.get(run_path(sent)).json()
    assert (queued(), reservations(ada.user.id)) == ([], {})
    [answer, _] = ada.messages(sent["run"]["chat_id"])
    assert (answer["state"], answer["content"], answer["id"]) == ("stopped", "", body["message_id"])


def test_cancelling_a_streaming_run_answers_202_and_leaves_the_end_to_its_owner(ada: Person, sent: Json) -> None:
    claim_by_hand(sent["run"]["id"])
    response = ada.post(f"{run_path(sent)}/cancel")
    assert (response.status_code, response.json()["status"]) == (202, "streaming")
    requested_at = Run.objects.get().cancel_requested_at
    assert requested_at is not None
    for body in (response.json(), ada.get(run_path(sent)).json()):
        assert datetime.fromisoformat(body["cancel_requested_at"]) == requested_at
    assert [message["role"] for message in ada.messages(sent["run"]["chat_id"])] == ["user"]


@pytest.mark.parametrize("with_chat", [False, True], ids=["by run", "by chat and run"])
def test_cancelling_again_changes_nothing(ada: Person, sent: Json, with_chat: bool) -> None:
    run = sent["run"]
    path = f"/api/v1/chats/{run['chat_id']}/runs/{run['id']}/cancel" if with_chat else f"{run_path(sent)}/cancel"
    claim_by_hand(run["id"])
    first = ada.post(path)
    requested_at = Run.objects.get().cancel_requested_at
    assert ada.post(path).json() == first.json()
    assert Run.objects.get().cancel_requested_at == requested_at
    settle_by_hand(run["id"], status="cancelled", text="Half")
    over = ada.post(path)
    assert (over.status_code, over.json()["status"]) == (200, "cancelled")
    assert over.json() == ada.post(path).json()


def test_cancelling_a_finished_run_leaves_it_finished(ada: Person, sent: Json) -> None:
    settle_by_hand(sent["run"]["id"])
    response = ada.post(f"{run_path(sent)}/cancel")
    assert (response.status_code, response.json()["status"]) == (200, "done")


def test_a_run_is_not_cancelled_through_another_chat(ada: Person, sent: Json) -> None:
    other = ada.new_chat()
    assert ada.post(f"/api/v1/chats/{other}/runs/{sent['run']['id']}/cancel").status_code == 404
    assert Run.objects.get().status == "queued"


def test_an_unknown_run_is_a_404_whatever_is_asked_of_it(ada: Person) -> None:
    unknown = f"/api/v1/runs/{UUID(int=7)}"
    for response in (ada.get(unknown), ada.get(f"{unknown}/events"), ada.post(f"{unknown}/cancel")):
        assert (response.status_code, response.json()["code"]) == (404, "not_found")


def follow(person: Person, sent: Json, *, last_event_id: str | None = None, **parameters: str) -> Any:
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    return person.client.get(f"{run_path(sent)}/events", parameters, headers=headers)


@pytest.mark.parametrize(
    ("after", "last_event_id", "expected"),
    [
        (None, None, "0-0"),
        ("0-0", None, "0-0"),
        ("1-5", None, "1-5"),
        (None, "1-5", "1-5"),
        ("1-2", "1-5", "1-2"),
        ("1-5", "1-2", "1-5"),
        ("1-2", "nonsense", "1-2"),
        (None, "", "0-0"),
    ],
)
def test_after_wins_over_the_last_event_id(
    ada: Person, sent: Json, after: str | None, last_event_id: str | None, expected: str
) -> None:
    parameters = {} if after is None else {"after": after}
    response = follow(ada, sent, last_event_id=last_event_id, **parameters)
    assert (response.status_code, response.json()["after"]) == (200, expected)


@pytest.mark.parametrize(
    "cursor", ["1", "1-", "-1", "a-b", "1-2-3", "1.5-2", " 1-1", "١-١", "4294967296-0", "1-4294967296"]
)
def test_a_cursor_that_is_none_is_refused_by_name(ada: Person, sent: Json, cursor: str) -> None:
    named = follow(ada, sent, after=cursor)
    assert (named.status_code, list(named.json()["errors"])) == (400, ["after"])
    if cursor.isascii() and cursor.strip() == cursor:
        from_header = follow(ada, sent, last_event_id=cursor)
        assert (from_header.status_code, list(from_header.json()["errors"])) == (400, ["Last-Event-ID"])


def test_an_empty_after_is_refused(ada: Person, sent: Json) -> None:
    assert follow(ada, sent, after="").status_code == 400


def test_a_cursor_ahead_of_the_run_is_refused_while_it_is_active(ada: Person, sent: Json) -> None:
    assert follow(ada, sent, after="2-0").status_code == 400


@pytest.mark.parametrize("after", [f"1-{TERMINAL_SEQ}", "2-0"])
def test_a_cursor_at_or_past_the_end_answers_204(ada: Person, sent: Json, after: str) -> None:
    settle_by_hand(sent["run"]["id"])
    response = follow(ada, sent, after=after)
    assert (response.status_code, response.content) == (204, b"")
    assert follow(ada, sent, last_event_id=after).status_code == 204


def test_a_cursor_before_the_end_may_be_followed(ada: Person, sent: Json) -> None:
    settle_by_hand(sent["run"]["id"])
    assert follow(ada, sent, after=f"1-{TERMINAL_SEQ - 1}").status_code == 200


def test_an_end_that_a_retry_superseded_is_not_the_end(ada: Person, sent: Json) -> None:
    settle_by_hand(sent["run"]["id"], status="failed")
    Run.objects.update(status="queued", epoch=2, finished_at=None)
    assert follow(ada, sent, after=f"1-{TERMINAL_SEQ}").status_code == 200


def test_pools_are_listed_default_first_with_whether_they_can_answer(ada: Person) -> None:
    ModelPool.objects.create(slug="asleep", name="Asleep", context_window=8192, max_output_tokens=2048, model="m")
    ModelPool.objects.create(slug="closed", name="Closed", is_open=False)
    response = ada.get("/api/v1/pools")
    body = response.json()
    assert response.status_code == 200
    assert set(body) == {"results", "next", "previous"}
    assert [(pool["slug"], pool["is_default"], pool["available"]) for pool in body["results"]] == [
        ("default", True, True), ("asleep", False, False),
    ]  # fmt: skip
    assert body["results"][1] == {
        "slug": "asleep", "name": "Asleep", "model": "m", "engine": "scripted", "is_default": False,
        "context_window": 8192, "max_output_tokens": 2048, "available": False,
    }  # fmt: skip


def test_pools_are_listed_without_redis(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_redis(monkeypatch)
    assert [pool["available"] for pool in ada.get("/api/v1/pools").json()["results"]] == [False]
