"""Refusals as HTTP answers: problem documents (RFC 9457), from DRF's views and from Django's own."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from uuid import UUID

import structlog
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import set_rollback

from chatsite import rate_limits
from chatsite.accounts.throttling import RequestLimitReached
from chatsite.problem_codes import CODES
from chatsite.problem_kinds import FRAMEWORK, TABLE, Kind
from conversations.errors import InvalidRequest
from inference.errors import ServiceUnavailable

log = structlog.get_logger(__name__)

CONTENT_TYPE = "application/problem+json"


class Problem(Response):
    """JSON whatever its view renders: the schema's would make YAML of it."""

    @property
    def rendered_content(self) -> bytes:  # type: ignore[override]  # the stubs want text where DRF has bytes
        self["Content-Type"] = CONTENT_TYPE
        # ASCII: a detail may quote what no UTF-8 can be made of.
        return json.dumps(self.data, cls=JSONEncoder).encode("ascii")


def handle(exc: Exception, context: Mapping[str, Any]) -> Response | None:
    """DRF's exception handler. None, for what nobody foresaw, raises it again: logged, and a 500."""
    if isinstance(exc, InvalidRequest):
        # Found deeper than a serializer looks, told like what a serializer finds.
        exc = exceptions.ValidationError({exc.field: [exc.reason]})
    if isinstance(exc, OperationalError | InterfaceError):
        # Away, or locked for longer than anybody waits.
        log.error("database_unavailable", exc_info=exc)
        exc = ServiceUnavailable(reason="the database does not answer", retry_after=5)
    if isinstance(exc, exceptions.APIException):
        status, body, headers = _from_rest_framework(exc)
    else:
        kind = _kind(exc)
        if kind is None:
            return None
        status, body, headers = _from_table(exc, kind)
    set_rollback()
    return Problem(body, status=status, headers=headers, content_type=CONTENT_TYPE)


def document(*, status: int, code: str, title: str, detail: str, **members: Any) -> dict[str, Any]:
    """The members of one problem document, the fixed ones first; the request's id is what its log lines carry."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    return {
        "type": f"/problems/{code}",
        "title": title,
        "status": int(status),
        "detail": detail,
        "code": code,
        **({"request_id": request_id} if request_id else {}),
    } | members


def _kind(exc: Exception) -> Kind | None:
    known = TABLE | FRAMEWORK
    return next((known[base] for base in type(exc).__mro__ if base in known), None)


def _from_table(exc: Exception, kind: Kind) -> tuple[int, dict[str, Any], dict[str, str]]:
    members = {name: _plain(value) for name, value in vars(exc).items() if not name.startswith("_")}
    detail = str(exc) if kind.detail is None else kind.detail.format_map(members)
    headers: dict[str, str] = {}
    if isinstance(retry_at := getattr(exc, "retry_at", None), datetime):
        members["retry_after"] = _seconds((retry_at - timezone.now()).total_seconds())
    if members.get("retry_after") is not None:
        members["retry_after"] = _seconds(members["retry_after"])
        headers["Retry-After"] = str(members["retry_after"])
    for reserved in ("type", "title", "status", "detail", "code"):
        members.pop(reserved, None)
    headers |= _limit_fields(members)
    body = document(status=kind.status, code=kind.code, title=kind.title, detail=detail, **members)
    return kind.status, body, headers


def _from_rest_framework(exc: exceptions.APIException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """DRF's errors say their own status; a validation error also lists its reasons by field."""
    headers: dict[str, str] = {}
    members: dict[str, Any] = {}
    if challenge := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(exc, "wait", None)) is not None:
        members["retry_after"] = _seconds(wait)
        headers["Retry-After"] = str(members["retry_after"])
    if isinstance(exc, RequestLimitReached):
        members |= {"limit": exc.limit, "maximum": exc.maximum}
        headers |= _limit_fields(members, window_s=exc.window_s)
    if isinstance(exc, exceptions.ValidationError):
        code = "invalid"
        by_field = exc.detail if isinstance(exc.detail, dict) else {"non_field_errors": exc.detail}
        members["errors"] = by_field
        detail = _first_reason(by_field)
    else:
        code = "malformed" if isinstance(exc, exceptions.ParseError) else str(exc.get_codes())
        detail = str(exc.detail)
    title = HTTPStatus(exc.status_code).phrase
    return (
        exc.status_code,
        document(status=exc.status_code, code=code, title=title, detail=detail, **members),
        headers,
    )


