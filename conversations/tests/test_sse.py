"""Event streams through the site's ASGI application, with a real Valkey and the scripted engine."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from django.core import signals
from django.db import OperationalError
from django.test import Client

from chatsite.asgi import django_application
from conversations import moderation, sse
from conversations.models import Message, Turn
from conversations.sse import stream_http, wants_stream
from conversations.tests.support import (
    Caller,
    Exchange,
    Frame,
    Person,
    Room,
    claim_by_hand,
    in_thread,
    settle_by_hand,
    subscribe,
)
from inference import api as inference
from inference import store
from inference.cell import hub as hub_module
from inference.cell import stream
from inference.contracts import TERMINAL_SEQ, StreamHub
from inference.models import Run

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = "Hi [[tps=20000 tokens=40 prefill_ms=0]]"
# The first token comes at once, the others after the test.
ENDLESS = "Hi [[tps=0.01 tokens=40 prefill_ms=0]]"


@pytest.fixture
def chat(ada: Person) -> str:
    return ada.new_chat()


@pytest.fixture
def send(ada: Person, chat: str) -> Any:
    """Send with a JSON answer; the run's id."""

    async def sending(content: str = "Hello", *, turn: str = "t1") -> str:
        body = await in_thread(ada.sent, chat, content, turn=turn)
        return str(body["run"]["id"])

    return sending


def text_of(frames: list[Frame]) -> str:
    text = ""
    for frame in frames:
        if frame.type == "started" and not frame.data.get("continues"):
            text = ""
        elif frame.type == "delta":
            text += frame.data["text"]
    return text


def publish(run_id: str, *texts: str) -> None:
    """Become the run's owner and put these texts into its stream, as a worker would."""
    run = claim_by_hand(run_id)
    cell = store.connector().cell()
    started = {"epoch": 1, "pool": "default", "model": "m", "degraded": False}
    cell.call(
        stream.open_epoch(
            cell.keys, run_id=run.id, epoch=1, base_epoch=1, seq=1, started=started, ids_so_far=(), text_so_far=""
        )
    )
    for seq, text in enumerate(texts, start=2):
        reply = cell.call(stream.append(cell.keys, run_id=run.id, epoch=1, seq=seq, kind="delta", data={"text": text}))
        assert reply == "ok"


def forget_stream(run_id: str) -> None:
    """What Redis does some minutes after the run is settled."""
    cell = store.connector().cell()
    run = Run.objects.get(id=run_id)
    cell.run(lambda client: client.delete(cell.keys.stream(run.id), cell.keys.stream_state(run.id)))


async def test_a_run_is_followed_from_queued_to_completed(
    caller: Caller, send: Any, room: Room, ada: Person, chat: str
) -> None:
    run = await send(QUICK)
    exchange = caller.follow(run)
    assert (await exchange.frame()).raw == b": following\n\n"
    room.begin_serving()
    frames = await exchange.frames()
    await exchange.finished()
    types = [frame.type for frame in frames]
    assert types[:2] == ["queued", "started"]
    assert set(types[2:-1]) == {"delta"}
    assert types[-1] == "completed"
    assert frames[-1].id == f"1-{TERMINAL_SEQ}"
    [answer, _] = await in_thread(ada.messages, chat)
    assert frames[-1].data["message_id"] == answer["id"]
    assert text_of(frames) == answer["content"]
    body = (await caller.call("GET", f"/api/v1/runs/{run}")).json()
    assert frames[-1].data["usage"] == body["usage"]
    timings = {name: body["timings"][name] for name in ("queue_ms", "ttft_ms")}
    assert frames[-1].data["timings"] == timings


