"""Behaviours that users of comparable products reported as broken, one test each, on a worker in this process."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from billing import api as billing
from billing.models import UsageEntry
from conversations.models import Message, Turn
from conversations.tests.support import (
    Caller,
    Frame,
    Json,
    Person,
    Room,
    claim_by_hand,
    closing_connections,
    in_thread,
    reservations,
    settle_by_hand,
)
from inference import store
from inference.contracts import StreamHub
from inference.models import ModelPool, Run
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

QUICK = "Hi [[tps=20000 tokens=40 prefill_ms=0]]"
# Ten tokens come within a second, the rest after the test.
SLOW = "Hi [[tps=20 tokens=2000 prefill_ms=0]]"


@pytest.fixture
def chat(ada: Person) -> str:
    return ada.new_chat()


def run_of(person: Person, run: str) -> Json:
    body: Json = person.get(f"/api/v1/runs/{run}").json()
    return body


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.data["text"] for frame in frames if frame.type == "delta")


async def first_deltas(caller: Caller, run: str, count: int) -> list[Frame]:
    """A new follower's frames up to the given number of deltas; it leaves then."""
    exchange = caller.follow(run)
    frames: list[Frame] = []
    while sum(frame.type == "delta" for frame in frames) < count:
        frames.append(await exchange.frame())
    exchange.hang_up()
    await exchange.finished()
    return [frame for frame in frames if frame.type]


# Sending


