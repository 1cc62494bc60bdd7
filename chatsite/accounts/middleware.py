"""What accounts do with every request: note that its session is in use, say how far its account is from its limit."""

from collections.abc import Callable

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from chatsite import rate_limits
from chatsite.accounts import devices, throttling


class SeenSessions:
    """Looks only at sessions that were read anyway, so that a request without one costs nothing."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        session = request.session
        if session.accessed and SESSION_KEY in session and session.session_key:
            devices.note_seen(session_key=session.session_key, now=timezone.now())
        return response


class RateLimitFields:
    """On every answer to a request that was counted; a refusal already names the limit that it is about."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        standing = throttling.standing_of(request)
        if standing is not None and "RateLimit" not in response.headers:
            fields = rate_limits.fields(
                limit=standing.limit,
                maximum=standing.maximum,
                remaining=standing.remaining,
                reset_s=standing.reset_s,
                window_s=throttling.WINDOW_S,
            )
            for name, value in fields.items():
                response.headers[name] = value
        return response
