"""A whole site with the scripted engine loses a worker, all workers, its Redis, or itself: nobody's answer is lost."""

import os
import signal
import time
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests import services
from tests.client import Api
from tests.recovery import Answer, Readers, Row, all_on_one_worker, ledgers, stopped, wait_for_workers
from tests.services import Valkey
from tests.stack import Stack, running
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

QUESTIONS = [f"Number {number} [[tps=20 tokens=160]]" for number in range(4)]


@pytest.fixture(scope="module")
def redis_of_its_own() -> Iterator[Valkey]:
    with services.valkey() as server:
        yield server


@pytest.fixture(scope="module")
def site(redis_of_its_own: Valkey) -> Iterator[Stack]:
    environment = {"WORKERS": "2", "REDIS_URL": redis_of_its_own.url}
    with running(engine="scripted", environment=environment) as stack:
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


def is_whole(api: Api, answer: Answer, rows: list[Row], *, reason: str) -> None:
    """The second epoch went on where the first ended, and the answer is charged once."""
    done = answer.events[-1]
    assert done.type == "completed"
    assert answer.epochs == [(1, None, None), (2, reason, True)]
    assert api.messages(answer.chat)[0]["content"] == answer.text
    assert done.data["usage"]["output"] == 160
    first, last = rows
    assert (first[:3], last[:3]) == ((1, "lost", 0), (2, "completed", done.data["usage"]["prompt"]))
    assert first[3] + last[3] == 160
    between = (answer.first_text_at(epoch=1) + answer.first_text_at(epoch=2)) / 2
    assert done.data["timings"]["ttft_ms"] < (between - answer.asked_at) * 1000, "of the first epoch's first text"


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "worker_lost"), (signal.SIGTERM, "drained"), (signal.SIGQUIT, "drained")],
)
def test_the_answers_of_a_worker_that_ends_go_on_elsewhere(
    site: Stack, api: Api, readers: Readers, number: signal.Signals, reason: str
) -> None:
    pid, answers = all_on_one_worker(site, api, readers, QUESTIONS, max_output_tokens=500)
    os.kill(pid, number)
    told_at = time.monotonic()
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), what="the worker is gone", seconds=30)
    assert time.monotonic() - told_at < 5
    readers.finish()
    for answer, rows in zip(answers, ledgers(site, answers), strict=True):
        is_whole(api, answer, rows, reason=reason)


def test_a_worker_that_was_stopped_for_a_while_publishes_nothing_afterwards_and_serves_again(
    site: Stack, api: Api, readers: Readers
) -> None:
    pid, answers = all_on_one_worker(site, api, readers, QUESTIONS, max_output_tokens=500)
    with stopped(pid):
        readers.until(lambda: all(len(answer.epochs) == 2 for answer in answers), what="others go on")
    readers.finish()
    for answer, rows in zip(answers, ledgers(site, answers), strict=True):
        is_whole(api, answer, rows, reason="worker_lost")
    assert site.pid_of("worker") == pid, "it recovers"
    other = site.pid_of("worker-2")
    assert other is not None
    wait_for_workers(api, 2)
    with stopped(other):
        wait_for_workers(api, 1)
        assert api.ask(api.new_chat(), "Still there? [[tokens=5]]")[0]["status"] == "done"


def test_a_worker_whose_engine_hangs_is_replaced_and_its_answers_go_on_elsewhere(
    site: Stack, api: Api, readers: Readers
) -> None:
    change = "from inference.models import ModelPool; ModelPool.objects.update(stall_s=2)"
    site.manage("shell", "--verbosity=0", "--command", change)
    for name in ("worker", "worker-2"):
        before = site.pid_of(name)
        assert before is not None
        os.kill(before, signal.SIGTERM)
        wait_for(lambda: site.pid_of(name) not in (None, before), what="a worker that has read it", seconds=60)  # noqa: B023
    wait_for_workers(api, 2)
    pids = {site.pid_of("worker"), site.pid_of("worker-2")}
    [hanging] = readers.ask("Hang [[stall_after=60 tps=20 tokens=160]]", max_output_tokens=500)
    readers.ask(*QUESTIONS, max_output_tokens=500)
    readers.finish()
    [rows] = ledgers(site, [hanging])
    is_whole(api, hanging, rows, reason="worker_lost")
    assert {answer.events[-1].type for answer in readers.answers} == {"completed"}
    wait_for_workers(api, 2)
    assert len(pids & {site.pid_of("worker"), site.pid_of("worker-2")}) == 1


