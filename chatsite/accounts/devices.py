"""Where a user is logged in: browsers and mobile clients, each with a session of its own."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.db.models import F

from chatsite.accounts.models import User

SEEN_RESOLUTION = timedelta(minutes=1)
# Looked for in this order: most browsers also call themselves Safari or Chrome.
_BROWSERS = {
    "Edg/": "Edge",
    "OPR/": "Opera",
    "Firefox/": "Firefox",
    "Chrome/": "Chrome",
    "Safari/": "Safari",
    "curl/": "curl",
}
_SYSTEMS = {
    "Android": "Android",
    "iPhone": "iPhone",
    "iPad": "iPad",
    "Windows": "Windows",
    "Mac OS": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One session as its owner sees it. `last_seen_at` is exact to a minute."""

    id: int
    name: str
    user_agent: str
    address: str
    created_at: datetime
    last_seen_at: datetime
    is_current: bool


def of_user(*, user: User, current_key: str | None) -> list[Device]:
    """The user's living sessions, the current one first, then last seen first."""
    found = [
        Device(
            id=session.pk,
            name=describe(session.user_agent),
            user_agent=session.user_agent,
            address=session.ip,
            created_at=session.created_at,
            last_seen_at=session.last_seen_at,
            is_current=session.session_key == current_key,
        )
        for session in UserSession.objects.purge_and_list(user)
    ]
    return sorted(found, key=lambda device: (device.is_current, device.last_seen_at), reverse=True)


def end(*, user: User, device_id: int) -> bool:
    """Log one of the user's sessions out, at once: its cookie and its tokens are refused from now on."""
    session = UserSession.objects.filter(user=user, pk=device_id).first()
    if session is None:
        return False
    session.end()
    return True


def end_all(*, user: User, but_key: str | None = None) -> int:
    """Log all of the user's sessions out but the one of this key.

    Without an exception, those too that are not listed because their row is gone.
    """
    if but_key is None:
        User.objects.filter(pk=user.pk).update(session_generation=F("session_generation") + 1)
    sessions = UserSession.objects.filter(user=user)
    if but_key is not None:
        sessions = sessions.exclude(session_key=but_key)
    ended = list(sessions)
    for session in ended:
        session.end()
    return len(ended)


def note_seen(*, session_key: str, now: datetime) -> None:
    """Note that a session is in use, at most once a minute."""
    # Hashed: a key alone lets its holder in, and caches are easier to look into than the database.
    mark = "seen:" + hashlib.sha256(session_key.encode()).hexdigest()
    if cache.add(mark, 1, SEEN_RESOLUTION.total_seconds()):
        UserSession.objects.filter(session_key=session_key, last_seen_at__lt=now).update(last_seen_at=now)


def describe(user_agent: str) -> str:
    """`Firefox on Linux`, as far as a client says what it is."""
    browser = next((name for mark, name in _BROWSERS.items() if mark in user_agent), "")
    system = next((name for mark, name in _SYSTEMS.items() if mark in user_agent), "")
    match browser, system:
        case "", "":
            return user_agent.partition("/")[0][:40] or "Unknown client"
        case _, "":
            return browser
        case "", _:
            return system
    return f"{browser} on {system}"
