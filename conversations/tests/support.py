"""What the conversations tests drive: people at the API, an engine room in this process, and an ASGI client."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections
from django.test import Client

from billing.models import Plan, Subscription
from conversations.event_consumer import Scope
from inference import api as inference
from inference import publishing, runs, serving, store, testing
from inference.cell import queue, workers
from inference.models import Run
from inference.testing import tiny_tokenizer

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")

BOOT_ID = "a-worker"
_TOKENIZER = tiny_tokenizer()


class Person:
    """A user with an API key, and what they do through the API."""

    def __init__(self, email: str, *, user: Any = None) -> None:
        self.user: Any = user or get_user_model().objects.create_user(email=email)
        out = StringIO()
        call_command("create_api_key", email, stdout=out)
        self.key = out.getvalue().strip()
        self.client = Client(headers={"authorization": f"Bearer {self.key}"}, raise_request_exception=False)

    @classmethod
    def again(cls, person: "Person") -> "Person":
        """The same user on another device."""
        return cls(person.user.email, user=person.user)

    def get(self, path: str, **parameters: Any) -> Any:
        return self.client.get(path, parameters)

    def post(self, path: str, body: Any = None) -> Any:
        return self.client.post(path, json.dumps(body if body is not None else {}), content_type="application/json")

    def patch(self, path: str, body: Any) -> Any:
        return self.client.patch(path, json.dumps(body), content_type="application/json")

    def delete(self, path: str) -> Any:
        return self.client.delete(path)

    def new_chat(self, **body: Any) -> str:
        response = self.post("/api/v1/chats", body)
        assert response.status_code == 201, response.content
        return str(response.json()["id"])

    def send(self, chat: str, content: str = "Hello", *, turn: str = "t1", **more: Any) -> Any:
        return self.post(f"/api/v1/chats/{chat}/messages", {"content": content, "client_turn_id": turn, **more})

    def sent(self, chat: str, content: str = "Hello", *, turn: str = "t1", **more: Any) -> Json:
        """The body of a send that is accepted."""
        response = self.send(chat, content, turn=turn, **more)
        assert response.status_code == 202, response.content
        body: Json = response.json()
        return body

    def retry(self, run_id: str) -> Any:
        return self.post(f"/api/v1/runs/{run_id}/retry")

    def messages(self, chat: str) -> list[Json]:
        """Newest first."""
        found: list[Json] = self.get(f"/api/v1/chats/{chat}/messages").json()["results"]
        return found


def subscribe(person: Person, **limits: Any) -> None:
    """Put a person on a plan of their own."""
    plan = Plan.objects.create(slug=f"plan-{person.user.email.split('@')[0]}", name="A plan", **limits)
    now = person.user.date_joined
    Subscription.objects.create(user=person.user, plan=plan, starts_at=now)


def reservations(user_id: UUID) -> dict[str, str]:
    """What is held for a user: admission id → turn|base|tokens|confirmed|made at."""
    cell = store.connector().cell()
    held: Any = cell.run(lambda client: client.hgetall(cell.keys.reservations(user_id)))
    return dict(held)


def queued(pool: str = "default") -> list[str]:
    """What waits in a pool's queue, as 'run:epoch', first come first."""
    cell = store.connector().cell()
    return list(cell.run(lambda client: testing.queued(client, cell.keys, pool=pool)))


def lose_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find no Redis until the test is over."""
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    store.connector().close()


def pretend_a_worker(pool: str = "default", *, room: int = 32) -> None:
    """Let a worker of the pool seem alive for the rest of the test, with room for so many more runs."""
    cell = store.connector().cell()
    report = workers.Report(
        engine="scripted", model="m", slots=32, running=0, waiting=0, kv_usage=0.0, output_tokens=0, room=room
    )
    an_hour_ahead = store.now_ms() + 3_600_000
    cell.call(workers.heartbeat(cell.keys, pool=pool, boot_id=BOOT_ID, report=report, held=(), now_ms=an_hour_ahead))


def claim_by_hand(run_id: str | UUID) -> Run:
    """Become a waiting run's owner as a worker would: it is streaming then."""
    run = Run.objects.get(id=run_id)
    cell = store.connector().cell()
    ticketed = queue.Ticketed(run_id=run.id, epoch=run.epoch)
    cell.call(queue.expire(cell.keys, pool=run.pool.slug, run=ticketed, user_id=run.owner_id, tier=run.tier))
    claimed = runs.claim(
        run_id=run.id, epoch=run.epoch, worker=BOOT_ID, incarnation=cell.keys.incarnation, now=run.created_at
    )
    assert claimed is not None
    return claimed


def settle_by_hand(run_id: str | UUID, *, status: str = "done", text: str = "Fine.", output_tokens: int = 5) -> Run:
    """End a run as its worker would, without one: claim it if it waits, commit the outcome, announce it."""
    run = Run.objects.get(id=run_id)
    if run.status == Run.Status.QUEUED:
        run = claim_by_hand(run_id)
    ending = runs.Ending(
        status=Run.Status(status),
        text=text,
        own_tokens=output_tokens,
        output_tokens=output_tokens,
        ids=_TOKENIZER.encode(text),
    )
    ended = runs.settle(run_id=run.id, epoch=run.epoch, ending=ending, now=run.created_at)
    assert ended is not None
    publishing.announce_end(ended, text=text)
    return ended


