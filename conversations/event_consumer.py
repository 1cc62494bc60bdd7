"""The base of consumers that stream an HTTP response.

Channels' AsyncHttpConsumer runs `handle` inside its receive loop: while it streams it cannot see the client leave, and
an error in it leaves the request hanging. Here the work runs in a task of its own beside a watch for the disconnect.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog
from channels.generic.http import AsyncHttpConsumer

log = structlog.get_logger(__name__)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class StreamingConsumer(AsyncHttpConsumer):  # type: ignore[misc] # Channels has no types
    """Override `handle(body)`; it is cancelled when the client goes away, and its errors end the response."""

    # More than any parser of ours takes. What comes after is dropped, so that `handle` sees a body that is too long.
    max_body_bytes = 8_000_000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.base_send = send
        body = await self._read_body(receive)
        if body is None:
            return
        work = asyncio.ensure_future(self.handle(body))
        leaving = asyncio.ensure_future(_until_disconnect(receive))
        gone = False
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            gone = not work.done()
        finally:
            for task in (work, leaving):
                task.cancel()
            results = await asyncio.gather(work, leaving, return_exceptions=True)
        error = results[0]
        if not isinstance(error, Exception):
            return
        if gone:
            log.warning("stream_failed_after_its_client_left", path=scope["path"], exc_info=error)
            return
        # The server must see it: it answers 500 or, in the middle of a stream, cuts the connection.
        raise error

    async def _read_body(self, receive: Receive) -> bytes | None:
        """The whole body, or its first `max_body_bytes`; None when the client went away first."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")[: self.max_body_bytes - len(body)]
            if not message.get("more_body"):
                return bytes(body)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
