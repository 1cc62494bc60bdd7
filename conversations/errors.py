"""What can go wrong in conversations. Class = cause, attributes = data."""

from datetime import datetime


class ConversationsError(Exception):
    """Base of conversations' errors."""


class ChatNotFound(ConversationsError):
    """No such chat of this owner."""


class InvalidRequest(ConversationsError):
    """A value breaks a rule; `field` names it, the message says which rule and limit."""

    def __init__(self, *, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class TooLong(ConversationsError):
    """The message does not fit the pool's window, whatever is left out. In tokens."""

    def __init__(self, *, prompt_tokens: int, max_prompt_tokens: int, context_window: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens; {max_prompt_tokens} fit the window of {context_window}"
        )
        self.prompt_tokens = prompt_tokens
        self.max_prompt_tokens = max_prompt_tokens
        self.context_window = context_window


class TurnConflict(ConversationsError):
    """This client_turn_id stands for another message already."""

    def __init__(self, *, client_turn_id: str) -> None:
        super().__init__("client_turn_id was used for another content, pool or max_output_tokens")
        self.client_turn_id = client_turn_id


class NotRetryable(ConversationsError):
    """The run ended as it should: only an answer that was stopped, broke off or failed can be asked for again."""

    def __init__(self, *, run_status: str) -> None:
        super().__init__(f"the run is {run_status}")
        self.run_status = run_status


class NotLastTurn(ConversationsError):
    """Something was sent in the chat since: an answer that others build upon is not replaced."""


class Blocked(ConversationsError):
    """The moderation hook refuses the message; nothing was stored."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Maintenance(ConversationsError):
    """The site is being maintained: nothing new begins, expectedly `until` then. `retry_after` is in seconds."""

    def __init__(self, *, text: str, until: datetime | None, retry_after: int) -> None:
        super().__init__(text)
        self.until = until
        self.retry_after = retry_after
