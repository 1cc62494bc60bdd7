"""The main job on real parts: ask, and the real model answers; drop, resume, repeat, cancel."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client import Api, text_of
from tests.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CAPITAL = "What is the capital of Italy?"
STORY = "Write a very long story about a lighthouse keeper, in many chapters."


def idle(api: Api) -> bool:
    return api.gauge("chatsite_pool_running") == 0 and api.gauge("chatsite_pool_waiting") == 0


@pytest.fixture
def at_rest(api: Api, stack: Stack) -> None:
    """The engine is idle, and stays so by itself: the titles of the chats so far, which it makes as well, are made."""
    command = "from conversations.models import Job; print(Job.objects.count())"
    wait_for(
        lambda: int(stack.manage("shell", "--verbosity=0", "--command", command)) == 0 and idle(api),
        what="no job is left and the engine is idle",
        seconds=60,
    )


def test_a_streamed_question_is_answered_by_the_real_model(api: Api) -> None:
    chat = api.new_chat()
    events = list(api.stream(chat, CAPITAL))
    kinds = [event.type for event in events]
    assert kinds[0] == "run"
    assert [kind for kind, _ in itertools.groupby(kinds[1:]) if kind != "queued"] == ["started", "delta", "completed"]
    answer, question = api.messages(chat)
    assert question["content"] == CAPITAL
    assert answer["content"] == text_of(events)
    assert "Rome" in answer["content"]
    assert (answer["role"], answer["state"], answer["run_id"]) == ("assistant", "complete", events[0].data["run"]["id"])
    done = events[-1].data
    assert done["message_id"] == answer["id"]
    assert done["finish_reason"] == "stop"
    assert done["usage"]["output"] > 0
    assert done["timings"]["ttft_ms"] >= done["timings"]["queue_ms"] >= 0


def test_a_follow_up_carries_the_first_turn(api: Api) -> None:
    chat = api.new_chat()
    first, _ = api.ask(chat, CAPITAL)
    second, _ = api.ask(chat, "And of France?")
    assert (first["context"]["first_seq"], first["context"]["last_seq"]) == (1, 1)
    assert (second["context"]["first_seq"], second["context"]["last_seq"]) == (1, 3)
    assert not second["context"]["trimmed"]
    assert second["usage"]["prompt"] > first["usage"]["prompt"] + first["usage"]["output"]


def test_a_dropped_connection_ends_nothing_and_resumes_without_a_gap(api: Api) -> None:
    chat = api.new_chat()
    seen = []
    for event in api.stream(chat, STORY, max_output_tokens=120):
        seen.append(event)
        if sum(event.type == "delta" for event in seen) == 5:
            break
    run = seen[0].data["run"]["id"]
    rest = list(api.follow(run, after=seen[-1].id))
    assert rest[-1].type == "completed"
    assert api.messages(chat)[0]["content"] == text_of(seen + rest)
    ids = [event.id for event in (seen + rest)[1:]]
    assert len(ids) == len(set(ids))
    assert api.http.get(f"/api/v1/runs/{run}/events", params={"after": ids[-1]}).status_code == 204


@pytest.mark.usefixtures("at_rest")
def test_cancelling_a_streaming_answer_frees_the_engine_within_two_seconds(api: Api) -> None:
    chat = api.new_chat()
    run = api.send(chat, STORY)["run"]["id"]
    follower = api.follow(run)
    next(event for event in follower if event.type == "delta")
    wait_for(lambda: api.gauge("chatsite_pool_running") == 1, what="the engine reports it running")
    api.post(f"/api/v1/runs/{run}/cancel")
    took = wait_for(lambda: idle(api), what="the engine is idle", seconds=10)
    assert took < 2
    assert list(follower)[-1].type == "cancelled"
    ended = api.get(f"/api/v1/runs/{run}")
    assert ended["status"] == "cancelled"
    assert ended["timings"]["release_ms"] < 2000
    assert ended["usage"]["output"] > 0
    answer = api.messages(chat)[0]
    assert (answer["state"], bool(answer["content"])) == ("stopped", True)


@pytest.mark.usefixtures("at_rest")
def test_cancelling_the_prefill_of_a_long_prompt_frees_the_engine_within_two_seconds(api: Api) -> None:
    chat = api.new_chat()
    # Different words, so that no prefix cache knows them: about 3,000 tokens.
    prompt = " ".join(f"item {number} of {time.monotonic_ns() % 997}" for number in range(380))
    sent = api.send(chat, prompt)["run"]
    assert sent["usage"]["prompt"] >= 3000
    wait_for(lambda: api.gauge("chatsite_pool_running") == 1, what="the prefill has begun")
    api.post(f"/api/v1/chats/{chat}/runs/{sent['id']}/cancel")
    took = wait_for(lambda: idle(api), what="the engine is idle", seconds=10)
    assert took < 2
    wait_for(lambda: api.get(f"/api/v1/runs/{sent['id']}")["status"] == "cancelled", what="cancelled", seconds=5)
    ended = api.get(f"/api/v1/runs/{sent['id']}")
    assert ended["timings"]["release_ms"] < 2000
    assert ended["usage"]["output"] == 0
    assert api.messages(chat)[0]["state"] == "stopped"


def test_a_repeated_turn_is_one_run_and_another_content_conflicts(api: Api) -> None:
    chat = api.new_chat()
    first = api.send(chat, CAPITAL, turn="t1")
    again = api.http.post(f"/api/v1/chats/{chat}/messages", json={"content": CAPITAL, "client_turn_id": "t1"})
    assert again.status_code == 200
    assert again.json()["run"]["id"] == first["run"]["id"]
    for other in ({"content": "Another"}, {"content": CAPITAL, "pool": "default"}):
        refused = api.http.post(f"/api/v1/chats/{chat}/messages", json={"client_turn_id": "t1", **other})
        assert refused.status_code == 409
    list(api.follow(first["run"]["id"]))
    assert len(api.messages(chat)) == 2


def test_a_second_send_into_a_busy_chat_names_the_active_run(api: Api) -> None:
    chat = api.new_chat()
    run = api.send(chat, STORY, max_output_tokens=60)["run"]["id"]
    refused = api.http.post(f"/api/v1/chats/{chat}/messages", json={"content": "More", "client_turn_id": "t2"})
    assert (refused.status_code, refused.json()["code"], refused.json()["run_id"]) == (409, "chat_busy", run)
    assert api.get(f"/api/v1/chats/{chat}")["active_run"]["id"] == run
    list(api.follow(run))
    assert api.get(f"/api/v1/chats/{chat}")["active_run"] is None


def test_many_streams_share_one_batch_and_each_gets_its_own_answer(api: Api) -> None:
    running: list[float] = []

    def ask(number: int) -> tuple[str, str]:
        chat = api.new_chat()
        events = []
        for event in api.stream(chat, f"Count upwards from {number}.", max_output_tokens=40):
            events.append(event)
            if event.id == "1-10":
                running.append(api.gauge("chatsite_pool_running"))
        assert events[-1].type == "completed"
        return text_of(events), api.messages(chat)[0]["content"]

    with ThreadPoolExecutor(max_workers=12) as pool:
        for shown, stored in pool.map(ask, range(100, 112)):
            assert shown == stored
            assert shown
    assert max(running) > 4


def charged(api: Api) -> dict[str, int]:
    """Today's tokens of the user, from the ledger."""
    tokens: dict[str, int] = api.get("/api/v1/usage")["today"]["tokens"]
    return tokens