async def test_a_post_that_accepts_events_is_answered_with_them_after_a_frame_that_equals_the_json_answer(
    caller: Caller, room: Room, ada: Person, chat: str
) -> None:
    exchange = caller.stream(chat, QUICK)
    first = await exchange.frame()
    assert (first.id, first.type) == ("", "run")
    assert first.data == (await in_thread(ada.send, chat, QUICK)).json()
    assert first.data["run"]["status"] == "queued"
    room.begin_serving()
    frames = await exchange.frames()
    await exchange.finished()
    assert exchange.status == 200
    assert [frames[0].type, frames[-1].type] == ["queued", "completed"]
    assert text_of(frames) == (await in_thread(ada.messages, chat))[0]["content"]


async def test_a_repeated_post_streams_the_same_run_from_its_beginning(
    caller: Caller, room: Room, ada: Person, chat: str
) -> None:
    first = caller.stream(chat, QUICK)
    opening = await first.frame()
    room.begin_serving()
    frames = await first.frames()
    again = caller.stream(chat, QUICK)
    repeated = await again.frame()
    assert repeated.data["run"]["id"] == opening.data["run"]["id"]
    assert repeated.data["run"]["status"] == "done"
    assert await again.frames() == frames
    assert await in_thread(Run.objects.count) == 1


async def test_from_every_cursor_the_rest_and_nothing_but_the_rest_follows(
    caller: Caller, send: Any, room: Room, ada: Person
) -> None:
    run = await send(QUICK)
    await in_thread(room.serve)
    whole = await caller.follow(run).frames()
    assert len(whole) > 4
    for position, frame in enumerate(whole[:-1]):
        assert await caller.follow(run, after=frame.id).frames() == whole[position + 1 :]
        by_header = caller.follow(run, headers={"last-event-id": frame.id})
        assert await by_header.frames() == whole[position + 1 :]


async def test_after_wins_over_the_last_event_id(caller: Caller, send: Any, room: Room) -> None:
    run = await send(QUICK)
    await in_thread(room.serve)
    whole = await caller.follow(run).frames()
    both = caller.follow(run, after=whole[1].id, headers={"last-event-id": whole[-1].id})
    assert await both.frames() == whole[2:]


async def test_a_cursor_at_or_past_the_end_is_answered_204_without_a_body(
    caller: Caller, send: Any, room: Room
) -> None:
    run = await send(QUICK)
    await in_thread(room.serve)
    for after in (f"1-{TERMINAL_SEQ}", "2-0"):
        for asked in ({"after": after}, {"headers": {"last-event-id": after}}):
            exchange = caller.follow(run, **asked)
            await exchange.finished()
            assert (exchange.status, bytes(exchange.body), exchange.ended) == (204, b"", True)


async def test_an_expired_history_is_told_once_with_the_message_to_fetch(
    caller: Caller, send: Any, room: Room, ada: Person, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "CLOSE_GRACE_S", 0.01)
    run = await send(QUICK)
    await in_thread(room.serve)
    await in_thread(forget_stream, run)
    [answer, _] = await in_thread(ada.messages, chat)
    for after in (None, "1-2"):
        [only] = await caller.follow(run, after=after).frames()
        assert only.type == "reset_required"
        assert only.data == {"status": "done", "message_id": answer["id"]}
        again = await caller.call("GET", f"/api/v1/runs/{run}/events", query=f"after={only.id}")
        assert again.status == 204


async def test_a_repeated_post_after_the_history_expired_says_so(
    caller: Caller, send: Any, room: Room, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "CLOSE_GRACE_S", 0.01)
    run = await send(QUICK)
    await in_thread(room.serve)
    await in_thread(forget_stream, run)
    frames = await caller.stream(chat, QUICK).frames()
    assert [frame.type for frame in frames] == ["run", "reset_required"]


@pytest.fixture
async def impatient(hub: StreamHub, ada: Person) -> AsyncIterator[Caller]:
    """A caller of a site that sends something every few milliseconds."""
    opened = Caller(stream_http(django_application, new_hub=lambda: hub, quiet_s=0.02), person=ada)
    yield opened
    await opened.close()