def _limit_fields(members: dict[str, Any], *, window_s: int | None = None) -> dict[str, str]:
    """The rate-limit headers of a refusal that names a limit; nothing remains of one that does not say how much."""
    if "limit" not in members or "maximum" not in members:
        return {}
    members.setdefault("remaining", 0)
    return rate_limits.fields(
        limit=members["limit"],
        maximum=members["maximum"],
        remaining=members["remaining"],
        reset_s=members.get("retry_after"),
        window_s=window_s,
    )


def _first_reason(detail: Any, *, path: str = "") -> str:
    """`field: reason` of the first reason found, depth first."""
    if isinstance(detail, dict):
        for name, below in detail.items():
            here = path if name == "non_field_errors" else f"{path}.{name}".lstrip(".")
            if reason := _first_reason(below, path=here):
                return reason
        return ""
    if isinstance(detail, list | tuple):
        return next((reason for below in detail if (reason := _first_reason(below, path=path))), "")
    return f"{path}: {detail}" if path else str(detail)


def _plain(value: Any) -> Any:
    match value:
        case UUID():
            return str(value)
        case datetime():
            # As the serializers write them.
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case _:
            return value


def _seconds(value: float) -> int:
    """Retry-After takes whole seconds; rounded up, so that a client that obeys is not early."""
    return max(1, math.ceil(value))


@csrf_exempt
def no_route(request: HttpRequest) -> HttpResponse:
    """What an address under /api/ that nothing serves answers, to every method."""
    return _respond(_kind_of(Http404))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_problem(request):
        return defaults.bad_request(request, exception)
    return _respond(_kind(exception) or _kind_of(BadRequest))


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_problem(request):
        return defaults.permission_denied(request, exception)
    return _respond(_kind_of(PermissionDenied))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _wants_problem(request):
        return defaults.page_not_found(request, exception)
    return _respond(_kind_of(Http404))


def instead_of(response: HttpResponse) -> HttpResponse:
    """The problem document in place of a refusal that is none, with its headers.

    Django's own decorators answer an empty page to a method that a view does not take.
    """
    status = HTTPStatus(response.status_code)
    code = next((name for name, known in CODES.items() if known.status == status), "refused")
    body = document(status=status, code=code, title=status.phrase, detail=CODES[code].meaning)
    kept = {name: value for name, value in response.headers.items() if name not in ("Content-Type", "Content-Length")}
    return JsonResponse(body, status=status, headers=kept, content_type=CONTENT_TYPE)


def too_many_requests(*, retry_after: int) -> HttpResponse:
    return _respond(_kind_of(exceptions.Throttled), retry_after=retry_after)


def server_error(request: HttpRequest) -> HttpResponse:
    if not _wants_problem(request):
        return defaults.server_error(request)
    kind = Kind(
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        code="internal_error",
        title="Internal Server Error",
        detail="Something went wrong on our side. The request id finds it in the log.",
    )
    return _respond(kind)


def _kind_of(cause: type[Exception]) -> Kind:
    return FRAMEWORK[cause]


def _wants_problem(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")


def _respond(kind: Kind, **members: Any) -> HttpResponse:
    body = document(status=kind.status, code=kind.code, title=kind.title, detail=kind.detail or "", **members)
    return JsonResponse(body, status=kind.status, content_type=CONTENT_TYPE)
