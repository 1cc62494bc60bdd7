"""Everything that one owner has here: stopping their answers, taking their content away, erasing it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from conversations import chats, selectors
from conversations.errors import ChatNotFound
from conversations.models import Message, Summary
from inference import api as inference
from inference.errors import RunNotFound


def awaits_answers(*, owner_id: UUID) -> bool:
    """Whether an answer, or a job, is under way in any of the owner's chats, deleted ones included."""
    return bool(inference.active_runs_of(owner_id=owner_id)) or inference.has_jobs(owner_id=owner_id)


def stop_answers(*, owner_id: UUID, now: datetime) -> int:
    """Stop every answer that the owner waits for, and what is done in the background; how many answers there were."""
    inference.cancel_jobs(owner_id=owner_id, now=now)
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


def chats_page(*, owner_id: UUID, after: UUID | None, limit: int) -> list[dict[str, Any]]:
    """The owner's next chats, without their messages, in the order of their `id`, each with its summary."""
    found = selectors.chats_of(owner_id=owner_id).order_by("id")
    if after is not None:
        found = found.filter(id__gt=after)
    chats = [dict(row) for row in found.values("id", "title", "pool", "created_at", "last_active_at")[:limit]]
    made = Summary.objects.filter(chat_id__in=[chat["id"] for chat in chats]).order_by("version")
    # The newest version says what the others said.
    newest: dict[Any, str] = dict(made.values_list("chat_id", "content"))
    return [chat | {"summary": newest.get(chat["id"])} for chat in chats]


def messages_page(*, chat_id: UUID, after: int | None, limit: int) -> list[dict[str, Any]]:
    """The next messages of a chat, oldest first, after one's `seq`. One that a retry is replacing is not among them."""
    found = Message.objects.filter(chat_id=chat_id, hidden=False, seq__gt=after or 0).order_by("seq")
    rows = found.values("id", "seq", "role", "content", "state", "code", "degraded", "run_id", "created_at")
    return [dict(row) for row in rows[:limit]]
