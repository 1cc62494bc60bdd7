"""Following a run through an explicit retry: from every cursor of the attempt before, and past its terminal event."""

from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from django.utils import timezone

from conversations import retries
from conversations.tests.support import Caller, Frame, Person, Room, in_thread
from conversations.tests.test_sse import forget_stream, text_of
from inference import api as inference
from inference import publishing
from inference.contracts import TERMINAL_SEQ
from inference.models import Run

pytestmark = pytest.mark.django_db(transaction=True)

# Each attempt ends so: a text, then a failure.
BREAKS = "Hi [[tps=20000 tokens=40 fail_after=12 prefill_ms=0]]"


@pytest.fixture
def chat(ada: Person) -> str:
    return ada.new_chat()


@pytest_asyncio.fixture
async def broken(caller: Caller, ada: Person, chat: str, room: Room) -> tuple[str, list[Frame]]:
    """A run whose first attempt has failed, and what its followers saw."""
    sent = await in_thread(ada.sent, chat, BREAKS)
    run = str(sent["run"]["id"])
    await in_thread(room.serve)
    frames = await caller.follow(run).frames()
    assert frames[-1].type == "failed"
    assert text_of(frames) != ""
    return run, frames


def shape_of(frames: list[Frame]) -> list[str]:
    """The types, deltas in a row as one."""
    types = [frame.type for frame in frames]
    return [kind for at, kind in enumerate(types) if at == 0 or kind != "delta" or types[at - 1] != "delta"]


def retry_without_queueing(run_id: str, ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry whose process dies right after its commit."""
    with monkeypatch.context() as patched:
        patched.setattr(inference, "enqueue", lambda run: None)
        assert retries.retry(owner_id=ada.user.id, run_id=UUID(run_id), now=timezone.now()).created


def queue_up(run_id: str) -> None:
    """What the reaper does for it."""
    assert publishing.enqueue(Run.objects.select_related("pool").get(id=run_id))


async def test_from_every_cursor_of_the_attempt_before_the_new_one_follows_from_its_beginning(
    caller: Caller, ada: Person, chat: str, room: Room, broken: Any
) -> None:
    run, old = broken
    assert (await in_thread(ada.retry, run)).status_code == 202
    await in_thread(room.serve)
    [answer, _] = await in_thread(ada.messages, chat)
    for frame in old[1:]:
        frames = await caller.follow(run, after=frame.id).frames()
        assert shape_of(frames) == ["started", "delta", "failed"], frame.id
        started = frames[0].data
        assert (started["epoch"], started["reason"], started["continues"]) == (2, "retry", False)
        assert (frames[-1].id, text_of(frames)) == (f"2-{TERMINAL_SEQ}", answer["content"])
    past = await caller.call("GET", f"/api/v1/runs/{run}/events", query=f"after=2-{TERMINAL_SEQ}")
    assert past.status == 204


async def test_whoever_waits_at_the_end_of_the_attempt_before_gets_the_new_one_live(
    caller: Caller, ada: Person, room: Room, broken: Any
) -> None:
    run, old = broken
    assert (await in_thread(ada.retry, run)).status_code == 202
    exchange = caller.follow(run, after=old[-1].id)
    assert (await exchange.frame()).raw == b": following\n\n"
    room.begin_serving()
    frames = await exchange.frames()
    assert shape_of(frames) == ["started", "delta", "failed"]
    assert [frame.id for frame in frames if frame.type == "started"] == ["2-1"]


async def test_a_reader_from_the_beginning_sees_that_the_run_waits_again_and_ends_at_the_new_end(
    caller: Caller, ada: Person, chat: str, room: Room, broken: Any
) -> None:
    run, _ = broken
    await in_thread(ada.retry, run)
    exchange = caller.follow(run)
    await exchange.frame()
    queued = await exchange.frame()
    assert (queued.type, queued.data["reason"]) == ("queued", "retry")
    room.begin_serving()
    frames = await exchange.frames()
    assert shape_of(frames) == ["started", "delta", "failed"]
    assert frames[-1].id == f"2-{TERMINAL_SEQ}"
    assert text_of(frames) == (await in_thread(ada.messages, chat))[0]["content"]


async def test_a_reader_who_comes_before_the_retry_is_queued_passes_the_superseded_end(
    caller: Caller, ada: Person, room: Room, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, old = broken
    await in_thread(retry_without_queueing, run, ada, monkeypatch)
    exchange = caller.follow(run)
    await exchange.frame()
    passed = [await exchange.frame() for _ in old]
    assert passed == old
    await in_thread(queue_up, run)
    room.begin_serving()
    frames = await exchange.frames()
    assert shape_of(frames) == ["started", "delta", "failed"]
    assert frames[-1].id == f"2-{TERMINAL_SEQ}"


async def test_a_retry_after_the_history_expired_is_followed_from_any_cursor(
    caller: Caller, ada: Person, room: Room, broken: Any
) -> None:
    run, old = broken
    await in_thread(forget_stream, run)
    await in_thread(ada.retry, run)
    await in_thread(room.serve)
    for after in (None, old[2].id, old[-1].id):
        frames = await caller.follow(run, after=after).frames()
        assert shape_of(frames)[-3:] == ["started", "delta", "failed"]
        assert not any(frame.type == "reset_required" for frame in frames)


async def test_a_second_retry_is_followed_past_two_ends(caller: Caller, ada: Person, room: Room, broken: Any) -> None:
    run, old = broken
    for _ in range(2):
        assert (await in_thread(ada.retry, run)).status_code == 202
        await in_thread(room.serve)
    for after in (old[-1].id, f"2-{TERMINAL_SEQ}"):
        frames = await caller.follow(run, after=after).frames()
        assert (frames[0].id, frames[-1].id) == ("3-1", f"3-{TERMINAL_SEQ}")
