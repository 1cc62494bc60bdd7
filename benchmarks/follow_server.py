"""Two web applications that differ in one thing: how they hear of a run's new entries.

`shipped` is the site's own. `naive` is the site's own with a blocking XREAD for each follower in the place of the hub.
Both answer /tasks with the number of asyncio tasks in the process.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from uuid import UUID

import redis.asyncio
from django.conf import settings

from chatsite.asgi import django_application
from conversations.api import stream_http
from inference import store
from inference.cell.hub import Quiet
from inference.contracts import Cursor, Entry, RunState

Application = Callable[[Any, Any, Any], Awaitable[None]]


class BlockingReads:
    """What a first draft does: every follower waits in a read of its own, over a connection of its own."""

    def __init__(self) -> None:
        self._connector = store.async_connector()
        self._client = redis.asyncio.Redis.from_url(
            settings.REDIS_URL_SOURCE(), decode_responses=True, max_connections=5_000, socket_timeout=None
        )

    async def follow(
        self,
        *,
        run_id: UUID,
        after: Cursor,
        known: RunState,
        state: Callable[[], Awaitable[RunState | None]],
        quiet_s: float = 15.0,
    ) -> AsyncGenerator[Entry | Quiet, None]:
        cell = await self._connector.cell()
        name, last = cell.keys.stream(run_id), str(after)
        while True:
            found: Any = await self._client.xread({name: last}, count=500, block=round(quiet_s * 1000))
            if not found:
                yield Quiet()
                continue
            for last, fields in found[0][1]:
                entry = Entry(Cursor.parse(last), fields["t"], fields["d"])
                yield entry
                if entry.is_terminal:
                    return


def _telling_tasks(application: Application) -> Application:
    async def asked(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/tasks":
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(asyncio.all_tasks())).encode()})

    return asked


shipped = _telling_tasks(stream_http(django_application))
naive = _telling_tasks(stream_http(django_application, new_hub=BlockingReads))  # type: ignore[arg-type] # follows alike
