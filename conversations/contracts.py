"""What conversations hands out: frozen values, no Django."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from inference.contracts import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """A message as its chat's owner may see it. `degraded`: a smaller model answered than was asked for."""

    id: UUID
    chat_id: UUID
    seq: int
    role: str
    content: str
    state: str
    code: str
    degraded: bool
    run_id: UUID
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A turn that was accepted, now (`created`) or by an earlier request with the same client_turn_id."""

    run: RunInfo
    message: MessageInfo
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """A run that is answered anew, by this request (`created`) or by an earlier one."""

    run: RunInfo
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """What the site says to everybody. In `maintenance` nothing new begins, expectedly `until` then."""

    text: str
    severity: str
    maintenance: bool
    until: datetime | None
