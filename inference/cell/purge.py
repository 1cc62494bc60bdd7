"""Keys that dead incarnations of Redis left behind, where a file or a replica brought them back, or another release."""

import threading

import redis

from inference.cell.keys import Keys
from inference.cell.link import Reply

# Keys looked at in one step: about a tenth of a millisecond of the server's time.
STEP = 500


class Purge:
    """Walks once through all keys of each incarnation's server, a step at a time, and drops what nobody reads.

    Every key names its incarnation and every connection is bound to one, so what names another is garbage. Nothing adds
    to it while an incarnation lasts: one walk is enough. Thread-safe: one thread walks at a time.
    """

    def __init__(self) -> None:
        self._incarnation: str | None = None
        self._cursor = 0
        self._done = False
        self._lock = threading.Lock()

    def step(self, client: redis.Redis, keys: Keys) -> int:
        """Look at some more keys; how many were dropped. None while another thread is at it."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            return self._step(client, keys)
        finally:
            self._lock.release()

    def _step(self, client: redis.Redis, keys: Keys) -> int:
        if self._incarnation != keys.incarnation:
            self._incarnation, self._cursor, self._done = keys.incarnation, 0, False
        if self._done:
            return 0
        reply: Reply = client.scan(cursor=self._cursor, match=f"{keys.cell}*", count=STEP)
        self._cursor, found = reply
        self._done = self._cursor == 0
        dead = [name for name in found if not name.startswith(keys.prefix)]
        if dead:
            client.unlink(*dead)
        return len(dead)
