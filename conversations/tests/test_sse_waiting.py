"""What a reader sees of a run that waits: where it stands, live and again, over the site's ASGI application."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from conversations.tests.support import (
    Caller,
    Frame,
    Person,
    Room,
    claim_by_hand,
    in_thread,
    pretend_a_worker,
    queued,
)
from inference import reaper, store, telling
from inference.contracts import StreamHub
from inference.models import Run

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = "Hi [[tps=20000 tokens=40 prefill_ms=0]]"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time that the queue is told on by so many seconds."""
    ahead = 0.0
    real = store.now_ms

    def pass_by(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(store, "now_ms", lambda: real() + round(ahead * 1000))
    return pass_by


@pytest.fixture
def line(site: None) -> list[str]:
    """Four runs that wait before all others, of a person each; every worker is busy."""
    pretend_a_worker(room=0)
    people = [Person(f"person{number}@example.org") for number in range(4)]
    return [str(person.sent(person.new_chat())["run"]["id"]) for person in people]


@pytest.fixture
def waits(ada: Person, line: list[str]) -> str:
    """A run of Ada's behind them."""
    return str(ada.sent(ada.new_chat(), QUICK)["run"]["id"])


@pytest.fixture
def replays(hub: StreamHub, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From which cursor a stream was read, each time that one was."""
    read: list[str] = []
    real = hub._read_after

    async def counted(keys: Any, run_id: Any, cursor: Any) -> Any:
        read.append(str(cursor))
        return await real(keys, run_id, cursor)

    monkeypatch.setattr(hub, "_read_after", counted)
    return read


async def move_on(line: list[str], clock: Callable[[float], None]) -> None:
    """The first in line is served, a second later everybody is told."""
    await in_thread(claim_by_hand, line.pop(0))
    clock(1.0)
    await in_thread(telling.tell)


async def test_a_reader_is_told_while_the_run_comes_closer_and_nothing_twice(
    caller: Caller, waits: str, line: list[str], clock: Callable[[float], None], replays: list[str]
) -> None:
    exchange = caller.follow(waits)
    [first] = await exchange.frames(until="queued")
    assert (first.id, first.data["position"], first.data["pool"]) == ("0-1", 4, "default")
    seen = [first]
    for _ in range(4):
        await move_on(line, clock)
        assert await in_thread(telling.tell) == 0, "within the same second"
        seen += await exchange.frames(until="queued")
    clock(1.0)
    assert await in_thread(telling.tell) == 0, "nothing has changed"
    assert [frame.id for frame in seen] == [f"0-{number}" for number in range(1, 6)]
    assert [frame.data["position"] for frame in seen] == [4, 3, 2, 1, 0]
    assert "reason" not in seen[-1].data
    assert replays == ["0-0"], "read once, when it was attached"


async def test_what_was_told_is_told_again_from_any_cursor(
    caller: Caller, waits: str, line: list[str], clock: Callable[[float], None], replays: list[str]
) -> None:
    for _ in range(3):
        await move_on(line, clock)
    for after in range(5):
        exchange = caller.follow(waits, after=f"0-{after}")
        frames = [await exchange.frames(until="queued") for _ in range(4 - after)]
        assert [frame.id for [frame] in frames] == [f"0-{number}" for number in range(after + 1, 5)]
    by_header = caller.follow(waits, headers={"last-event-id": "0-3"})
    [frame] = await by_header.frames(until="queued")
    assert frame.id == "0-4"
    await move_on(line, clock)
    [live] = await by_header.frames(until="queued")
    assert (live.id, live.data["position"]) == ("0-5", 0)


async def test_a_run_that_waited_is_followed_to_its_end(
    caller: Caller, waits: str, line: list[str], clock: Callable[[float], None], replays: list[str]
) -> None:
    exchange = caller.follow(waits, after="0-1")
    await move_on(line, clock)
    [second] = await exchange.frames(until="queued")
    for run in line:
        await in_thread(claim_by_hand, run)
    room = await in_thread(Room)
    try:
        room.begin_serving()
        frames = await exchange.frames()
    finally:
        await in_thread(room.close)
    assert (second.id, frames[0].type, frames[0].id, frames[-1].type) == ("0-2", "started", "1-1", "completed")
    assert len(replays) == 1, "no gap was suspected"


async def test_a_line_moves_on_with_a_real_engine(
    caller: Caller, site: None, ada: Person, clock: Callable[[float], None]
) -> None:
    await in_thread(pretend_a_worker, room=0)
    room = await in_thread(Room, slots=1)
    try:
        people = [await in_thread(Person, f"person{number}@example.org") for number in range(3)]
        for person in [*people, ada]:
            chat = await in_thread(person.new_chat)
            run = (await in_thread(person.sent, chat, "Hi [[tps=200 tokens=40 prefill_ms=0]]"))["run"]["id"]
        exchange = caller.follow(run)
        room.begin_serving()
        seen: list[Frame] = []
        while not seen or seen[-1].type == "queued":
            seen += [await exchange.frame()] if seen else await exchange.frames(until="queued")
            clock(1.0)
            await in_thread(telling.tell)
        await exchange.frames()
    finally:
        await in_thread(room.close)
    positions = [frame.data["position"] for frame in seen if frame.type == "queued"]
    assert positions == sorted(positions, reverse=True)
    assert positions[0] > positions[-1]


async def test_a_run_that_waited_too_long_ends_and_leaves_the_queue(caller: Caller, waits: str) -> None:
    exchange = caller.follow(waits)
    run = await in_thread(Run.objects.get, id=waits)
    await in_thread(lambda: reaper.reap(now=run.created_at + timedelta(seconds=301)))
    frames = await exchange.frames()
    assert (frames[-1].type, frames[-1].data["code"]) == ("failed", "queue_timeout")
    assert f"{waits}:1" not in await in_thread(queued)
