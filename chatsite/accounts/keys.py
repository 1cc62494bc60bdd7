"""API keys: making, revoking, and recognising them."""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from chatsite.accounts.errors import InvalidApiKey
from chatsite.accounts.models import ApiKey, User

PREFIX = "sk-"
# 32 random bytes are 43 characters of URL-safe base64: no dictionary or rainbow table reaches them, so that
# a plain SHA-256 is enough, and one key costs microseconds to check where a password hash costs 0.3 s.
_SECRET_BYTES = 32
_FORMAT = re.compile(r"sk-[A-Za-z0-9_-]{43}", re.ASCII)
_SHOWN = len(PREFIX) + 6
USE_RESOLUTION = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key just made: `secret` exists nowhere else."""

    api_key: ApiKey
    secret: str = field(repr=False)


def create(*, user: User, name: str, now: datetime) -> NewKey:
    """Make a key for `user`, which can be shown this once."""
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    api_key = ApiKey.objects.create(user=user, name=name, prefix=secret[:_SHOWN], sha256=_hash(secret), created_at=now)
    return NewKey(api_key=api_key, secret=secret)


def revoke(*, api_key: ApiKey, now: datetime) -> bool:
    """End the key's validity at once. False when it had ended before: the first time stays."""
    return ApiKey.objects.filter(pk=api_key.pk, revoked_at=None).update(revoked_at=now) == 1


def authenticate(*, secret: str, now: datetime) -> ApiKey:
    """The valid key of an active user, its `user` loaded.

    Notes its use, at most once a minute, so that a busy client does not cost a write per request.
    Raises InvalidApiKey, which does not tell why: unknown, revoked and suspended look the same.
    """
    if not _FORMAT.fullmatch(secret):
        raise InvalidApiKey
    api_key = (
        ApiKey.objects.select_related("user")
        .filter(sha256=_hash(secret), revoked_at=None, user__is_active=True)
        .first()
    )
    if api_key is None:
        raise InvalidApiKey
    if api_key.last_used_at is None or now - api_key.last_used_at >= USE_RESOLUTION:
        stale = Q(last_used_at=None) | Q(last_used_at__lte=now - USE_RESOLUTION)
        ApiKey.objects.filter(stale, pk=api_key.pk).update(last_used_at=now)
    return api_key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
