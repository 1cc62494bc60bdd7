"""Django's ASGI handler, made to refuse what it would trip over before any view or middleware runs."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

from asgiref.sync import sync_to_async
from csp.middleware import CSPMiddleware
from django.core import signals
from django.core.exceptions import BadRequest, RequestAborted
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.db import close_old_connections
from django.http import FileResponse, HttpRequest, HttpResponse
from django.urls import set_script_prefix
from django.utils.http import parse_header_parameters

from chatsite import problems
from chatsite.middleware import RequestIds

T = TypeVar("T")
Event = Mapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

# Kept, where Django makes a thread for each request: one that is there has its database connection open (SQLite) or
# takes one from the pool (Postgres).
_THREADS = ThreadPoolExecutor(max_workers=40, thread_name_prefix="request")


class Utf8Request(ASGIRequest):
    """A request whose address and body are UTF-8, whatever its Content-Type says.

    Django decodes both with the charset that the client names. Some that Python knows decode no text
    (`rot13`, `hex`, `undefined`), and the error comes before anything can turn it into an answer.
    """

    def __init__(self, scope: Mapping[str, Any], body_file: IO[bytes]) -> None:
        super().__init__(scope, body_file)
        if not self.META.get("CONTENT_LENGTH"):
            # A body sent in chunks has no such header, and REST framework takes that for no body at all.
            self.META["CONTENT_LENGTH"] = str(body_file.seek(0, os.SEEK_END))
            body_file.seek(0)
        if not self.META.get("HTTP_ACCEPT", "*/*").strip():
            # Naming nothing is not refusing everything.
            del self.META["HTTP_ACCEPT"]

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        self.content_type, self.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))


class Handler(ASGIHandler):
    """Serves a request in one thread, from its parsing to its end.

    Every view of this site is synchronous. Django's own handler crosses between loop and thread for each middleware
    that could be asynchronous, for the view, and for each signal: 3.4 ms of CPU for /healthz, measured through daphne.
    It also watches for the client to leave, which no synchronous view can be told; the watch's tasks and their
    tracebacks keep request and response alive until the collector's rarest pass.
    """

    request_class = Utf8Request

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def handle(self, scope: Event, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        response = await self._in_thread(self._serve, scope, body)
        if response.streaming and not response.is_async and not isinstance(response, FileResponse):
            response.streaming_content = self._piece_by_piece(response.streaming_content)
        try:
            await self.send_response(response, send)
        finally:
            # Also when the client has left, or the server is told to stop.
            if response.streaming:
                await self._in_thread(response.close)

    async def _piece_by_piece(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """What a synchronous view streams, as it is made. Django would make it all before it sends any of it."""
        while (piece := await self._in_thread(_next, pieces)) is not None:
            yield piece

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await sync_to_async(work, thread_sensitive=False, executor=_THREADS)(*arguments)

    def _serve(self, scope: Event, body: IO[bytes]) -> Any:
        """The response; closed, unless its content is still to be made."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        try:
            request, refusal = self.create_request(scope, body)
            response: Any = refusal if request is None else self.get_response(request)
            response._handler_class = self.__class__  # read by its close()
            if isinstance(response, FileResponse):
                # The server cuts into smaller pieces where it has to.
                response.block_size = self.chunk_size
            if not response.streaming:
                response.close()
            return response
        finally:
            body.close()
            # A response that is still to be sent has not told that the request is finished.
            close_old_connections()

    def create_request(
        self, scope: Mapping[str, Any], body_file: IO[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponse]:
        """A query string that is not UTF-8, a header parameter in an unknown encoding: 400."""
        try:
            return self.request_class(scope, body_file), None
        except ValueError:
            unread = HttpRequest()
            unread.path = unread.path_info = scope["path"]
            unread.method = scope["method"]
            return None, _refusal(unread)


def _next(pieces: Iterator[bytes]) -> bytes | None:
    """The next piece; the database's connection is not kept while it is sent."""
    try:
        return next(pieces, None)
    finally:
        close_old_connections()


def _bad_request(unread: HttpRequest) -> HttpResponse:
    return problems.bad_request(unread, BadRequest())


# The site's middleware reads sessions and hosts, which such a request has none of. An id, a line in the log and the
# policy it gets all the same.
_refusal: Callable[[HttpRequest], HttpResponse] = RequestIds(CSPMiddleware(_bad_request))
