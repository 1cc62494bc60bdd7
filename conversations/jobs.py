"""What is wanted of chats in the background: told by turns, in their transactions, and made by `background`."""

from datetime import datetime
from uuid import UUID

from django.conf import settings

from conversations.models import Job

# A job that has failed so often rests until it is wanted again, and then gets one more try.
MOST_FAILURES = 4


def want(*, chat_id: UUID, kind: Job.Kind, pool: str, now: datetime) -> None:
    """Have a job done for the chat, which `pool` answers; one that is wanted already is due when it was."""
    if kind not in settings.BACKGROUND_JOBS:
        return
    job = Job(chat_id=chat_id, kind=kind, pool=pool, due_at=now, wanted_at=now)
    Job.objects.bulk_create(
        [job], update_conflicts=True, unique_fields=["chat", "kind"], update_fields=["pool", "wanted_at"]
    )
    # The others are given up instead.
    if kind == Job.Kind.SUMMARY:
        resting = Job.objects.filter(chat_id=chat_id, kind=kind, failures__gte=MOST_FAILURES)
        resting.update(failures=MOST_FAILURES - 1)
