"""Every code that a refusal can carry: its status, what it means, and what whoever is refused can do."""

from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One code. `members` are fields of the problem document beyond the fixed ones; a status of None varies."""

    status: HTTPStatus | None
    meaning: str
    advice: str
    members: tuple[str, ...] = ()


CODES: dict[str, Code] = {
    "invalid": Code(
        status=HTTPStatus.BAD_REQUEST,
        meaning="A value breaks a rule: a field of the body, or `limit`, `cursor`, `after` or `days` in the address.",
        advice="`errors` maps each field to its reasons, which name the rule and its limit. Send another value.",
        members=("errors",),
    ),
    "malformed": Code(
        status=HTTPStatus.BAD_REQUEST,
        meaning="The request cannot be read: the body is not JSON in UTF-8, or the address is damaged.",
        advice="Mend the client. The same request will be refused again.",
    ),
    "too_long": Code(
        status=HTTPStatus.BAD_REQUEST,
        meaning="The message leaves no room for an answer in the model's window or in your plan, whatever is left out.",
        advice="Shorten it: `max_prompt_tokens` says what fits, `prompt_tokens` what it has.",
        members=("prompt_tokens", "max_prompt_tokens", "context_window"),
    ),
    "unknown_pool": Code(
        status=HTTPStatus.BAD_REQUEST,
        meaning="No pool of this name is open to you.",
        advice="Take a `slug` from `GET /api/v1/pools`, or name no pool.",
        members=("slug",),
    ),
    "not_authenticated": Code(
        status=HTTPStatus.UNAUTHORIZED,
        meaning="The request brings no credentials.",
        advice="Send `Authorization: Bearer` with an API key or an access token, or log in.",
    ),
    "invalid_api_key": Code(
        status=HTTPStatus.UNAUTHORIZED,
        meaning="The API key is unknown or revoked, or its account is suspended; which, is not told.",
        advice="Make a new key on the account page.",
    ),
    "invalid_token": Code(
        status=HTTPStatus.UNAUTHORIZED,
        meaning="The access or refresh token is not valid, or no longer: it expired, or its session has ended.",
        advice="Refresh an access token once; if that is refused as well, log in again.",
    ),
    "second_factor_required": Code(
        status=HTTPStatus.UNAUTHORIZED,
        meaning="The password was right; the account also wants a code of its second factor.",
        advice="Send the code to `auth/2fa/authenticate` with the session token that came along.",
    ),
    "email_unverified": Code(
        status=HTTPStatus.UNAUTHORIZED,
        meaning="The e-mail address must be confirmed before anybody can log in.",
        advice="Follow the link in the mail, or send its key to `auth/email/verify`.",
    ),
    "reauthentication_required": Code(
        status=HTTPStatus.UNAUTHORIZED,
        meaning="You are logged in, and this wants a fresh proof that it is you.",
        advice="Send the password to `auth/reauthenticate`, or a code to `auth/2fa/reauthenticate`, and try again.",
    ),
    "permission_denied": Code(
        status=HTTPStatus.FORBIDDEN,
        meaning="You may not do this; most often a browser session's request without its CSRF token.",
        advice="With a session cookie, send the token as `X-CSRFToken` with everything but GET.",
    ),
    "registration_closed": Code(
        status=HTTPStatus.FORBIDDEN,
        meaning="Nobody can open an account here at present.",
        advice="Ask whoever runs the site.",
    ),
    "not_found": Code(
        status=HTTPStatus.NOT_FOUND,
        meaning="There is nothing at this address, or it is not yours: the two look the same.",
        advice="Check the id and the account. What was deleted does not come back.",
    ),
    "method_not_allowed": Code(
        status=HTTPStatus.METHOD_NOT_ALLOWED,
        meaning="The address does not take this method.",
        advice="The header `Allow` lists those it takes.",
    ),
    "not_acceptable": Code(
        status=HTTPStatus.NOT_ACCEPTABLE,
        meaning="The header `Accept` leaves no format that the route can give.",
        advice="Ask for `application/json`; for events, `text/event-stream`.",
    ),
    "chat_busy": Code(
        status=HTTPStatus.CONFLICT,
        meaning="An answer is still under way in this chat, which takes one message at a time.",
        advice="Follow or cancel the run that `run_id` names, then send again.",
        members=("run_id",),
    ),
    "not_retryable": Code(
        status=HTTPStatus.CONFLICT,
        meaning="Only an answer that was stopped, broke off or failed can be asked for again.",
        advice="Read the run, whose status is `run_status`; to ask once more, send a new message.",
        members=("run_status",),
    ),
    "not_last_turn": Code(
        status=HTTPStatus.CONFLICT,
        meaning="The chat has gone on since: an answer that others build upon is not replaced.",
        advice="Send a new message instead.",
    ),
    "turn_conflict": Code(
        status=HTTPStatus.CONFLICT,
        meaning="This `client_turn_id` stands for another content, pool or maximum in this chat already.",
        advice="Send what was sent before to get its run again, or take a new id for a new message.",
        members=("client_turn_id",),
    ),
    "conflict": Code(
        status=HTTPStatus.CONFLICT,
        meaning="This does not fit what went before: logging in while logged in, or a step that is not due.",
        advice="Ask `auth/session` where you stand.",
    ),
    "session_ended": Code(
        status=HTTPStatus.GONE,
        meaning="The session token names no living session.",
        advice="Forget it and log in again.",
    ),
    "too_large": Code(
        status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        meaning="The body is larger than the route reads: 5,000,000 bytes, or 20,000 below `/api/auth/`.",
        advice="Send less.",
    ),
    "unsupported_media_type": Code(
        status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        meaning="The body is of another type than JSON.",
        advice="Send JSON with `Content-Type: application/json`.",
    ),
    "blocked": Code(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        meaning="The site's moderation refuses the message. Nothing was stored.",
        advice="`reason` says why. Send something else.",
        members=("reason",),
    ),
    "template_refused": Code(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        meaning="The model's own chat template refuses the order of these messages.",
        advice="Begin a new chat, or choose another pool.",
    ),
    "limit_reached": Code(
        status=HTTPStatus.TOO_MANY_REQUESTS,
        meaning="A limit of your plan is reached: `limit` names it, `maximum` is its size, `remaining` is too little.",
        advice="Wait `retry_after` seconds; with `resets_at` null, until one of your answers ends. Nothing was stored.",
        members=("limit", "maximum", "remaining", "retry_after", "resets_at"),
    ),
    "throttled": Code(
        status=HTTPStatus.TOO_MANY_REQUESTS,
        meaning="Too many requests or attempts. For requests to `/api/v1`, `limit` names the limit.",
        advice="Wait `retry_after` seconds; `RateLimit` on earlier answers shows it coming.",
        members=("limit", "maximum", "remaining", "retry_after"),
    ),
    "unavailable": Code(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        meaning="No answer can be generated at the moment: a part of the site is away.",
        advice="Send the same request again after `retry_after` seconds; with its `client_turn_id` it counts once.",
        members=("reason", "retry_after"),
    ),
    "pool_full": Code(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        meaning="We are full: the pool that `pool` names has no place for the message, nor has a smaller model. "
        "`reason` is `full`, `shed_free` (no messages of free plans for now) or `drain` (none at all for now).",
        advice="Send the same request again after `retry_after` seconds, or to another pool. Nothing was stored. "
        "`wait_seconds` is how long it would have waited, null where nobody knows.",
        members=("pool", "reason", "wait_seconds", "retry_after"),
    ),
    "maintenance": Code(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        meaning="The site is being maintained: nothing new is begun, while reading and answers under way go on.",
        advice="Send the same request again after `retry_after` seconds; `until`, if set, is when it should end.",
        members=("until", "retry_after"),
    ),
    "internal_error": Code(
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        meaning="A mistake of ours.",
        advice="Try once more. If it stays, tell whoever runs the site the `request_id`, which finds it in the log.",
    ),
    "refused": Code(
        status=None,
        meaning="A step below `/api/auth/` was refused for a reason without a code of its own.",
        advice="Go by the status and by `errors`.",
        members=("errors",),
    ),
}
