"""What is wanted of chats in the background: told by turns, in their transactions, and made by `background`."""

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings

from conversations.models import Job

# Before one is tried again that has failed too often: no sooner, and only if it is still wanted.
SELDOM = timedelta(hours=1)


def want(*, chat_id: UUID, kind: Job.Kind, pool: str, now: datetime) -> None:
    """Have a job done for the chat, which `pool` answers.

    One that is wanted already is due when it was; a summary that has failed too often, and waits for this, is tried
    after a while.
    """
    if kind not in settings.BACKGROUND_JOBS:
        return
    job = Job(chat_id=chat_id, kind=kind, pool=pool, due_at=now, created_at=now)
    Job.objects.bulk_create([job], update_conflicts=True, unique_fields=["chat", "kind"], update_fields=["pool"])
    if kind == Job.Kind.SUMMARY:
        Job.objects.filter(chat_id=chat_id, kind=kind, due_at__isnull=True).update(due_at=now + SELDOM)
