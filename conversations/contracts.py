"""What conversations hands out: frozen values, no Django."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from inference.contracts import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """A message as its chat's owner may see it."""

    id: UUID
    chat_id: UUID
    seq: int
    role: str
    content: str
    state: str
    run_id: UUID
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A turn that was accepted, now (`created`) or by an earlier request with the same client_turn_id."""

    run: RunInfo
    message: MessageInfo
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatContent:
    """A chat with all its messages, oldest first, as its owner may take it away."""

    id: UUID
    title: str
    pool: str
    created_at: datetime
    last_active_at: datetime
    messages: list[MessageInfo]
