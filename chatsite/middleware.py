"""What happens to every request around a view: its id, refusals below /api/, static files."""

import re
import time
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse
from uuid_utils.compat import uuid7
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile

from chatsite import problems

HEADER = "X-Request-ID"
# Asked every second or so by machines.
UNLOGGED = frozenset({"healthz", "readyz", "metrics"})
# Short and plain, so that a client's own id cannot forge or flood a log line.
_SANE = re.compile(r"[A-Za-z0-9._-]{8,64}", re.ASCII)


log = structlog.get_logger(__name__)


class RequestIds:
    """Takes a sane X-Request-ID or makes one, binds it to the log context, returns it, and logs the request.

    The line names the route, not the address: ids and cursors are nobody's business, and their number has no end.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        offered = request.headers.get(HEADER, "")
        request_id = offered if _SANE.fullmatch(offered) else str(uuid7())
        request.request_id = request_id  # type: ignore[attr-defined]
        began = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
            route = request.resolver_match.route if request.resolver_match else None
            if route not in UNLOGGED:
                log.info(
                    "request",
                    method=request.method,
                    route=route,
                    status=response.status_code,
                    ms=round((time.monotonic() - began) * 1000, 1),
                )
        response.headers[HEADER] = request_id
        if request.path_info.startswith("/api/"):
            # Everything there is somebody's own, and changes.
            response.headers.setdefault("Cache-Control", "no-store")
        return response


class ApiRefusals:
    """Below /api/ every refusal is a problem document, also where a decorator or a library answered with a page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if (
            response.status_code >= 400
            and request.path_info.startswith("/api/")
            and response.headers.get("Content-Type") != problems.CONTENT_TYPE
        ):
            return problems.instead_of(response)
        return response


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]  # it has no types
    """WhiteNoise, reading a file at once: Django can stream a plain file under ASGI only with a warning and a
    thread hop per chunk, and these are small."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        body = b""
        if found.file is not None:
            with found.file as opened:
                body = opened.read()
        return HttpResponse(body, status=int(found.status), headers=dict(found.headers))
