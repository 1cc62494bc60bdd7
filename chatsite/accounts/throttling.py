"""How often one account or one address may ask."""

import math
import time
from dataclasses import dataclass

from django.conf import settings
from django.core.cache import caches
from django.http import HttpRequest
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from chatsite.accounts.addresses import source_of
from chatsite.shared_cache import SharedCache

WINDOW_S = 60
# A client that tries keys or tokens at random; a forgotten one in a loop as well.
REFUSALS_PER_MINUTE = 60
# allauth does not tell when a limit ends: what its longer windows need at most, where it is worth waiting for.
RETRY_AFTER_S = 300
ACCOUNT_LIMIT = "requests_per_minute"
ADDRESS_LIMIT = "requests_per_minute_per_address"
REFUSAL_LIMIT = "refused_credentials_per_minute"


class RequestLimitReached(Throttled):
    """Too many requests in this window, which ends in `wait` seconds; `limit` names what was counted."""

    def __init__(self, *, limit: str, maximum: int) -> None:
        super().__init__(wait=_left())
        self.limit = limit
        self.maximum = maximum
        self.window_s = WINDOW_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far an account is into a window of requests, the present one counted; `reset_s` is when that ends."""

    limit: str
    maximum: int
    used: int
    reset_s: int

    @property
    def remaining(self) -> int:
        return max(0, self.maximum - self.used)


class RequestRate(BaseThrottle):
    """Requests per minute of an account, and of an address with whatever accounts. A limit of 0 is none.

    Windows are whole minutes: one exchange with Redis counts both, where a sliding window would carry a list of times
    back and forth.
    """

    def allow_request(self, request: Request, view: object) -> bool:
        """Raises RequestLimitReached, and notes where the account stands on the request."""
        limits = {}
        if settings.API_REQUESTS_PER_MINUTE and request.user.is_authenticated:
            limits[ACCOUNT_LIMIT] = (f"account:{request.user.pk}", settings.API_REQUESTS_PER_MINUTE)
        if settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS:
            source = source_of(request._request)
            limits[ADDRESS_LIMIT] = (f"address:{source}", settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS)
        counts = _count([key for key, _ in limits.values()])
        for (limit, (_, maximum)), count in zip(limits.items(), counts, strict=True):
            if count > maximum:
                raise RequestLimitReached(limit=limit, maximum=maximum)
            if limit == ACCOUNT_LIMIT:
                standing = Standing(limit=limit, maximum=maximum, used=count, reset_s=math.ceil(_left()))
                request._request.standing = standing  # type: ignore[attr-defined]
        return True


def standing_of(request: HttpRequest) -> Standing | None:
    """Where the request's account stands; None when nothing was counted."""
    found: Standing | None = getattr(request, "standing", None)
    return found


def count_refusal(request: HttpRequest) -> None:
    """Note that a request brought bad credentials. Raises RequestLimitReached once its address did too often.

    Good credentials from there are still taken: only who guesses is slowed down.
    """
    if not settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS:
        return
    if _count([f"refused:{source_of(request)}"])[0] > REFUSALS_PER_MINUTE:
        raise RequestLimitReached(limit=REFUSAL_LIMIT, maximum=REFUSALS_PER_MINUTE)


def _count(keys: list[str]) -> list[int]:
    if not keys:
        return []
    window = int(time.time() // WINDOW_S)
    shared = caches["default"]
    assert isinstance(shared, SharedCache)
    return shared.hits([f"requests:{key}:{window}" for key in keys], seconds=2 * WINDOW_S)


def _left() -> float:
    return WINDOW_S - time.time() % WINDOW_S
