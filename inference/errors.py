"""What can go wrong in inference. Class = cause, attributes = data."""

from datetime import datetime
from uuid import UUID


class InferenceError(Exception):
    """Base of inference's errors."""


class RunNotFound(InferenceError):
    """No such run of this owner."""


class PoolNotFound(InferenceError):
    """No pool with this slug is open to the user."""

    def __init__(self, *, slug: str) -> None:
        super().__init__(f"unknown pool {slug!r}")
        self.slug = slug


class ChatTemplateRefused(InferenceError):
    """The model's own template rejects this sequence of messages (roles out of order, say)."""


class ChatBusy(InferenceError):
    """The chat has an active run already."""

    def __init__(self, *, run_id: UUID) -> None:
        super().__init__("the chat has an active run")
        self.run_id = run_id


_LIMITS = {
    "concurrent_runs": "Of your answers {maximum:,} may be under way at a time, and as many are.",
    "messages_per_hour": "You may send {maximum:,} messages within 60 minutes, and have.",
    "token_budget": "Of your {maximum:,} tokens {remaining:,} are left: too few for this message and an answer.",
}


class AdmissionRefused(InferenceError):
    """The user is at a limit of their own: concurrent_runs, messages_per_hour or token_budget.

    `remaining` of the `maximum` are left: too few. `retry_after` is in seconds; `resets_at` is when the limit lets this
    turn in by itself, None where that needs one of the user's answers to end.
    """

    def __init__(
        self, *, limit: str, maximum: int, retry_after: int, remaining: int = 0, resets_at: datetime | None = None
    ) -> None:
        super().__init__(_LIMITS[limit].format(maximum=maximum, remaining=remaining))
        self.limit = limit
        self.maximum = maximum
        self.remaining = remaining
        self.retry_after = retry_after
        self.resets_at = resets_at


class PromptNotRebuilt(InferenceError):
    """The prompt that a run was accepted with cannot be had any more; `reason` says why."""

    def __init__(self, *, run_id: UUID, reason: str) -> None:
        super().__init__(f"the prompt of run {run_id} cannot be rebuilt: {reason}")
        self.run_id = run_id
        self.reason = reason


class HoldTooSmall(InferenceError):
    """The turn was admitted with a shorter prompt by another request: what is held leaves no room for an answer."""


class ServiceUnavailable(InferenceError):
    """Nothing can serve a run right now: Redis or every worker of the pool is away. `retry_after` in seconds."""

    def __init__(self, *, reason: str, retry_after: int = 5) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class NoWorkerAlive(ServiceUnavailable):
    """No worker of the pool is alive."""

    def __init__(self) -> None:
        super().__init__(reason="no worker can answer at the moment")


_FULL = {
    "full": "every place is taken",
    "shed_free": "it takes no messages of free plans for now",
    "drain": "it takes no new messages for now",
}


class PoolFull(InferenceError):
    """A pool has no place for this turn: `reason` is full, shed_free or drain.

    `wait_seconds` is how long it would have waited, as far as known; `retry_after` in seconds.
    """

    def __init__(self, *, pool: str, reason: str, wait_s: int | None = None, retry_after: int = 5) -> None:
        super().__init__(f"pool {pool!r}: {_FULL[reason]}")
        self.pool = pool
        self.reason = reason
        self.wait_seconds = wait_s
        self.retry_after = retry_after
