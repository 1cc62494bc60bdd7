"""Suspending a user on the running site: the answer under way stops, its stream closes, nothing lets them in."""

import contextlib
import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.client import Api, Event
from tests.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.engine

# The scripted engine reads the brackets; the real one takes them for a part of the question.
LONG = "Write a very long story about a lighthouse keeper, in many chapters. [[tokens=900 tps=40]]"
STOPPED_WITHIN_S = 2.0


@contextlib.contextmanager
def administrator(stack: Stack) -> Iterator[httpx.Client]:
    """A browser that an administrator logged in with."""
    email = f"root-{uuid4().hex[:12]}@example.com"
    password = stack.manage("create_admin", email).split()[-1]
    with httpx.Client(base_url=stack.url, timeout=30) as browser:
        browser.get("/login/").raise_for_status()
        post(browser, "/login/", {"login": email, "password": password})
        yield browser


def post(browser: httpx.Client, path: str, form: dict[str, str]) -> None:
    response = browser.post(path, data=form, headers={"X-CSRFToken": browser.cookies["csrftoken"]})
    assert response.status_code == 302, response.text


def test_a_running_answer_stops_and_its_stream_closes_within_two_seconds(stack: Stack) -> None:
    key = stack.manage("create_api_key", f"nuisance-{uuid4().hex[:12]}@example.com")
    seen: list[Event] = []
    closed = threading.Event()

    with administrator(stack) as browser, Api(url=stack.url, key=key) as api:
        user_id = str(api.get("/api/v1/me")["id"])
        run = str(api.send(api.new_chat(), LONG)["run"]["id"])

        def follow() -> None:
            for event in api.follow(run):
                seen.append(event)  # noqa: PERF402 - one by one, as they arrive
            closed.set()

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        wait_for(lambda: any(event.type == "delta" for event in seen), what="the answer begins", seconds=60)

        began = time.monotonic()
        post(browser, "/admin/accounts/user/", {"action": "suspend", "_selected_action": user_id, "confirmed": "yes"})
        assert closed.wait(STOPPED_WITHIN_S), "the stream is still open"
        assert time.monotonic() - began < STOPPED_WITHIN_S
        reader.join()
        assert seen[-1].type == "cancelled"
        assert api.http.get("/api/v1/me").status_code == 401
        assert api.http.get(f"/api/v1/runs/{run}/events").status_code == 401
