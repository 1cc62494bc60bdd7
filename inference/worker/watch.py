"""Tells when something that should move on stands still."""


class Watch:
    """Notices that a counter stands still for too long, while somebody looks.

    Time counts only as far as looks cover it: a process that was stopped, or a machine that slept, wakes without a
    verdict about the time in between.
    """

    def __init__(self, *, bound_s: float) -> None:
        self._bound_s = bound_s
        self._at: int | None = None
        self._still_s = 0.0
        self._looked: float | None = None
        self._told = False
        self.is_news = False

    def stands_still(self, *, at: int, now: float) -> bool:
        """Look: whether the counter has stood `at` this value for longer than the bound. `now` in monotonic seconds."""
        since = 0.0 if self._looked is None else min(now - self._looked, 1.0)
        self._looked = now
        if at != self._at:
            self._at, self._still_s, self._told = at, 0.0, False
        else:
            self._still_s += since
        still = self._still_s > self._bound_s
        self.is_news = still and not self._told
        self._told = self._told or still
        return still

    def reset(self) -> None:
        """There is nothing to count at the moment."""
        self._at = None
