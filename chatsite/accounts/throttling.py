"""How often one account or one address may ask."""

import time

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


class RequestRate(BaseThrottle):
    """Requests per minute of an account, and of an address with whatever accounts. A limit of 0 is none.

    Windows are whole minutes: one exchange with Redis counts both, where a sliding window would carry a list of times
    back and forth.
    """

    def allow_request(self, request: Request, view: object) -> bool:
        limits = {}
        if settings.API_REQUESTS_PER_MINUTE and request.user.is_authenticated:
            limits[f"account:{request.user.pk}"] = settings.API_REQUESTS_PER_MINUTE
        if settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS:
            limits[f"address:{source_of(request._request)}"] = settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS
        counts = _count(list(limits))
        return all(count <= limit for count, limit in zip(counts, limits.values(), strict=True))

    def wait(self) -> float:
        return _left()


def count_refusal(request: HttpRequest) -> None:
    """Note that a request brought bad credentials. Raises Throttled once its address did too often.

    Good credentials from there are still taken: only who guesses is slowed down.
    """
    if not settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS:
        return
    if _count([f"refused:{source_of(request)}"])[0] > REFUSALS_PER_MINUTE:
        raise Throttled(wait=_left())


def _count(keys: list[str]) -> list[int]:
    if not keys:
        return []
    window = int(time.time() // WINDOW_S)
    shared = caches["default"]
    assert isinstance(shared, SharedCache)
    return shared.hits([f"requests:{key}:{window}" for key in keys], seconds=2 * WINDOW_S)


def _left() -> float:
    return WINDOW_S - time.time() % WINDOW_S
