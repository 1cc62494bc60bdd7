"""Django's ASGI handler, made to refuse what it would trip over before any view or middleware runs."""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.http import parse_header_parameters

from chatsite import problems

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
    """Runs middleware and view of a request together, in one thread.

    Every view of this site is synchronous. Django's own handler crosses between loop and thread for each
    middleware that could be asynchronous, and for the view again: 3.4 ms of CPU for /healthz, measured
    through daphne, where this one takes 1.9.
    """

    request_class = Utf8Request

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def run_get_response(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self._answer, thread_sensitive=False, executor=_THREADS)(request)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        try:
            return self.get_response(request)
        finally:
            # Django does this in the thread that it would have made for the request.
            close_old_connections()

    def create_request(
        self, scope: Mapping[str, Any], body_file: IO[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponse]:
        """A query string that is not UTF-8, a header parameter in an unknown encoding: 400."""
        try:
            return self.request_class(scope, body_file), None
        except ValueError:
            unread = HttpRequest()
            unread.path_info = scope["path"]
            return None, problems.bad_request(unread, BadRequest())
