"""What accounts do with every request to a page: note that its session is in use."""

from collections.abc import Callable

from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from chatsite.accounts import devices


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