def closing_connections(function: Callable[P, T]) -> Callable[P, T]:
    """For threads of a test's own: their database connections end with the call."""

    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        finally:
            connections.close_all()

    return wrapped


class Room:
    """A worker in this process, with the scripted engine; no Celery: the test says when it serves."""

    def __init__(self, *, slots: int = 8) -> None:
        serving.boot(pool_slug="default", concurrency=slots, node="room@test")
        self._threads: list[threading.Thread] = []

    def begin_serving(self) -> None:
        """Serve what waits, in a thread."""
        thread = threading.Thread(target=closing_connections(serving.serve_waiting), kwargs={"pool": "default"})
        thread.start()
        self._threads.append(thread)

    def finish_serving(self) -> None:
        """Wait until nothing is served any more."""
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "a run is still being served"
        self._threads.clear()

    def serve(self) -> None:
        """Serve what waits until nothing does."""
        self.begin_serving()
        self.finish_serving()

    @property
    def running(self) -> int:
        """Sequences in the engine, by its own last report."""
        return sum(gauges.running for gauges in inference.pool_gauges())

    def close(self) -> None:
        serving.shutdown()
        self.finish_serving()
        # A process ends with its engine's loop; here it would be found unclosed.
        server, serving._server = serving._server, None
        assert server is not None
        server._host._loop.close()


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event, or a comment (its type is empty)."""

    id: str
    type: str
    data: Any
    raw: bytes


class Exchange:
    """One HTTP request to an ASGI application, and what came back so far."""

    def __init__(self, *, body: bytes = b"", parts: list[bytes] | None = None, rest_follows: bool = False) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[Json] = asyncio.Queue()
        pieces = [body] if parts is None else parts
        for number, piece in enumerate(pieces, start=1):
            more = rest_follows or number < len(pieces)
            self._inbox.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        self._news = asyncio.Event()
        self._read = 0

    async def receive(self) -> Json:
        return await self._inbox.get()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        self._news.set()

    def hang_up(self) -> None:
        """The client goes away."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def finished(self) -> None:
        """Wait until the application is done. Raises what it raises."""
        assert self.task is not None
        await asyncio.wait_for(asyncio.shield(self.task), timeout=20)

    async def frame(self) -> Frame:
        """The next frame. Raises EOFError at the end of the stream."""
        while True:
            end = self.body.find(b"\n\n", self._read)
            if end >= 0:
                raw = bytes(self.body[self._read : end + 2])
                self._read = end + 2
                return _parse(raw)
            if self.ended:
                raise EOFError
            assert self.task is not None
            if self.task.done():
                self.task.result()
                raise EOFError
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), timeout=20)

    async def frames(self, *, until: str | None = None) -> list[Frame]:
        """The frames up to one of this type, or to the end; comments are left out."""
        found: list[Frame] = []
        while True:
            try:
                frame = await self.frame()
            except EOFError:
                return found
            if frame.type:
                found.append(frame)
            if until is not None and frame.type == until:
                return found

    def json(self) -> Any:
        return json.loads(self.body)


def _parse(raw: bytes) -> Frame:
    fields = {"id": "", "event": "", "data": "null"}
    # Lines end at LF, CR or CRLF alone.
    for line in raw.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, colon, value = line.partition(":")
        if colon and name:
            assert name in fields, raw
            fields[name] = value.removeprefix(" ")
    return Frame(id=fields["id"], type=fields["event"], data=json.loads(fields["data"]), raw=raw)


class Caller:
    """Makes requests of one ASGI application with one person's API key."""

    def __init__(self, application: Any, *, person: Person | None) -> None:
        self._application = application
        self._key = person.key if person is not None else None
        self._tasks: list[asyncio.Task[None]] = []

    def open(
        self, method: str, path: str, *, query: str = "", body: Any = None, headers: dict[str, str] | None = None
    ) -> Exchange:
        """Begin a request; it goes on while the test does other things."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {"host": "testserver", "content-type": "application/json", "content-length": str(len(raw))}
        if self._key is not None:
            named["authorization"] = f"Bearer {self._key}"
        named |= headers or {}
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in named.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("testserver", 80),
        }
        exchange = Exchange(body=raw)
        exchange.task = asyncio.ensure_future(self._application(scope, exchange.receive, exchange.send))
        self._tasks.append(exchange.task)
        return exchange

    async def call(self, method: str, path: str, **more: Any) -> Exchange:
        """A request that is answered to its end."""
        exchange = self.open(method, path, **more)
        await exchange.finished()
        return exchange

    def follow(self, run_id: str, *, after: str | None = None, headers: dict[str, str] | None = None) -> Exchange:
        query = "" if after is None else f"after={after}"
        return self.open("GET", f"/api/v1/runs/{run_id}/events", query=query, headers=headers)

    def stream(self, chat: str, content: str = "Hello", *, turn: str = "t1", **more: Any) -> Exchange:
        """A POST that is answered with the run's events."""
        body = {"content": content, "client_turn_id": turn, **more}
        return self.open("POST", f"/api/v1/chats/{chat}/messages", body=body, headers={"accept": "text/event-stream"})

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run what uses the database from an async test."""
    result: T = await database_sync_to_async(function)(*args, **kwargs)
    return result