async def test_a_post_repeated_after_a_lost_response_makes_one_turn_one_run_and_one_ledger_row_at_any_timing(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    async def again() -> str:
        response = await in_thread(ada.send, chat, SLOW)
        assert response.status_code == 200
        return str(response.json()["run"]["id"])

    run = (await in_thread(ada.sent, chat, SLOW))["run"]["id"]
    while_queued = await again()
    room.begin_serving()
    await first_deltas(caller, run, 2)
    while_streaming = await again()
    await in_thread(ada.post, f"/api/v1/runs/{run}/cancel")
    await in_thread(room.finish_serving)
    afterwards = await again()
    assert {while_queued, while_streaming, afterwards} == {run}
    assert await in_thread(lambda: (Turn.objects.count(), Run.objects.count(), UsageEntry.objects.count())) == (1, 1, 1)
    assert await in_thread(Message.objects.count) == 2
    assert await in_thread(reservations, ada.user.id) == {}


async def test_streams_belong_to_a_run_and_never_yield_another_turns_tokens(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    first = (await in_thread(ada.sent, chat, f"First {QUICK}"))["run"]["id"]
    await in_thread(room.serve)
    second = (await in_thread(ada.sent, chat, f"Second {QUICK}", turn="t2"))["run"]["id"]
    await in_thread(room.serve)
    said = await in_thread(ada.messages, chat)
    answers = {message["run_id"]: message["content"] for message in said if message["role"] == "assistant"}
    assert answers[first] != answers[second]
    for run in (first, second):
        assert text_of(await caller.follow(run).frames()) == answers[run]


async def test_a_turn_cut_at_token_k_is_charged_k_plus_its_prompt_and_never_nothing(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    run = (await in_thread(ada.sent, chat, SLOW))["run"]["id"]
    exchange = caller.follow(run)
    room.begin_serving()
    await exchange.frames(until="delta")
    await in_thread(ada.post, f"/api/v1/runs/{run}/cancel")
    last = (await exchange.frames())[-1]
    await in_thread(room.finish_serving)
    told = await in_thread(run_of, ada, run)
    [entry] = await in_thread(lambda: list(UsageEntry.objects.all()))
    [answer, _] = await in_thread(ada.messages, chat)
    # A token of the tiny model is a byte.
    assert 1 <= len(answer["content"].encode()) <= told["usage"]["output"] < 2000
    assert last.data["usage"] == told["usage"]
    assert (entry.prompt_tokens, entry.output_tokens) == (told["usage"]["prompt"], told["usage"]["output"])
    assert entry.prompt_tokens > 0


def test_stop_racing_completion_settles_once(ada: Person, chat: str) -> None:
    run = ada.sent(chat)["run"]["id"]
    claim_by_hand(run)
    with ThreadPoolExecutor(2) as pool:
        ending = pool.submit(closing_connections(settle_by_hand), run)
        stopping = pool.submit(closing_connections(ada.post), f"/api/v1/runs/{run}/cancel")
        assert stopping.result(timeout=30).status_code in (200, 202)
        ending.result(timeout=30)
    assert run_of(ada, run)["status"] == "done"
    assert (UsageEntry.objects.count(), Message.objects.count()) == (1, 2)
    assert reservations(ada.user.id) == {}


def test_deleting_a_chat_does_not_reset_usage(ada: Person, chat: str, room: Room) -> None:
    ada.sent(chat, QUICK)
    room.serve()
    used = billing.used_tokens(user_id=ada.user.id)
    assert used > 40
    ada.delete(f"/api/v1/chats/{chat}")
    assert billing.used_tokens(user_id=ada.user.id) == used
    cell = store.connector().cell()
    counted: Any = cell.run(lambda client: client.hget(cell.keys.account(ada.user.id), "used"))
    assert int(counted) == used


# Stopping


async def test_stop_works_from_a_second_device_that_knows_only_the_chat(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    run = (await in_thread(ada.sent, chat, SLOW))["run"]["id"]
    room.begin_serving()
    await first_deltas(caller, run, 1)

    def stop_elsewhere() -> int:
        other = Person.again(ada)
        active = other.get(f"/api/v1/chats/{chat}").json()["active_run"]["id"]
        status: int = other.post(f"/api/v1/chats/{chat}/runs/{active}/cancel").status_code
        return status

    # 200 when the worker was quicker than the answer.
    assert await in_thread(stop_elsewhere) in (200, 202)
    await in_thread(room.finish_serving)
    assert (await in_thread(run_of, ada, run))["status"] == "cancelled"


async def test_after_stop_the_engines_running_count_falls_within_two_seconds(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    run = (await in_thread(ada.sent, chat, SLOW))["run"]["id"]
    room.begin_serving()
    await first_deltas(caller, run, 1)
    await in_thread(wait_for, lambda: room.running == 1, what="the engine reports the run")
    await in_thread(ada.post, f"/api/v1/runs/{run}/cancel")
    await in_thread(wait_for, lambda: room.running == 0, what="the engine let go", seconds=2)
    await in_thread(room.finish_serving)
    assert (await in_thread(run_of, ada, run))["timings"]["release_ms"] < 2000


async def test_stop_keeps_the_prompt_and_the_partial_answer_marked_as_stopped(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    run = (await in_thread(ada.sent, chat, SLOW))["run"]["id"]
    room.begin_serving()
    seen = text_of(await first_deltas(caller, run, 2))
    await in_thread(ada.post, f"/api/v1/runs/{run}/cancel")
    await in_thread(room.finish_serving)
    [answer, question] = await in_thread(ada.messages, chat)
    assert (question["content"], question["state"]) == (SLOW, "complete")
    assert answer["state"] == "stopped"
    assert answer["content"].startswith(seen)
    assert (await in_thread(run_of, ada, run))["message_id"] == answer["id"]


# Streams


async def test_what_was_missed_during_a_loss_of_transport_is_replayed_on_return(
    caller: Caller, ada: Person, chat: str, room: Room
) -> None:
    run = (await in_thread(ada.sent, chat, QUICK))["run"]["id"]
    room.begin_serving()
    before = await first_deltas(caller, run, 1)
    # The phone is locked; the answer goes on and ends.
    await in_thread(room.finish_serving)
    after = await caller.follow(run, after=before[-1].id).frames()
    assert after[-1].type == "completed"
    assert text_of(before) + text_of(after) == (await in_thread(ada.messages, chat))[0]["content"]


async def test_leaving_a_thread_never_ends_its_run(caller: Caller, ada: Person, chat: str, room: Room) -> None:
    run = (await in_thread(ada.sent, chat, QUICK))["run"]["id"]
    room.begin_serving()
    await first_deltas(caller, run, 1)
    await in_thread(ada.get, f"/api/v1/chats/{await in_thread(ada.new_chat)}/messages")
    await in_thread(room.finish_serving)
    assert (await in_thread(run_of, ada, run))["status"] == "done"


async def test_sent_bytes_grow_linearly_with_tokens(caller: Caller, ada: Person, room: Room) -> None:
    async def sent_for(tokens: int) -> int:
        chat = await in_thread(ada.new_chat)
        question = f"Hi [[tps=20000 tokens={tokens} prefill_ms=0]]"
        run = (await in_thread(ada.sent, chat, question))["run"]["id"]
        await in_thread(room.serve)
        frames = await caller.follow(run).frames()
        return sum(len(frame.raw) for frame in frames if frame.type == "delta")

    # At most a frame a token, and no frame repeats what an earlier one said.
    assert await sent_for(800) <= 800 * 60


async def test_followers_are_cleaned_up(caller: Caller, ada: Person, chat: str, room: Room, hub: StreamHub) -> None:
    over = (await in_thread(ada.sent, chat, QUICK))["run"]["id"]
    await in_thread(room.serve)
    waiting = (await in_thread(ada.sent, chat, QUICK, turn="t2"))["run"]["id"]

    async def visits(count: int) -> None:
        for number in range(count):
            await caller.follow(over).frames()
            leaving = caller.follow(waiting if number % 2 else over)
            await leaving.frame()
            leaving.hang_up()
            await leaving.finished()

    await visits(5)
    tasks, objects = len(asyncio.all_tasks()), _count_objects()
    await visits(60)
    assert len(asyncio.all_tasks()) <= tasks
    assert hub.subscriber.channel_count == 0
    assert _count_objects() - objects < 60


def _count_objects() -> int:
    """Objects of the streaming code that are alive."""
    gc.collect()
    modules = ("conversations.sse", "conversations.event_consumer", "inference.cell.hub", "inference.cell.subscriber")
    return sum(type(found).__module__ in modules for found in gc.get_objects())


# Context


def test_context_length_errors_never_reach_the_user_however_long_a_chat_gets(
    ada: Person, chat: str, room: Room
) -> None:
    ModelPool.objects.update(context_window=1200, max_output_tokens=400)
    for number in range(12):
        content = f"{number} " + "word " * 60 + "[[tps=20000 tokens=350 prefill_ms=0]]"
        run = ada.sent(chat, content, turn=str(number))["run"]["id"]
        room.serve()
        told = run_of(ada, run)
        assert (told["status"], told["usage"]["output"]) == ("done", 350)
        assert told["usage"]["prompt"] + 400 <= 1200
    assert told["context"]["trimmed"]
    assert told["context"]["last_seq"] == 23
    assert [notice["code"] for notice in told["notices"]] == ["context_trimmed"]