async def test_while_nothing_happens_comments_show_that_the_connection_lives(impatient: Caller, send: Any) -> None:
    exchange = impatient.follow(await send())
    frames = [await exchange.frame() for _ in range(5)]
    assert [frame.type for frame in frames] == ["", "queued", "", "", ""]
    assert frames[2].raw == b": still here\n\n"
    assert not exchange.ended


async def test_a_database_that_is_away_cuts_no_stream(
    impatient: Caller, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def away(*, run_id: UUID) -> None:
        asked.append(run_id)
        raise OperationalError("the database is away")

    monkeypatch.setattr(inference, "run_state", away)
    exchange = impatient.follow(await send())
    frames = [await exchange.frame() for _ in range(4)]
    assert [frame.type for frame in frames] == ["", "queued", "", ""]
    assert asked
    assert not exchange.ended


def test_a_comment_comes_at_least_every_15_seconds() -> None:
    assert sse.QUIET_S < 15


async def test_streams_are_neither_kept_nor_held_back_nor_sniffed(caller: Caller, send: Any, chat: str) -> None:
    followed = caller.follow(await send(), headers={"x-request-id": "my-own-request"})
    posted = caller.stream(chat)
    for exchange in (followed, posted):
        await exchange.frame()
        headers = exchange.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert headers["x-accel-buffering"] == "no"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "content-length" not in headers
        assert "content-encoding" not in headers
    assert followed.headers["x-request-id"] == "my-own-request"
    assert len(posted.headers["x-request-id"]) > 8


NASTY = [
    "line\nline",
    "\r",
    "\r\n\r\n",
    "\u2028\u2029\x85",
    "🙂é日本",
    'data: x\n\nevent: completed\ndata: {"a": 1}\n\n',
    " ",
    '"\\',
]


async def test_any_text_fits_into_a_frame(caller: Caller, send: Any) -> None:
    run = await send()
    await in_thread(publish, run, *NASTY)
    await in_thread(settle_by_hand, run, text="".join(NASTY))
    frames = await caller.follow(run).frames()
    assert [frame.data["text"] for frame in frames if frame.type == "delta"] == NASTY
    assert frames[-1].type == "completed"
    for frame in frames:
        # An id, a type and one line of data; no line break of any kind in it.
        assert frame.raw.count(b"\n") == 4
        assert b"\r" not in frame.raw


async def test_any_question_fits_into_the_first_frame(caller: Caller, chat: str) -> None:
    question = "".join(NASTY)
    first = await caller.stream(chat, question).frame()
    assert first.data["message"]["content"] == question
    assert first.raw.count(b"\n") == 3
    assert b"\r" not in first.raw


async def test_notices_come_before_the_text(caller: Caller, ada: Person, chat: str, room: Room) -> None:
    await in_thread(subscribe, ada, concurrent_runs=2, max_output_tokens=20)
    exchange = caller.stream(chat, QUICK)
    told = (await exchange.frame()).data["run"]["notices"]
    room.begin_serving()
    frames = await exchange.frames()
    assert [frame.type for frame in frames][:4] == ["queued", "started", "notice", "delta"]
    assert [frame.data for frame in frames if frame.type == "notice"] == told
    assert told == [{"code": "output_capped", "text": "The answer is limited to 20 tokens: your plan allows no more."}]
    assert frames[-1].data["finish_reason"] == "length"


async def test_closing_a_connection_never_ends_the_run(
    caller: Caller, room: Room, ada: Person, chat: str, hub: StreamHub
) -> None:
    posted = caller.stream(chat, QUICK)
    run = (await posted.frame()).data["run"]["id"]
    followed = caller.follow(run)
    await followed.frame()
    for exchange in (posted, followed):
        exchange.hang_up()
        await exchange.finished()
    assert hub.subscriber.channel_count == 0
    await in_thread(room.serve)
    [answer, _] = await in_thread(ada.messages, chat)
    assert answer["state"] == "complete"
    assert text_of(await caller.follow(run).frames()) == answer["content"]


async def test_a_follower_that_leaves_in_the_middle_of_an_answer_frees_its_place_at_once(
    caller: Caller, send: Any, room: Room, hub: StreamHub
) -> None:
    run = await send(ENDLESS)
    first, second = caller.follow(run), caller.follow(run)
    room.begin_serving()
    for exchange in (first, second):
        assert (await exchange.frames(until="delta"))[-1].type == "delta"
    assert hub.subscriber.channel_count == 1
    first.hang_up()
    await first.finished()
    assert hub.subscriber.channel_count == 1
    second.hang_up()
    await second.finished()
    assert hub.subscriber.channel_count == 0
    assert (await in_thread(Run.objects.get)).status == "streaming"


async def test_many_who_follow_one_run_all_see_the_same(caller: Caller, send: Any, room: Room) -> None:
    run = await send(QUICK)
    exchanges = [caller.follow(run) for _ in range(8)]
    for exchange in exchanges:
        await exchange.frame()
    room.begin_serving()
    seen = [await exchange.frames() for exchange in exchanges]
    assert all(frames == seen[0] for frames in seen)
    assert seen[0][-1].type == "completed"


async def test_a_cancelled_run_ends_its_streams_with_what_there_was(
    caller: Caller, send: Any, room: Room, ada: Person, chat: str
) -> None:
    run = await send(ENDLESS)
    exchange = caller.follow(run)
    room.begin_serving()
    frames = await exchange.frames(until="delta")
    cancelled = await caller.call("POST", f"/api/v1/runs/{run}/cancel")
    assert cancelled.status in (200, 202)
    frames += await exchange.frames()
    await exchange.finished()
    assert (frames[-1].type, frames[-1].data["code"]) == ("cancelled", "cancelled")
    [answer, _] = await in_thread(ada.messages, chat)
    assert (answer["state"], answer["content"]) == ("stopped", text_of(frames))
    assert frames[-1].data["usage"]["output"] >= 1


async def test_a_run_cancelled_while_it_waits_ends_its_streams_too(caller: Caller, send: Any) -> None:
    run = await send()
    exchange = caller.follow(run)
    await exchange.frames(until="queued")
    await caller.call("POST", f"/api/v1/runs/{run}/cancel")
    assert [frame.type for frame in await exchange.frames()] == ["cancelled"]


@pytest.mark.parametrize("leaves_during", ["authentication", "acceptance"])
async def test_a_client_that_leaves_while_its_post_is_worked_on_leaves_a_finished_turn_and_no_open_connection(
    caller: Caller, chat: str, monkeypatch: pytest.MonkeyPatch, leaves_during: str
) -> None:
    """Cut off in the middle, Django would neither end the request nor give its database connection back."""
    reached, go_on = threading.Event(), threading.Event()
    balance = []

    def hold(**_: Any) -> None:
        reached.set()
        assert go_on.wait(timeout=20)

    def count(sign: int) -> Any:
        return lambda **_: balance.append(sign)

    started, finished = count(1), count(-1)
    signals.request_started.connect(started)
    signals.request_finished.connect(finished)
    monkeypatch.setattr(moderation, "check", hold)
    try:
        exchange = caller.stream(chat)
        if leaves_during == "acceptance":
            assert await asyncio.to_thread(reached.wait, 20)
        exchange.hang_up()
        # The consumer has seen it go before Django goes on.
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        await exchange.finished()
    finally:
        go_on.set()
        signals.request_started.disconnect(started)
        signals.request_finished.disconnect(finished)
    assert balance == [1, -1]
    assert exchange.status == 0
    assert await in_thread(Turn.objects.count) == 1


async def test_no_database_connection_is_held_while_streaming(caller: Caller, send: Any, room: Room, chat: str) -> None:
    """Django ends the request before the first frame; from then on the database is not asked."""
    finished = []
    ended = lambda **_: finished.append(True)  # noqa: E731
    signals.request_finished.connect(ended)
    try:
        exchange = caller.stream(chat, ENDLESS)
        await exchange.frame()
        assert finished == [True]
        room.begin_serving()
        assert (await exchange.frames(until="delta"))[-1].type == "delta"
    finally:
        signals.request_finished.disconnect(ended)


async def test_an_error_while_following_ends_the_request_instead_of_leaving_it_open(
    ada: Person, send: Any, hub: StreamHub
) -> None:
    class BrokenHub:
        async def follow(self, **asked: Any) -> AsyncIterator[Any]:
            if asked:
                raise ZeroDivisionError
            yield

    broken: Any = BrokenHub()
    caller = Caller(stream_http(django_application, new_hub=lambda: broken), person=ada)
    exchange = caller.follow(await send())
    with pytest.raises(ZeroDivisionError):
        await exchange.finished()
    assert (exchange.status, exchange.ended) == (200, False)


def problem(exchange: Exchange) -> tuple[int, str]:
    assert exchange.headers["content-type"] == "application/problem+json"
    assert exchange.headers["x-content-type-options"] == "nosniff"
    body = exchange.json()
    assert body["status"] == exchange.status
    return exchange.status, body["code"]


async def post_stream(caller: Caller, chat: str, body: Any, **headers: str) -> Exchange:
    accept = {"accept": "text/event-stream"} | headers
    return await caller.call("POST", f"/api/v1/chats/{chat}/messages", body=body, headers=accept)


async def test_a_refused_post_answers_with_the_problem_unchanged(
    caller: Caller, ada: Person, chat: str, streams: Any
) -> None:
    hello = {"content": "Hello", "client_turn_id": "t1"}
    unknown = "00000000-0000-0000-0000-000000000007"
    refusals = [
        (await post_stream(Caller(streams, person=None), chat, hello), (401, "not_authenticated")),
        (await post_stream(caller, unknown, hello), (404, "not_found")),
        (await post_stream(caller, "abc", hello), (404, "not_found")),
        (await post_stream(caller, chat, hello | {"content": " "}), (400, "invalid")),
        (await post_stream(caller, chat, hello | {"content": "x" * 5000}), (400, "too_long")),
        (await post_stream(caller, chat, hello | {"pool": "nowhere"}), (400, "unknown_pool")),
        (await post_stream(caller, chat, b"{"), (400, "malformed")),
        (await post_stream(caller, chat, b"\xff"), (400, "malformed")),
        (await post_stream(caller, chat, b"a=b", **{"content-type": "text/plain"}), (415, "unsupported_media_type")),
        (await post_stream(caller, chat, b"x" * 5_000_001), (413, "too_large")),
        (await post_stream(caller, chat, b"x" * 9_000_000), (413, "too_large")),
    ]
    for exchange, expected in refusals:
        assert problem(exchange) == expected
    assert await in_thread(Message.objects.count) == 0


async def test_a_busy_chat_and_a_reached_limit_answer_with_the_problem_unchanged(
    caller: Caller, ada: Person, chat: str, send: Any
) -> None:
    await in_thread(subscribe, ada, concurrent_runs=1)
    run = await send()
    other = await in_thread(ada.new_chat)
    busy = await post_stream(caller, chat, {"content": "More", "client_turn_id": "t2"})
    assert problem(busy) == (409, "chat_busy")
    assert busy.json()["run_id"] == run
    conflict = await post_stream(caller, chat, {"content": "More", "client_turn_id": "t1"})
    assert problem(conflict) == (409, "turn_conflict")
    limited = await post_stream(caller, other, {"content": "More", "client_turn_id": "t1"})
    assert problem(limited) == (429, "limit_reached")
    assert int(limited.headers["retry-after"]) == limited.json()["retry_after"]


async def test_a_refused_follower_gets_the_problem_unchanged(
    caller: Caller, eve: Person, send: Any, streams: Any
) -> None:
    run = await send()
    assert problem(await caller.call("GET", f"/api/v1/runs/{run}/events", query="after=x")) == (400, "invalid")
    assert problem(await caller.call("GET", "/api/v1/runs/abc/events")) == (404, "not_found")
    unauthenticated = await Caller(streams, person=None).call("GET", f"/api/v1/runs/{run}/events")
    assert problem(unauthenticated) == (401, "not_authenticated")
    foreign = await Caller(streams, person=eve).call("GET", f"/api/v1/runs/{run}/events")
    assert problem(foreign) == (404, "not_found")


async def test_a_session_that_posts_for_a_stream_needs_its_token(streams: Any, ada: Person, chat: str) -> None:
    def cookies_of_a_browser() -> str:
        browser = Client()
        browser.force_login(ada.user)
        browser.get("/")
        return "; ".join(f"{name}={morsel.value}" for name, morsel in browser.cookies.items())

    cookies = await in_thread(cookies_of_a_browser)
    token = cookies.partition("csrftoken=")[2].partition(";")[0]
    stranger = Caller(streams, person=None)
    hello = {"content": "Hello", "client_turn_id": "t1"}
    assert problem(await post_stream(stranger, chat, hello, cookie=cookies)) == (403, "permission_denied")
    allowed = stranger.open(
        "POST",
        f"/api/v1/chats/{chat}/messages",
        body=hello,
        headers={"accept": "text/event-stream", "cookie": cookies, "x-csrftoken": token},
    )
    assert (await allowed.frame()).type == "run"
    await stranger.close()


async def test_other_requests_go_to_django_alone(caller: Caller, chat: str) -> None:
    listed = await caller.call("GET", "/api/v1/chats")
    assert [found["id"] for found in listed.json()["results"]] == [chat]
    sent = await caller.call(
        "POST", f"/api/v1/chats/{chat}/messages", body={"content": "Hello", "client_turn_id": "t1"}
    )
    assert (sent.status, sent.headers["content-type"]) == (202, "application/json")


@pytest.mark.parametrize(
    ("method", "path", "accept", "expected"),
    [
        ("GET", "/api/v1/runs/x/events", "*/*", True),
        ("GET", "/api/v1/runs/x/events", "", True),
        ("POST", "/api/v1/runs/x/events", "text/event-stream", False),
        ("HEAD", "/api/v1/runs/x/events", "*/*", False),
        ("GET", "/api/v1/runs/x/events/", "*/*", False),
        ("POST", "/api/v1/chats/x/messages", "text/event-stream", True),
        ("POST", "/api/v1/chats/x/messages", "application/json, Text/Event-Stream;q=0.9", True),
        ("POST", "/api/v1/chats/x/messages", "application/json", False),
        ("POST", "/api/v1/chats/x/messages", "*/*", False),
        ("GET", "/api/v1/chats/x/messages", "text/event-stream", False),
        ("GET", "/api/v1/chats", "text/event-stream", False),
    ],
)
def test_what_asks_for_a_stream(method: str, path: str, accept: str, expected: bool) -> None:
    scope = {"type": "http", "method": method, "path": path, "headers": [(b"accept", accept.encode())]}
    assert wants_stream(scope) is expected


def test_a_websocket_asks_for_no_stream() -> None:
    assert not wants_stream({"type": "websocket", "path": "/api/v1/runs/x/events"})


async def test_a_stream_that_is_awaited_for_long_sends_only_what_happened(
    caller: Caller, send: Any, room: Room
) -> None:
    """Bytes grow with the answer, not with the time or the number of tokens in one flush."""
    run = await send("Hi [[tps=20000 tokens=400 prefill_ms=0]]")
    await in_thread(room.serve)
    frames = await caller.follow(run).frames()
    deltas = [frame for frame in frames if frame.type == "delta"]
    text = text_of(frames)
    overhead = sum(len(frame.raw) for frame in deltas) - len(json.dumps(text, ensure_ascii=False).encode())
    assert overhead < 60 * len(deltas)