def stopped_after_some_text(api: Api) -> str:
    """The run of an answer that its reader stopped."""
    run: str = api.send(api.new_chat(), STORY)["run"]["id"]
    follower = api.follow(run)
    next(event for event in follower if event.type == "delta")
    api.post(f"/api/v1/runs/{run}/cancel")
    assert list(follower)[-1].type == "cancelled"
    return run


def ledger_output(stack: Stack) -> int:
    """Output tokens of all rows of the ledger: those of titles as well, which the system pays for."""
    command = "from django.db.models import Sum; from billing.models import UsageEntry; "
    command += "print(UsageEntry.objects.aggregate(n=Sum('output_tokens', default=0))['n'])"
    return int(stack.manage("shell", "--verbosity=0", "--command", command))


def test_the_ledger_charges_what_the_engine_reports_over_answers_done_stopped_and_retried(
    api: Api, stack: Stack
) -> None:
    before = charged(api)
    done = [api.ask(api.new_chat(), f"Count upwards from {number}.", max_output_tokens=20)[0] for number in range(3)]
    stopped, retried = stopped_after_some_text(api), stopped_after_some_text(api)
    first_try = api.get(f"/api/v1/runs/{retried}")
    api.post(f"/api/v1/runs/{retried}/retry")
    next(event for event in api.follow(retried) if event.type == "delta" and (event.id or "").startswith("2-"))
    api.post(f"/api/v1/runs/{retried}/cancel")
    wait_for(lambda: api.get(f"/api/v1/runs/{retried}")["status"] == "cancelled", what="the second try is stopped")
    used = {kind: tokens - before[kind] for kind, tokens in charged(api).items()}
    runs = [api.get(f"/api/v1/runs/{run}") for run in [*(one["id"] for one in done), stopped, retried]]
    assert used["output"] == sum(run["usage"]["output"] for run in [*runs, first_try]) > 0
    assert used["prompt"] == sum(run["usage"]["prompt"] for run in [*runs, first_try])
    assert used["wasted"] == 0
    assert used["prompt"] + used["output"] == sum(run["charged"] for run in runs)
    # The engine's own count comes with its worker's next heartbeat. Since its start, it is all that was ever made here.
    wait_for(
        lambda: idle(api) and api.gauge("chatsite_pool_output_tokens") == ledger_output(stack),
        what="the engine reports as many tokens as are in the ledger",
        seconds=60,
    )
    assert api.get("/api/v1/usage")["standing"]["concurrent_runs"]["used"] == 0
