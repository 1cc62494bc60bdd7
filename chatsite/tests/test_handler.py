"""Requests through the ASGI application: those that Django cannot even construct, and how often one changes threads."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from asgiref.testing import ApplicationCommunicator
from django.apps import apps
from django.core.handlers.asgi import ASGIHandler
from django.http import StreamingHttpResponse
from django.utils import timezone

from chatsite.accounts import accounts, keys
from chatsite.asgi import application
from chatsite.handler import Handler


async def answer(
    path: str,
    *,
    method: str = "GET",
    query: bytes = b"",
    headers: dict[bytes, bytes] | None = None,
    body: bytes = b"{}",
    application: Any = application,
) -> tuple[int, str, bytes]:
    """Status, content type and body of one request, headers and query string passed on as bytes."""
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(b"host", b"testserver"), *(headers or {}).items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8000),
    }
    exchange: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]
    await exchange.send_input({"type": "http.request", "body": body})
    start = await exchange.receive_output(timeout=5)
    received = b""
    more = True
    while more:
        event = await exchange.receive_output(timeout=5)
        received += event["body"]
        more = event.get("more_body", False)
    await exchange.wait(timeout=5)
    types = [value.decode() for name, value in start["headers"] if name.lower() == b"content-type"]
    return start["status"], types[0], received


@pytest.fixture
def ada_key(transactional_db: None) -> str:
    """The key of a user whose chats the default pool answers."""
    ModelPool = apps.get_model("inference", "ModelPool")
    ModelPool.objects.get_or_create(slug="default", defaults={"name": "Default", "is_default": True})
    apps.get_model("billing", "Plan").objects.get_or_create(slug="free", defaults={"name": "Free", "is_default": True})
    user = accounts.open_account(email="ada@example.org", password=None)
    return keys.create(user=user, name="", now=timezone.now()).secret


async def test_the_application_serves_pages_and_problems() -> None:
    assert await answer("/healthz") == (200, "application/json", b'{"status": "ok"}')
    assert (await answer("/api/v1/nothing"))[:2] == (404, "application/problem+json")


@pytest.mark.parametrize("charset", [b"rot13", b"hex", b"undefined", b"utf-16", b"nonsense", b"\xff", b""])
@pytest.mark.parametrize("query", [b"", b"after=%ff", b"x" + b"&x" * 1_001])
async def test_a_charset_that_decodes_no_text_is_ignored(charset: bytes, query: bytes) -> None:
    headers = {b"content-type": b"application/json; charset=" + charset}
    status, content_type, _ = await answer("/api/v1/nothing", method="POST", query=query, headers=headers)
    assert (status, content_type) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("query", "content_type"),
    [(b"after=\xff\xfe", b"application/json"), (b"", b"application/json; title*=bogus'en'x")],
)
async def test_a_request_that_cannot_be_constructed_is_400(query: bytes, content_type: bytes) -> None:
    headers = {b"content-type": content_type}
    status, kind, body = await answer("/api/v1/chats", query=query, headers=headers)
    assert (status, kind) == (400, "application/problem+json"), body
    status, kind, body = await answer("/login/", query=query, headers=headers)
    assert (status, kind.partition(";")[0]) == (400, "text/html"), body


async def events_of(handler: Handler, *, path: str, query: bytes = b"") -> list[Any]:
    """What the handler sends in answer to a request."""
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    await handler.handle(_scope(path, query=query), _no_body, send)
    return sent


def _scope(path: str, *, query: bytes = b"") -> dict[str, Any]:
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "server": ("127.0.0.1", 8000)}
    return {**scope, "headers": [(b"host", b"testserver")], "client": ("127.0.0.1", 50_000)}


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b""}


@pytest.mark.parametrize("path", ["/api/v1/chats", "/login/"])
async def test_a_request_that_cannot_be_constructed_has_an_id_a_policy_and_a_line_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="chatsite.middleware")
    start, body = await events_of(Handler(), path=path, query=b"after=\xff\xfe")
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    assert start["status"] == 400
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-request-id"]
    if path.startswith("/api/"):
        assert json.loads(body["body"])["request_id"] == headers["x-request-id"]
    lines: list[Any] = [record.msg for record in caplog.records if record.name == "chatsite.middleware"]
    assert [(one["status"], one["request_id"]) for one in lines] == [(400, headers["x-request-id"])]


@pytest.mark.parametrize("ends", [ConnectionError, asyncio.CancelledError])
async def test_a_streaming_response_is_closed_however_its_sending_ends(
    ends: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"part"

    async def send(event: Any) -> None:
        raise ends

    closed = []
    response = StreamingHttpResponse(parts())
    monkeypatch.setattr(response, "close", lambda: closed.append(True))
    handler = Handler()
    monkeypatch.setattr(handler, "get_response", lambda request: response)
    with pytest.raises(ends):
        await handler.handle(_scope("/healthz"), _no_body, send)
    assert closed == [True]


async def test_what_a_view_streams_is_sent_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    sent: list[tuple[bytes, list[object]]] = []

    def parts() -> Iterator[bytes]:
        try:
            for number in range(3):
                made.append(number)
                yield b"%d" % number
        finally:
            made.append("closed")

    async def send(event: Any) -> None:
        if event.get("body"):
            sent.append((event["body"], list(made)))

    response = StreamingHttpResponse(parts())
    handler = Handler()
    monkeypatch.setattr(handler, "get_response", lambda request: response)
    await handler.handle(_scope("/healthz"), _no_body, send)
    assert sent == [(b"0", [0]), (b"1", [0, 1]), (b"2", [0, 1, 2])]
    assert made == [0, 1, 2, "closed"]


async def test_what_a_view_streams_is_made_no_further_once_its_reader_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def parts() -> Iterator[bytes]:
        try:
            while True:
                made.append("piece")
                yield b"piece"
        finally:
            made.append("closed")

    async def send(event: Any) -> None:
        if event.get("body"):
            raise ConnectionError

    response = StreamingHttpResponse(parts())
    handler = Handler()
    monkeypatch.setattr(handler, "get_response", lambda request: response)
    with pytest.raises(ConnectionError):
        await handler.handle(_scope("/healthz"), _no_body, send)
    assert made == ["piece", "closed"]


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every function that was taken from the event loop to a thread."""
    crossed = []
    cross = SyncToAsync.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        crossed.append(self.func)
        return cross(self, *args, **kwargs)

    monkeypatch.setattr(SyncToAsync, "__call__", noted)
    return crossed


