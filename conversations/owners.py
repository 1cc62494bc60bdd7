"""Everything that one owner has here: stopping their answers, taking their content away, erasing it."""

from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

from conversations import chats, selectors
from conversations.contracts import ChatContent
from conversations.errors import ChatNotFound
from inference import api as inference
from inference.errors import RunNotFound


def awaits_answers(*, owner_id: UUID) -> bool:
    """Whether an answer is under way in any of the owner's chats, deleted ones included."""
    return bool(inference.active_runs_of(owner_id=owner_id))


def stop_answers(*, owner_id: UUID, now: datetime) -> int:
    """Stop every answer that the owner waits for; how many there were."""
    running = inference.active_runs_of(owner_id=owner_id)
    for run_id in running:
        try:
            inference.cancel(owner_id=owner_id, run_id=run_id, now=now)
        except RunNotFound:
            # Erased with its chat since it was listed.
            continue
    return len(running)


def erase(*, owner_id: UUID, now: datetime) -> None:
    """Delete every chat of the owner, stopping answers first: as deleting each would."""
    stop_answers(owner_id=owner_id, now=now)
    for chat_id in list(selectors.chats_of(owner_id=owner_id).values_list("id", flat=True)):
        try:
            chats.delete(owner_id=owner_id, chat_id=chat_id, now=now)
        except ChatNotFound:
            # Deleted elsewhere since it was listed.
            continue


def content_of(*, owner_id: UUID) -> Iterator[ChatContent]:
    """The owner's chats with their messages, last active first, one chat in memory at a time."""
    for chat in selectors.chats_of(owner_id=owner_id).iterator(chunk_size=100):
        yield ChatContent(
            id=chat.id,
            title=chat.title,
            pool=chat.pool,
            created_at=chat.created_at,
            last_active_at=chat.last_active_at,
            messages=[selectors.message_info(message) for message in selectors.messages_of(chat=chat).order_by("seq")],
        )
