"""What can go wrong in inference. Class = cause, attributes = data."""

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


class AdmissionRefused(InferenceError):
    """The user is at a limit of their own."""

    def __init__(self, *, limit: str, maximum: int, retry_after: int) -> None:
        super().__init__(f"limit {limit} ({maximum}) is reached")
        self.limit = limit
        self.maximum = maximum
        self.retry_after = retry_after


class ServiceUnavailable(InferenceError):
    """Nothing can serve a run right now: Redis or every worker of the pool is away. `retry_after` in seconds."""

    def __init__(self, *, reason: str, retry_after: int = 5) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
