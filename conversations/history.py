"""Deleting chats that their owners' plans keep no longer, and what a broken-off deletion has left."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from billing import api as billing
from conversations import chats
from conversations.models import Chat

log = structlog.get_logger(__name__)

# Chats looked at in one step: some seconds where all of them go.
STEP = 200
# A deletion takes moments, and one whose answer is still under way ends with it.
_LEFT = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How many chats were deleted, and after which to go on; None = that was all."""

    deleted: int
    after: UUID | None


def step(*, after: UUID | None, now: datetime) -> Step:
    """Look at the next chats, in the order of their ids. Doing it again deletes nothing more."""
    shortest = billing.shortest_history()
    if shortest is None:
        return Step(deleted=0, after=None)
    unused = Chat.objects.filter(deleted_at__isnull=True, last_active_at__lt=now - timedelta(days=shortest))
    if after is not None:
        unused = unused.filter(id__gt=after)
    found = list(unused.order_by("id").values_list("id", "owner_id")[:STEP])
    days_of = billing.history_days_of(user_ids={owner_id for _, owner_id in found}, now=now)
    deleted = 0
    for chat_id, owner_id in found:
        days = days_of[owner_id]
        if days is not None:
            deleted += _delete_unused(owner_id=owner_id, chat_id=chat_id, since=now - timedelta(days=days), now=now)
    return Step(deleted=deleted, after=found[-1][0] if len(found) == STEP else None)


def _delete_unused(*, owner_id: UUID, chat_id: UUID, since: datetime, now: datetime) -> bool:
    """One that cannot be deleted must not keep the others from it; it is looked at again tomorrow."""
    try:
        return chats.delete_unused(owner_id=owner_id, chat_id=chat_id, since=since, now=now)
    except Exception:
        log.exception("not_expired", chat_id=str(chat_id))
        return False


def finish_deletions(*, now: datetime) -> int:
    """Erase deleted chats whose content is still there because a process or the database went away; how many."""
    left = Chat.objects.filter(deleted_at__lt=now - _LEFT).order_by("deleted_at")
    return sum(chats.purge(chat_id=chat_id, now=now) for chat_id in list(left.values_list("id", flat=True)[:STEP]))
