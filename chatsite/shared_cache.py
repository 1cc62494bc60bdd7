"""The cache: Redis while it answers, this process's memory while it does not.

It holds counts of attempts and requests. In Redis they hold for all processes together; without Redis each process
counts for itself, so that a limit is never lifted by an outage, and no page waits for a server that is gone. The
database would share them as well, but every API request would then take its write lock.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

import redis
import structlog
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.cache.backends.locmem import LocMemCache

log = structlog.get_logger(__name__)

# Seconds. Redis is on this machine or in the same network; waiting longer would be felt in every request.
TIMEOUT_S = 0.5
# How long memory serves before Redis is tried again: a dead server costs one wait in this time.
RETRY_S = 5.0

T = TypeVar("T")


class SharedCache(BaseCache):
    """LOCATION names the server: an address, a function that gives it, or "" for memory alone.

    Values must be JSON: whoever can write to Redis must not be able to run code here, as pickles would let them.
    """

    def __init__(self, location: str | Callable[[], str], params: dict[str, Any]) -> None:
        super().__init__(params)
        self._location = location
        self._memory = LocMemCache("chatsite", params)

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        def remotely(client: "redis.Redis") -> bool:
            return bool(client.set(name, json.dumps(value), nx=True, px=self._milliseconds(timeout)))

        name = self.make_and_validate_key(key, version)
        return self._either(remotely, lambda: self._memory.add(key, value, timeout, version))

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        def remotely(client: "redis.Redis") -> Any:
            found = client.get(name)
            return default if found is None else json.loads(found)

        name = self.make_and_validate_key(key, version)
        return self._either(remotely, lambda: self._memory.get(key, default, version))

    def set(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> None:
        name = self.make_and_validate_key(key, version)
        self._either(
            lambda client: client.set(name, json.dumps(value), px=self._milliseconds(timeout)),
            lambda: self._memory.set(key, value, timeout, version),
        )

    def delete(self, key: str, version: int | None = None) -> bool:
        name = self.make_and_validate_key(key, version)
        return self._either(lambda client: bool(client.delete(name)), lambda: bool(self._memory.delete(key, version)))

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        def remotely(client: "redis.Redis") -> bool:
            left = self._milliseconds(timeout)
            return bool(client.persist(name) if left is None else client.pexpire(name, left))

        name = self.make_and_validate_key(key, version)
        return self._either(remotely, lambda: bool(self._memory.touch(key, timeout, version)))

    def clear(self) -> None:
        """Forget what this process remembers. What is in Redis is also others', and expires."""
        self._memory.clear()

    def hits(self, keys: Sequence[str], *, seconds: int) -> list[int]:
        """Count one more for each key, atomically and in one exchange; the counts so far. They end with their keys,
        `seconds` after the last hit."""

        def remotely(client: "redis.Redis") -> list[int]:
            with client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.incr(name)
                    pipe.expire(name, seconds)
                return [int(count) for count in pipe.execute()[::2]]

        def here() -> list[int]:
            counts = []
            with _counting:
                for key in keys:
                    self._memory.add(key, 0, seconds)
                    counts.append(int(self._memory.incr(key)))
            return counts

        names = [self.make_and_validate_key(key) for key in keys]
        return self._either(remotely, here)

    def _either(self, remotely: Callable[["redis.Redis"], T], here: Callable[[], T]) -> T:
        if self._location and not _outage.lasts():
            try:
                url = self._location() if callable(self._location) else self._location
                return remotely(_client(url))
            # RedisUnknown is an OSError: no server is named at all.
            except (redis.RedisError, OSError) as error:
                _outage.begin(error)
        return here()

    def _milliseconds(self, timeout: Any) -> int | None:
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        return None if timeout is None else max(1, int(float(timeout) * 1000))


class _Outage:
    """Whether Redis was found away a moment ago, for all threads."""

    def __init__(self) -> None:
        self._until = 0.0

    def lasts(self) -> bool:
        return time.monotonic() < self._until

    def begin(self, error: Exception) -> None:
        self._until = time.monotonic() + RETRY_S
        log.warning("cache_without_redis", error=str(error), seconds=RETRY_S)

    def end(self) -> None:
        self._until = 0.0


_outage = _Outage()
_counting = Lock()


@lru_cache(maxsize=4)
def _client(url: str) -> "redis.Redis":
    """One client per server for all threads: Django makes a cache object per thread, that is per request."""
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
