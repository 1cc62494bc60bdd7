"""A whole site whose plan stops answers that nobody follows: one is stopped, one whose reader came back is not."""

import itertools
import time
from collections.abc import Iterator

import pytest

from inference.worker.audience import GRACE_S
from tests.client import Api, Event, text_of
from tests.stack import Stack, running
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

# Longer than the grace, with time to spare.
LONG = "Go on [[tps=20 tokens=900]]"


@pytest.fixture(scope="module")
def site() -> Iterator[Stack]:
    with running(engine="scripted") as stack:
        change = "from billing.models import Plan; Plan.objects.update(unwatched='stop', unwatched_s=1)"
        stack.manage("shell", "--verbosity=0", "--command", change)
        yield stack


@pytest.fixture
def api(site: Stack) -> Iterator[Api]:
    with Api(url=site.url, key=site.manage("create_api_key", "somebody@example.com")) as client:
        yield client


def some_of(events: Iterator[Event], count: int) -> list[Event]:
    """The first events of a stream, whose connection is then closed."""
    found = list(itertools.islice(events, count))
    events.close()  # type: ignore[attr-defined] # a generator
    return found


def test_an_answer_is_stopped_once_its_reader_is_gone_for_good_and_kept_whole_for_one_who_is_back(api: Api) -> None:
    left, watched = api.new_chat(), api.new_chat()
    gone = some_of(api.stream(left, LONG), 5)
    seen = some_of(api.stream(watched, LONG), 5)
    wait_for(lambda: api.gauge("chatsite_pool_running") == 2, what="both are being answered")
    left_at = time.monotonic()
    run = gone[0].data["run"]["id"]

    # Most of the grace passes before the second reader is back.
    wait_for(lambda: time.monotonic() - left_at > GRACE_S / 2, what="a while", seconds=GRACE_S)
    back = api.follow(seen[0].data["run"]["id"], after=seen[-1].id)
    seen.append(next(back))

    # Asking for the run is not following it.
    wait_for(lambda: api.get(f"/api/v1/runs/{run}")["status"] == "cancelled", what="it is stopped", seconds=2 * GRACE_S)
    assert GRACE_S - 2 < time.monotonic() - left_at < GRACE_S + 10
    wait_for(lambda: api.gauge("chatsite_pool_running") == 1, what="the engine has let go", seconds=2)
    ended = api.get(f"/api/v1/runs/{run}")
    assert ended["error_code"] == "unwatched"
    [answer, question] = api.messages(left)
    assert (answer["state"], answer["code"], question["code"]) == ("stopped", "unwatched", "")
    assert answer["content"]
    assert 0 < ended["usage"]["output"] < 900
    events = list(api.follow(run))
    assert (events[-1].type, events[-1].data["code"]) == ("cancelled", "unwatched")
    assert text_of(events) == answer["content"]
    [day] = api.get("/api/v1/usage/daily")["results"]
    assert day["tokens"]["output"] == ended["usage"]["output"], "what was made is charged"

    seen += back
    assert seen[-1].type == "completed"
    assert (seen[-1].data["usage"]["output"], text_of(seen)) == (900, api.messages(watched)[0]["content"])

    assert api.post(f"/api/v1/runs/{run}/retry")["epoch"] == 2, "it can be asked for again"
    api.post(f"/api/v1/runs/{run}/cancel")
