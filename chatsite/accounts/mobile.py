"""Signing up, logging in and out for mobile clients: allauth's headless views, answering like the rest of the API.

Their success bodies stay as allauth documents them; a refusal is a problem document that also holds allauth's members
(`errors`, `data`, `meta`).
"""

import json
from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from allauth.account.adapter import get_adapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.headless.account import views as account
from allauth.headless.internal.restkit.response import ErrorResponse
from allauth.headless.tokens import views as tokens
from django.contrib.sessions.backends.base import UpdateError
from django.http import HttpRequest, HttpResponse, JsonResponse

from chatsite import problems
from chatsite.accounts.errors import EmailTaken, InvitationInvalid, RegistrationClosed
from chatsite.accounts.throttling import RETRY_AFTER_S

View = Callable[..., HttpResponse]
# Of names, addresses and passwords; more is no use here.
MAX_BODY_BYTES = 20_000
_LIMITS = {"too_many_login_attempts", "rate_limited"}
_CODES = {
    HTTPStatus.BAD_REQUEST: ("malformed", "The request cannot be read."),
    HTTPStatus.UNAUTHORIZED: ("not_authenticated", "Log in first."),
    HTTPStatus.FORBIDDEN: ("permission_denied", "You may not do this."),
    HTTPStatus.NOT_FOUND: ("not_found", "There is nothing here for you."),
    HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", "This address does not take that method."),
    HTTPStatus.CONFLICT: ("conflict", "This does not fit what went before: you are logged in already, say."),
    HTTPStatus.GONE: ("session_ended", "The session is over. Log in again."),
    HTTPStatus.TOO_MANY_REQUESTS: ("throttled", "That was too often. Please wait before you try again."),
}
_UNPROVEN = ("reauthentication_required", "Confirm that it is you, with the password or a code.")
# Of a status that stands nowhere above.
UNNAMED = "refused"
_PENDING = {
    "mfa_authenticate": ("second_factor_required", "A code of the second factor is needed."),
    "verify_email": ("email_unverified", "The e-mail address must be confirmed first."),
}


class SignupView(account.SignupView):  # type: ignore[misc]  # allauth ships no types
    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """What only opening the account could find out is told like what the form found."""
        try:
            if not get_adapter().is_open_for_signup(request):
                raise RegistrationClosed
            response: HttpResponse = super().post(request, *args, **kwargs)
        except EmailTaken as error:
            self.input.add_error("email", str(error))
        except InvitationInvalid as error:
            self.input.add_error("invitation", str(error))
        except RegistrationClosed as error:
            return _problem(HTTPStatus.FORBIDDEN, code="registration_closed", detail=str(error))
        else:
            return response
        return ErrorResponse(request, input=self.input)  # type: ignore[no-any-return]


class RefreshTokenView(tokens.RefreshTokenView):  # type: ignore[misc]
    def post(self, request: HttpRequest) -> HttpResponse:
        """A token that is refused is a 401, as everywhere, not a malformed request."""
        response: HttpResponse = super().post(request)
        if response.status_code != HTTPStatus.BAD_REQUEST:
            return response
        return _problem(
            HTTPStatus.UNAUTHORIZED, code="invalid_token", detail="The refresh token is not valid, or no longer."
        )


def answering_problems(view: View) -> View:
    """The view, refusing as the API does. Never an empty body, an HTML page or a 5xx for what a client can send."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        refusal = _unreadable(request)
        if refusal is not None:
            return refusal
        try:
            response = view(request, *args, **kwargs)
        except ImmediateHttpResponse as immediate:
            response = immediate.response
        except UpdateError:
            # The session ended between reading and saving it: a log-out was faster.
            return _problem(HTTPStatus.GONE)
        if response.status_code < 400 or response.headers.get("Content-Type") == problems.CONTENT_TYPE:
            return response
        return _as_problem(response)

    return answer


def _unreadable(request: HttpRequest) -> HttpResponse | None:
    """The refusal of a body that is no JSON object in valid Unicode, and small."""
    if request.method == "GET":
        # The one method with which allauth reads no body.
        return None
    try:
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return _problem(HTTPStatus.BAD_REQUEST)
    if length > MAX_BODY_BYTES or len(request.body) > MAX_BODY_BYTES:
        return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, code="too_large", detail="The request body is too large.")
    if not request.body:
        return None
    if request.content_type != "application/json":
        return _problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="unsupported_media_type", detail="Send application/json."
        )
    try:
        data = json.loads(request.body.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_integer)
        # Half of a surrogate pair is JSON but no text: no database and no password hash takes it. 1e400 is infinite.
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        return _problem(HTTPStatus.BAD_REQUEST, detail="The request body is not JSON in valid Unicode.")
    if not isinstance(data, dict):
        return _problem(HTTPStatus.BAD_REQUEST, detail="The request body must be a JSON object.")
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _integer(digits: str) -> int:
    """Ids are the only numbers here: what no database can hold is none."""
    number = int(digits)
    if abs(number) >= 2**63:
        raise ValueError("the number is too large")
    return number


def _as_problem(response: HttpResponse) -> HttpResponse:
    body: dict[str, Any] = {}
    if response.headers.get("Content-Type", "").startswith("application/json"):
        body = json.loads(response.content)
    status = HTTPStatus(response.status_code)
    errors = body.get("errors") or []
    if {error.get("code") for error in errors} & _LIMITS:
        status = HTTPStatus.TOO_MANY_REQUESTS
    members = {name: body[name] for name in ("errors", "data", "meta") if name in body}
    if status == HTTPStatus.BAD_REQUEST and errors:
        return _problem(status, code="invalid", detail=_first_reason(errors), **members)
    if status == HTTPStatus.UNAUTHORIZED:
        code, detail = _unauthorized(body)
        return _problem(status, code=code, detail=detail, **members)
    problem = _problem(status, **members)
    if allow := response.headers.get("Allow"):
        problem.headers["Allow"] = allow
    return problem


def _first_reason(errors: list[dict[str, Any]]) -> str:
    first = errors[0]
    return f"{first['param']}: {first['message']}" if first.get("param") else str(first["message"])


def _unauthorized(body: dict[str, Any]) -> tuple[str, str]:
    """What is missing: a log-in, its second step, or a fresh proof of who it is."""
    if body.get("meta", {}).get("is_authenticated"):
        return _UNPROVEN
    for flow in body.get("data", {}).get("flows", []):
        if flow.get("is_pending") and flow["id"] in _PENDING:
            return _PENDING[flow["id"]]
    return _CODES[HTTPStatus.UNAUTHORIZED]


def _problem(status: HTTPStatus, *, code: str = "", detail: str = "", **members: Any) -> HttpResponse:
    usual_code, usual_detail = _CODES.get(status, (UNNAMED, status.phrase))
    body = problems.document(
        status=status, code=code or usual_code, title=status.phrase, detail=detail or usual_detail, **members
    )
    response = JsonResponse(body, status=status, content_type=problems.CONTENT_TYPE)
    response.headers["Cache-Control"] = "no-store"
    if status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = 'Bearer realm="api"'
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
