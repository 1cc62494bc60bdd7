"""Whether anybody follows an answer, and how long one that nobody follows may go on."""

from dataclasses import dataclass

LOOK_S = 1.0
# Nobody counts as gone before: a page tries again at most 15 s after it lost its connection, and a web process that
# is replaced, or a Redis that fails over, is back sooner.
GRACE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwatched:
    """What becomes of an answer that nobody follows: it ends after so many more tokens, or so many seconds.

    At most one of them is set; with neither the answer goes on to its end.
    """

    tokens: int | None = None
    seconds: int | None = None

    @property
    def is_bounded(self) -> bool:
        return self.tokens is not None or self.seconds is not None


TO_THE_END = Unwatched()


class Absence:
    """How long an answer has had no follower, without a break, and how much of it was made since.

    Time counts only as far as looks cover it, and only while Redis tells: a process that was stopped, or one that
    could not see, wakes without a verdict about the time in between.
    """

    def __init__(self, *, allowed: Unwatched) -> None:
        self._allowed = allowed
        self._looked: float | None = None
        self._absent_s = 0.0
        self._tokens = 0

    def look(self, *, followers: int | None, tokens: int, now: float) -> None:
        """Note how many follow; None = nobody knows. `tokens` of the answer so far, `now` in monotonic seconds."""
        if followers or followers is None:
            self._looked = None
        elif self._looked is None:
            self._looked, self._absent_s, self._tokens = now, 0.0, tokens
        else:
            self._absent_s += min(now - self._looked, 2 * LOOK_S)
            self._looked = now

    def is_over(self, *, tokens: int) -> bool:
        """Whether the answer, of so many tokens by now, has gone on for long enough."""
        if self._looked is None or self._absent_s < GRACE_S:
            return False
        if self._allowed.tokens is not None:
            return tokens - self._tokens >= self._allowed.tokens
        return self._allowed.seconds is not None and self._absent_s >= self._allowed.seconds
