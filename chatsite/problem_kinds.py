"""Which error gives which refusal: status, code and words."""

from dataclasses import dataclass
from http import HTTPStatus

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404
from django.http.multipartparser import MultiPartParserError
from rest_framework.exceptions import Throttled

from conversations import errors as conversations
from inference import errors as inference


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What an error class becomes. `detail` may name the error's attributes in braces; without one its own
    message is shown."""

    status: HTTPStatus
    code: str
    title: str
    detail: str | None = None


_UNAVAILABLE = Kind(
    status=HTTPStatus.SERVICE_UNAVAILABLE,
    code="unavailable",
    title="No answer can be generated at the moment",
    detail="The service cannot take new messages at the moment. Please try again shortly.",
)
# App errors. The nearest class in an error's inheritance counts, so that an entry for a base covers what
# derives from it. Public attributes of the error become members of the document; `retry_after` (seconds)
# and `retry_at` (a time) become Retry-After as well. An error that stands nowhere here is a bug and a 500.
TABLE: dict[type[Exception], Kind] = {
    conversations.ChatNotFound: Kind(
        status=HTTPStatus.NOT_FOUND, code="not_found", title="Not Found", detail="There is no such chat."
    ),
    conversations.TooLong: Kind(
        status=HTTPStatus.BAD_REQUEST,
        code="too_long",
        title="The message is too long",
        detail="The prompt has {prompt_tokens} tokens; {max_prompt_tokens} are allowed here.",
    ),
    conversations.TurnConflict: Kind(status=HTTPStatus.CONFLICT, code="turn_conflict", title="The turn id is taken"),
    conversations.NotRetryable: Kind(
        status=HTTPStatus.CONFLICT,
        code="not_retryable",
        title="This answer cannot be asked for again",
        detail="Only an answer that was stopped, broke off or failed can be asked for again; this one is {run_status}.",
    ),
    conversations.NotLastTurn: Kind(
        status=HTTPStatus.CONFLICT,
        code="not_last_turn",
        title="The chat has gone on",
        detail="Only the chat's last answer can be asked for again.",
    ),
    conversations.Blocked: Kind(status=HTTPStatus.UNPROCESSABLE_ENTITY, code="blocked", title="The message is refused"),
    conversations.Maintenance: Kind(
        status=HTTPStatus.SERVICE_UNAVAILABLE, code="maintenance", title="The site is being maintained"
    ),
    inference.RunNotFound: Kind(
        status=HTTPStatus.NOT_FOUND, code="not_found", title="Not Found", detail="There is no such run."
    ),
    inference.PoolNotFound: Kind(
        status=HTTPStatus.BAD_REQUEST,
        code="unknown_pool",
        title="Unknown pool",
        detail="No pool of this name is open to you.",
    ),
    inference.ChatTemplateRefused: Kind(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        code="template_refused",
        title="The model cannot take this conversation",
        detail="The model's own chat template refuses these messages.",
    ),
    inference.ChatBusy: Kind(
        status=HTTPStatus.CONFLICT,
        code="chat_busy",
        title="The chat is busy",
        detail="An answer is still under way in this chat.",
    ),
    inference.AdmissionRefused: Kind(
        status=HTTPStatus.TOO_MANY_REQUESTS, code="limit_reached", title="A limit of yours is reached"
    ),
    inference.PoolFull: Kind(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        code="pool_full",
        title="We are full",
        detail="There is no place for new messages at the moment. Yours was not stored.",
    ),
    inference.ServiceUnavailable: _UNAVAILABLE,
    inference.NoWorkerAlive: _UNAVAILABLE,
}
# What Django raises itself, in views and while it reads a request.
FRAMEWORK: dict[type[Exception], Kind] = {
    Http404: Kind(
        status=HTTPStatus.NOT_FOUND,
        code="not_found",
        title="Not Found",
        detail="There is nothing here for you.",
    ),
    PermissionDenied: Kind(
        status=HTTPStatus.FORBIDDEN,
        code="permission_denied",
        title="Forbidden",
        detail="You may not do this.",
    ),
    Throttled: Kind(
        status=HTTPStatus.TOO_MANY_REQUESTS,
        code="throttled",
        title="Too Many Requests",
        detail="That was too often. Please wait before you try again.",
    ),
    RequestDataTooBig: Kind(
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="too_large",
        title="Request Entity Too Large",
        detail="The request body is too large.",
    ),
} | {
    cause: Kind(
        status=HTTPStatus.BAD_REQUEST,
        code="malformed",
        title="Bad Request",
        detail="The request cannot be read.",
    )
    for cause in (BadRequest, MultiPartParserError, SuspiciousOperation, UnicodeError)
}
