"""Writing chats: create, rename, delete. And the answers that runs leave in them."""

import contextlib
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from conversations import context, context_cache, jobs, limits, pools, reasoning, selectors
from conversations.errors import ChatNotFound
from conversations.models import Chat, Job, Message, Turn
from inference import api as inference
from inference.contracts import SettledRun
from inference.errors import RunNotFound

_STATES = {
    "done": Message.State.COMPLETE,
    "cancelled": Message.State.STOPPED,
    "interrupted": Message.State.INTERRUPTED,
    "failed": Message.State.FAILED,
}


def create(*, owner_id: UUID, title: str, pool: str | None, now: datetime) -> Chat:
    """Open a chat. Raises InvalidRequest, inference's PoolNotFound."""
    limits.check_title(title)
    limits.check_pool(pool)
    chosen = pools.chosen(owner_id=owner_id, slug=pool, now=now)
    return Chat.objects.create(
        owner_id=owner_id,
        title=title.strip(),
        title_by=_given(title),
        pool=chosen.slug,
        created_at=now,
        last_active_at=now,
    )


def _given(title: str) -> str:
    """Whose a title is that the owner has given: who gives a blank one leaves it to us."""
    return Chat.TitleBy.OWNER if title.strip() else ""


def change(*, owner_id: UUID, chat_id: UUID, title: str | None, pool: str | None, now: datetime) -> Chat:
    """Rename a chat or let another pool answer in it; None leaves a value. Raises as `create`, and ChatNotFound."""
    changes = {}
    if title is not None:
        limits.check_title(title)
        changes["title"], changes["title_by"] = title.strip(), _given(title)
    if pool is not None:
        limits.check_pool(pool)
    chat = selectors.chat_for(owner_id=owner_id, chat_id=chat_id)
    if pool is not None:
        changes["pool"] = pools.chosen(owner_id=owner_id, slug=pool, now=now).slug
    # Only what was asked for: another device may change the rest, or delete the chat, at the same time.
    if changes and not Chat.objects.filter(id=chat.id, deleted_at__isnull=True).update(**changes):
        raise ChatNotFound
    for name, value in changes.items():
        setattr(chat, name, value)
    return chat


def delete(*, owner_id: UUID, chat_id: UUID, now: datetime) -> None:
    """Remove a chat. It is gone at once; an answer in progress is stopped first, the content goes when it ended.

    Raises ChatNotFound.
    """
    chat = selectors.chat_for(owner_id=owner_id, chat_id=chat_id)
    Chat.objects.filter(id=chat.id, deleted_at__isnull=True).update(deleted_at=now)
    _erase(owner_id=owner_id, chat_id=chat.id, now=now)


def delete_unused(*, owner_id: UUID, chat_id: UUID, since: datetime, now: datetime) -> bool:
    """Remove a chat, as `delete` does, in which nothing was asked or answered since then. False when something was.

    Whoever accepts a message locks the chat and makes it a used one: of the two, the second finds what the first did.
    """
    unused = Chat.objects.filter(id=chat_id, deleted_at__isnull=True, last_active_at__lt=since)
    if inference.active_run(chat_id=chat_id) is not None or not unused.update(deleted_at=now):
        return False
    _erase(owner_id=owner_id, chat_id=chat_id, now=now)
    return True


def _erase(*, owner_id: UUID, chat_id: UUID, now: datetime) -> None:
    inference.cancel_jobs(chat_id=chat_id, now=now)
    running = inference.active_run(chat_id=chat_id)
    if running is not None:
        # A run that ends here takes the chat, and itself, along: then there is nothing left to look at.
        with contextlib.suppress(RunNotFound):
            inference.cancel(owner_id=owner_id, run_id=running, now=now)
    purge(chat_id=chat_id, now=now)


def purge(*, chat_id: UUID, now: datetime) -> bool:
    """Erase a deleted chat's content. False while an answer or a job of it is still in progress: its end does it."""
    context_cache.forget(chat_id=chat_id)
    with transaction.atomic():
        chat = Chat.objects.select_for_update().filter(id=chat_id, deleted_at__isnull=False).first()
        if chat is None or inference.active_run(chat_id=chat_id) is not None or inference.has_jobs(chat_id=chat_id):
            return False
        inference.forget_chat(chat_id=chat_id, now=now)
        chat.delete()
        return True


def store_answer(settled: SettledRun) -> None:
    """Store a settled run's answer in its chat; call it inside the settlement's transaction.

    A chat that was deleted meanwhile takes no answer: it is erased after the commit.
    """
    turn = Turn.objects.filter(run_id=settled.run_id).first()
    if turn is None:
        # Begun by somebody else than a turn.
        return
    chat = Chat.objects.select_for_update().get(id=turn.chat_id)
    if chat.deleted_at is not None:
        # Robust: what follows the settlement must not fail with it.
        transaction.on_commit(lambda: purge(chat_id=settled.chat_id, now=settled.finished_at), robust=True)
        return
    state = _STATES[settled.status]
    opens_reasoning = "opens_reasoning" in settled.context
    kept = 1.0
    if "drops_reasoning" in settled.context:
        kept = reasoning.part_left(settled.text, opened=opens_reasoning)
    token_count = round(kept * settled.output_tokens)
    answer: dict[str, Any] = {
        "content": settled.text,
        "state": state,
        "code": settled.error_code,
        "degraded": settled.degraded,
        "token_count": token_count,
        "token_ids": settled.token_ids or None,
        "token_model": settled.model if settled.token_ids else "",
        "opens_reasoning": opens_reasoning,
    }
    replaced = Message.objects.filter(id=settled.message_id).update(hidden=False, **answer)
    if not replaced:
        chat.last_seq += 1
        Message.objects.create(
            id=settled.message_id,
            chat=chat,
            turn=turn,
            seq=chat.last_seq,
            role=Message.Role.ASSISTANT,
            run_id=settled.run_id,
            created_at=settled.finished_at,
            **answer,
        )
    chat.revision += 1
    chat.last_active_at = settled.finished_at
    chat.save(update_fields=["last_seq", "revision", "last_active_at"])
    if state == Message.State.COMPLETE:
        _want_jobs(chat, settled, answer_tokens=token_count)


def _want_jobs(chat: Chat, settled: SettledRun, *, answer_tokens: int) -> None:
    """Have done what a complete answer gives cause for: of one that was stopped, nothing is to go on."""
    if chat.title_by == Chat.TitleBy.WORDS:
        jobs.want(chat_id=chat.id, kind=Job.Kind.TITLE, pool=settled.pool, now=settled.finished_at)
    # A smaller model that answered in another's place has a smaller window: the chat may not be full in its own.
    if context.wants_summary(settled.context, answer_tokens=answer_tokens) and not settled.degraded:
        jobs.want(chat_id=chat.id, kind=Job.Kind.SUMMARY, pool=settled.pool, now=settled.finished_at)


def withdraw_answer(chat: Chat, *, turn: Turn, now: datetime) -> None:
    """Take a turn's answer out of sight until its run has settled again; call it with the chat's row locked."""
    Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT).update(hidden=True)
    chat.last_active_at = now
    chat.save(update_fields=["last_active_at"])
