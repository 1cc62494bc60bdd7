"""Bad inputs where an answer would be a stream: the layer above Django falls over as little as Django does."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from conversations.event_consumer import Scope
from conversations.tests.support import Exchange, Person, settle_by_hand
from tests.walk import inputs
from tests.walk.inputs import Input

pytestmark = pytest.mark.django_db(transaction=True)

REPEAT = json.dumps({"content": "Hello", "client_turn_id": "t1"}).encode()


@pytest.fixture
def over(ada: Person) -> tuple[str, str]:
    """A chat and its run, which is over: its stream ends by itself."""
    chat = ada.new_chat()
    run = str(ada.sent(chat)["run"]["id"])
    settle_by_hand(run)
    return chat, run


async def answered(application: Any, person: Person, method: str, path: str, given: Input) -> Exchange:
    offered = dict(given.headers)
    own = {b"host": b"testserver", b"authorization": f"Bearer {person.key}".encode()}
    if method == "POST":
        own |= {b"accept": b"text/event-stream", b"content-type": b"application/json"}
    body = given.body if given.why.startswith(("body", "field")) or method == "GET" else REPEAT
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": given.query,
        "headers": [*((name, value) for name, value in own.items() if name not in offered), *given.headers],
        "client": ("127.0.0.1", 50_000),
        "server": ("testserver", 80),
    }
    exchange = Exchange(body=body)
    await asyncio.wait_for(application(scope, exchange.receive, exchange.send), timeout=20)
    return exchange


async def walk(application: Any, person: Person, method: str, path: str, given: Iterable[Input]) -> set[str]:
    """The content types of the answers. Fails where one is 5xx, hangs, or is a refusal but no problem document."""
    kinds, wrong = set(), []
    for one in given:
        exchange = await answered(application, person, method, path, one)
        kind = exchange.headers.get("content-type", "").partition(";")[0]
        if exchange.status >= 500 or (exchange.status >= 400) != (kind == "application/problem+json"):
            wrong.append(f"{one.why}: {exchange.status} {kind}")
        kinds.add(kind)
    assert wrong == []
    return kinds


async def test_following_takes_any_input(streams: Any, ada: Person, over: tuple[str, str]) -> None:
    given = [*inputs.general(), *inputs.fields_as_query(("after",))]
    kinds = await walk(streams, ada, "GET", f"/api/v1/runs/{over[1]}/events", given)
    assert {"text/event-stream", "application/problem+json"} <= kinds


async def test_sending_takes_any_input(streams: Any, ada: Person, over: tuple[str, str]) -> None:
    # Of the turn that is over: a new one would stream for as long as nobody answers it.
    good = {"content": "Hello", "client_turn_id": "t1"}
    fields = [one for one in inputs.fields_as_json(good) if one.why.startswith("field: content")]
    given = [*inputs.general(), *inputs.bodies(), *fields]
    kinds = await walk(streams, ada, "POST", f"/api/v1/chats/{over[0]}/messages", given)
    assert {"text/event-stream", "application/problem+json"} <= kinds


@pytest.mark.parametrize("bad", ["abc", "\0", "a\0b", "\ufffd", "é", "0" * 5_000, "", "..", "%"])
async def test_ids_that_are_none_answer_404(streams: Any, ada: Person, bad: str) -> None:
    for method, path in (("GET", f"/api/v1/runs/{bad}/events"), ("POST", f"/api/v1/chats/{bad}/messages")):
        exchange = await answered(streams, ada, method, path, inputs.PLAIN)
        assert (exchange.status, exchange.headers["content-type"]) == (404, "application/problem+json")