async def test_a_request_crosses_into_a_thread_once(crossings: list[Any]) -> None:
    await answer("/healthz", application=Handler())
    assert len(crossings) == 1, crossings
    crossings.clear()
    await answer("/healthz", application=ASGIHandler())
    assert len(crossings) > 3


async def test_an_unforeseen_error_under_asgi_is_a_500_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    handler = Handler()
    monkeypatch.setattr(handler, "resolve_request", broken)
    assert (await answer("/api/v1/nothing", application=handler))[:2] == (500, "application/problem+json")


async def test_a_body_that_came_in_chunks_is_read(ada_key: str) -> None:
    headers = {b"content-type": b"application/json", b"authorization": f"Bearer {ada_key}".encode()}
    headers[b"transfer-encoding"] = b"chunked"
    status, _, body = await answer("/api/v1/chats", method="POST", headers=headers, body=b'{"title": "In chunks"}')
    assert (status, json.loads(body)["title"]) == (201, "In chunks")


async def test_an_empty_accept_header_takes_anything(ada_key: str) -> None:
    headers = {b"accept": b"", b"authorization": f"Bearer {ada_key}".encode()}
    assert (await answer("/api/v1/chats", headers=headers))[0] == 200


async def test_a_websocket_is_refused() -> None:
    scope = {"type": "websocket", "path": "/", "headers": [], "subprotocols": []}
    exchange: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]
    await exchange.send_input({"type": "websocket.connect"})
    assert await exchange.receive_output(timeout=5) == {"type": "websocket.close"}
