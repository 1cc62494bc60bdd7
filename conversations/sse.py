"""Event streams over HTTP: a run's entries as server-sent events (docs/streaming.md).

Django decides, this layer streams: the request goes through the Django application as any other, with its
authentication, throttles and refusals, and only a success is answered with a stream.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError

from conversations.event_consumer import Event, Receive, Scope, Send, StreamingConsumer
from inference import api as inference
from inference.contracts import START, Cursor, Entry, RunState, StreamHub

log = structlog.get_logger(__name__)

# Threads of their own, and few: asgiref's one shared thread would let one slow query hold up every follower.
_ASKING = ThreadPoolExecutor(max_workers=4, thread_name_prefix="run-state")
# Below the 15 s that is promised, by what a look into the database may take.
QUIET_S = 12.0
EVENT_STREAM = b"text/event-stream"
_MESSAGES = re.compile(r"^/api/v1/chats/[^/]+/messages$")
_EVENTS = re.compile(r"^/api/v1/runs/[^/]+/events$")
# Django's other headers stay: the request's id, cookies, and what SecurityMiddleware sets.
_REPLACED = frozenset({b"content-type", b"content-length", b"cache-control"})
_HEADERS = [
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"Cache-Control", b"no-store"),
    # nginx would otherwise hold frames back.
    (b"X-Accel-Buffering", b"no"),
]

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class _Answer:
    """What Django answered."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_json(self) -> bool:
        return any(name.lower() == b"content-type" and b"json" in value for name, value in self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Granted:
    """A run that may be followed, from where on, and what the database says of it."""

    run_id: UUID
    after: Cursor
    known: RunState


def wants_stream(scope: Scope) -> bool:
    """Whether the request asks for a run's events."""
    if scope["type"] != "http":
        return False
    if scope["method"] == "GET":
        return _EVENTS.match(scope["path"]) is not None
    return (
        scope["method"] == "POST"
        and _MESSAGES.match(scope["path"]) is not None
        and any(name == b"accept" and EVENT_STREAM in value.lower() for name, value in scope["headers"])
    )


class EventStreamConsumer(StreamingConsumer):
    """Answers one request with a run's events, or with whatever Django refuses it with."""

    def __init__(self, *, hub: StreamHub, django: Application, quiet_s: float = QUIET_S) -> None:
        super().__init__()
        self._hub = hub
        self._django = django
        self._quiet_s = quiet_s

    async def handle(self, body: bytes) -> None:
        granted = await self._begin(body)
        if granted is not None:
            await self._stream(granted)
            await self.send_body(b"")

    async def _begin(self, body: bytes) -> _Granted | None:
        """Ask Django, and send the beginning of the response; None when that was all of it.

        Apart from what follows: a follower may stay for long, and need not keep what it came with in memory.
        """
        answer = await self._ask_django(body)
        if answer.status not in (200, 202) or not answer.is_json:
            await self.send_headers(status=answer.status, headers=answer.headers)
            await self.send_body(bytes(answer.body))
            return None
        granted = _read_grant(answer, is_new=self.scope["method"] == "POST")
        kept = [(name, value) for name, value in answer.headers if name.lower() not in _REPLACED]
        await self.send_headers(status=200, headers=[*_HEADERS, *kept])
        # Something must be sent for the headers to leave; a comment is nothing to a reader.
        first = b": following\n\n" if self.scope["method"] == "GET" else frame(event="run", data=answer.body.decode())
        await self.send_body(first, more_body=True)
        self.scope["headers"] = []
        return granted

    async def _stream(self, granted: _Granted) -> None:
        run_id, known = granted.run_id, granted.known

        async def state() -> RunState | None:
            ask = database_sync_to_async(inference.run_state, thread_sensitive=False, executor=_ASKING)
            try:
                found: RunState | None = await ask(run_id=run_id)
            except DatabaseError:
                # Not knowing is no reason to cut a stream that works: what was known at its start still serves.
                log.warning("run_state_unknown", run_id=str(run_id), exc_info=True)
                return known
            return found

        following = self._hub.follow(
            run_id=run_id, after=granted.after, known=known, state=state, quiet_s=self._quiet_s
        )
        async with contextlib.aclosing(following) as entries:
            async for entry in entries:
                if isinstance(entry, Entry):
                    await self.send_body(frame(id=str(entry.id), event=entry.type, data=entry.data), more_body=True)
                else:
                    await self.send_body(b": still here\n\n", more_body=True)

    async def _ask_django(self, body: bytes) -> _Answer:
        """Put the request through Django, asking for JSON."""
        answer = _Answer()
        given = asyncio.Event()
        headers = [(name, value) for name, value in self.scope["headers"] if name != b"accept"]
        scope = {**self.scope, "headers": [*headers, (b"accept", b"application/json")]}
        pending: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Event:
            if pending:
                return pending.pop()
            # Django watches for the client to leave; that is the consumer's matter.
            await given.wait()
            return {"type": "http.disconnect"}

        async def send(message: Event) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = list(message.get("headers", []))
            else:
                answer.body += message.get("body", b"")
                if not message.get("more_body"):
                    given.set()

        asking = asyncio.ensure_future(self._django(scope, receive, send))
        try:
            await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The client left. Cancelled half-way, Django would never give its database connection back.
            await asking
            raise
        return answer


def _read_grant(answer: _Answer, *, is_new: bool) -> _Granted:
    """What Django allows to follow: the run of a message just sent, or one that was asked for by its id."""
    grant = json.loads(answer.body)
    if is_new:
        run = grant["run"]
        is_terminal = run["status"] not in ("queued", "streaming")
        run_id, after = UUID(run["id"]), START
    else:
        run, is_terminal = grant, grant["is_terminal"]
        run_id, after = UUID(grant["run_id"]), Cursor.parse(grant["after"])
    known = RunState(
        status=run["status"], epoch=run["epoch"], is_terminal=is_terminal, message_id=_uuid(run["message_id"])
    )
    return _Granted(run_id=run_id, after=after, known=known)


def frame(*, event: str, data: str, id: str | None = None) -> bytes:  # noqa: A002 - the field's name in the format
    """One server-sent event. `data` is one line."""
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {event}\ndata: {data}\n\n".encode()


def stream_http(
    django: Application, *, new_hub: Callable[[], StreamHub] = inference.stream_hub, quiet_s: float = QUIET_S
) -> Application:
    """The HTTP application: event streams here, everything else in Django."""
    # One hub per event loop, that is per process: a server runs one loop; tests run one after another.
    hubs: dict[asyncio.AbstractEventLoop, StreamHub] = {}

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if not wants_stream(scope):
            await django(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        if loop not in hubs:
            hubs[loop] = new_hub()
        await EventStreamConsumer(hub=hubs[loop], django=django, quiet_s=quiet_s)(scope, receive, send)

    return application


def _uuid(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)
