"""Celery tasks of conversations."""

from uuid import UUID

import structlog
from celery import shared_task
from django.utils import timezone

from conversations import background, history, vectors
from inference.errors import ServiceUnavailable

log = structlog.get_logger(__name__)


@shared_task(name="conversations.tasks.dispatch_jobs", ignore_result=True)
def dispatch_jobs() -> None:
    """Begin summaries and titles that are due, where pools have room to spare; beat asks for it every second."""
    try:
        begun = background.dispatch(now=timezone.now())
    except ServiceUnavailable as error:
        log.warning("jobs_not_begun", error=str(error))
        return
    if begun:
        log.info("jobs_begun", jobs=begun)


@shared_task(name="conversations.tasks.make_vectors", ignore_result=True)
def make_vectors() -> None:
    """Make vectors of turns for long memories, some at a time; beat asks for it every few seconds."""
    made = vectors.make(now=timezone.now())
    if made:
        log.info("vectors_made", turns=made)


@shared_task(name="conversations.tasks.expire_history", ignore_result=True)
def expire_history(after: str | None = None) -> None:
    """Delete chats that their owners' plans keep no longer, a step at a time; beat asks for it once a day.

    A step that is lost ends this day's walk; the next day's finds the same chats.
    """
    now = timezone.now()
    finished = history.finish_deletions(now=now) if after is None else 0
    step = history.step(after=UUID(after) if after else None, now=now)
    log.info("history_expired", deleted=step.deleted, finished=finished)
    if step.after is not None:
        expire_history.delay(str(step.after))
