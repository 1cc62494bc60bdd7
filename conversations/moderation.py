"""The moderation hook: a backend may refuse a message before anything is stored."""

from collections.abc import Callable
from functools import cache
from uuid import UUID

from django.conf import settings
from django.utils.module_loading import import_string

from conversations.errors import Blocked

# (user id, content) → the reason for a refusal, or None.
Backend = Callable[[UUID, str], str | None]


def allow_all(user_id: UUID, content: str) -> str | None:
    """The default backend."""
    return None


@cache
def _backend(path: str) -> Backend:
    backend: Backend = import_string(path)
    return backend


def check(*, user_id: UUID, content: str) -> None:
    """Raise Blocked when the backend named by MODERATION_BACKEND refuses the message."""
    path = getattr(settings, "MODERATION_BACKEND", "conversations.moderation.allow_all")
    reason = _backend(path)(user_id, content)
    if reason is not None:
        raise Blocked(reason=reason)
