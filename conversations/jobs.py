"""What is wanted of chats in the background: told by turns, in their transactions, and made by `background`."""

from datetime import datetime
from uuid import UUID

from django.conf import settings

from conversations.models import Job


def want(*, chat_id: UUID, kind: Job.Kind, pool: str, now: datetime) -> None:
    """Have a job done for the chat, which `pool` answers; one that is wanted already stays as it is."""
    if kind not in settings.BACKGROUND_JOBS:
        return
    job = Job(chat_id=chat_id, kind=kind, pool=pool, due_at=now, created_at=now)
    Job.objects.bulk_create([job], ignore_conflicts=True)