def send(api: Api, chat: str) -> httpx.Response:
    body = {"content": "Hello [[tokens=5]]", "client_turn_id": str(uuid4())}
    return api.http.post(f"/api/v1/chats/{chat}/messages", json=body)


def refuses_sends_and_serves_the_rest(api: Api, chat: str) -> None:
    messages = api.messages(chat)
    refused = send(api, chat)
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert api.messages(chat) == messages, "nothing is half-stored"
    assert api.get(f"/api/v1/chats/{chat}")["active_run"] is None
    assert httpx.get(f"{api.http.base_url}/login/").status_code == 200
    assert api.http.get("/readyz").status_code == 503


def answers_again(api: Api, chat: str) -> None:
    wait_for(lambda: send(api, chat).status_code == 202, what="a send is accepted", seconds=30)
    wait_for(lambda: api.messages(chat)[0]["state"] == "complete", what="it is answered", seconds=30)


def test_without_workers_reads_work_sends_are_refused_and_all_recovers(site: Stack, api: Api) -> None:
    chat = api.new_chat()
    api.ask(chat, "Hello [[tokens=5]]")
    pids = [pid for pid in map(site.pid_of, ("worker", "worker-2")) if pid]
    with stopped(pids[0]), stopped(pids[1]):
        wait_for_workers(api, 0)
        refuses_sends_and_serves_the_rest(api, chat)
    answers_again(api, chat)


def test_without_redis_reads_work_sends_are_refused_answers_go_on_and_all_recovers(
    site: Stack, api: Api, readers: Readers, redis_of_its_own: Valkey
) -> None:
    chat = api.new_chat()
    api.ask(chat, "Hello [[tokens=5]]")
    [answer] = readers.ask("Meanwhile [[tps=20 tokens=100]]", max_output_tokens=500)
    redis_of_its_own.kill()
    refuses_sends_and_serves_the_rest(api, chat)
    redis_of_its_own.start()
    answers_again(api, chat)
    readers.finish()
    assert answer.events[-1].type in ("completed", "reset_required")
    [message] = [one for one in api.messages(answer.chat) if one["role"] == "assistant"]
    run = api.get(f"/api/v1/runs/{answer.events[0].data['run']['id']}")
    assert (message["state"], run["status"], run["usage"]["output"]) == ("complete", "done", 100)
    # By one worker or, where it did not find the new Redis in time, by two: each token is charged once.
    [rows] = ledgers(site, [answer])
    assert [row[1] for row in rows if row[1] != "lost"] == ["completed"]
    assert sum(row[2] for row in rows) == run["usage"]["prompt"]
    assert sum(row[3] for row in rows) == 100


def test_an_answer_goes_on_after_a_restart_of_the_whole_site(site: Stack, key: str, readers: Readers) -> None:
    [answer] = readers.ask("Across [[tps=20 tokens=200]]", max_output_tokens=500)
    run = answer.events[0].data["run"]["id"]
    began = time.monotonic()
    site.stop()
    assert time.monotonic() - began < 15
    site.start()
    with Api(url=site.url, key=key) as api:
        wait_for(lambda: api.get(f"/api/v1/runs/{run}")["status"] == "done", what="it is done", seconds=60)
        ended = api.get(f"/api/v1/runs/{run}")
        assert (ended["epoch"], ended["usage"]["output"]) == (2, 200)
        whole = list(api.follow(run))
        assert [event.data.get("reason") for event in whole if event.type == "started"][-1] == "drained"
        assert api.messages(answer.chat)[0]["content"].startswith(answer.text)
