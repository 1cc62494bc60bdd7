"""A worker with the real engine is killed or told to stop while it streams: another goes on with its answers."""

import os
import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from tests.client import Api
from tests.recovery import Answer, Readers, Row, all_on_one_worker, ledgers, wait_for_workers
from tests.stack import Stack, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUESTIONS = [f"Write a long story about a lighthouse keeper and {number} ships." for number in range(8)]
TOKENS = 200


@pytest.fixture(scope="module")
def site() -> Iterator[Stack]:
    with running(engine="vllm", environment={"WORKERS": "2"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def key(site: Stack) -> str:
    return site.manage("create_api_key", "somebody@example.com")


@pytest.fixture
def api(site: Stack, key: str) -> Iterator[Api]:
    with Api(url=site.url, key=key) as client:
        wait_for_workers(client, 2)
        yield client


@pytest.fixture
def readers(site: Stack, key: str) -> Iterator[Readers]:
    found = Readers(url=site.url, key=key)
    yield found
    found.close()


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def is_whole(api: Api, answer: Answer, rows: list[Row], *, reason: str) -> None:
    """Nothing is missing, nothing repeated, and it is charged once."""
    done = answer.events[-1]
    assert done.type == "completed"
    assert answer.epochs == [(1, None, None), (2, reason, True)]
    assert api.messages(answer.chat)[0]["content"] == answer.text
    ids = [event.id for event in answer.events[1:]]
    assert len(set(ids)) == len(ids)
    first, last = rows
    usage = done.data["usage"]
    assert (first[:3], last[:3]) == ((1, "lost", 0), (2, "completed", usage["prompt"]))
    assert first[3] + last[3] == usage["output"]
    assert first[3] > 0


def test_eight_answers_of_a_killed_worker_are_finished_by_the_other(site: Stack, api: Api, readers: Readers) -> None:
    doomed, answers = all_on_one_worker(site, api, readers, QUESTIONS, max_output_tokens=TOKENS)
    os.kill(doomed, signal.SIGKILL)
    killed_at = time.monotonic()
    readers.finish()
    pauses = sorted(answer.pause_s(since=killed_at) for answer in answers)
    print(f"pauses after kill -9 (s): {', '.join(f'{pause:.2f}' for pause in pauses)}")
    for answer, rows in zip(answers, ledgers(site, answers), strict=True):
        is_whole(api, answer, rows, reason="worker_lost")
    assert statistics.median(pauses) <= 3.0


def test_a_worker_that_is_told_to_stop_is_gone_within_five_seconds_and_its_answers_go_on(
    site: Stack, api: Api, readers: Readers
) -> None:
    leaving, answers = all_on_one_worker(site, api, readers, QUESTIONS, max_output_tokens=TOKENS)
    group = os.getpgid(leaving)
    os.kill(leaving, signal.SIGTERM)
    told_at = time.monotonic()
    wait_for(lambda: gone(leaving), what="the worker is gone", seconds=30)
    took = time.monotonic() - told_at
    readers.finish()
    pauses = sorted(answer.pause_s(since=told_at) for answer in answers)
    print(f"gone after {took:.2f} s; pauses after SIGTERM (s): {', '.join(f'{pause:.2f}' for pause in pauses)}")
    assert took < 5
    for answer, rows in zip(answers, ledgers(site, answers), strict=True):
        is_whole(api, answer, rows, reason="drained")
    assert group == leaving
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def test_both_are_replaced_and_the_site_answers_as_before(site: Stack, api: Api) -> None:
    run, text = api.ask(api.new_chat(), "What is the capital of Italy?")
    assert (run["status"], bool(text)) == ("done", True)
