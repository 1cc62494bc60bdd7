"""Makes the vectors of turns that chats' long memories want, a step at a time, in a jobs process."""

import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from django.db import transaction

from conversations import embedding, memory, reasoning, selectors
from conversations.models import Chat, Job, TurnVectors

if TYPE_CHECKING:
    from conversations.encoder import Encoder

log = structlog.get_logger(__name__)

# Turns in one pass: two to six seconds of a core.
STEP = 16
# After so long without an end a job is somebody else's: many times what a pass takes.
LEASE = timedelta(minutes=2)
MOST_FAILURES = 4
# Before the second try; four times as long before each further one.
AGAIN = timedelta(seconds=15)

# One pass at a time: the other threads of the process have more urgent things to do.
_passing = threading.Lock()


def make(*, now: datetime) -> int:
    """Make the vectors of some turns whose chats want them; how many turns' were stored.

    Any number of processes may do so at once, each with chats of its own.
    """
    if not _passing.acquire(blocking=False):
        return 0
    try:
        encoder = embedding.wait_for_encoder()
        return 0 if encoder is None else _pass(encoder, now=now)
    finally:
        _passing.release()


def _pass(encoder: "Encoder", *, now: datetime) -> int:
    looked_at = made = 0
    while looked_at < STEP:
        job = _claim(now=now)
        if job is None:
            break
        looked_at += 1
        try:
            stored = _work_off(job, encoder, most=STEP - looked_at + 1, now=now)
        except Exception:
            # One that fails must not keep the others waiting.
            log.exception("vectors_not_made", chat_id=str(job.chat_id))
            _put_off(job, now=now)
            continue
        looked_at += stored
        made += stored
    return made


def _claim(*, now: datetime) -> Job | None:
    """The job that waits longest, ours for the length of the lease; None where none waits, or others are quicker."""
    waiting = Job.objects.filter(kind=Job.Kind.VECTORS, due_at__lte=now, chat__deleted_at__isnull=True)
    job = waiting.select_related("chat").order_by("due_at", "id").first()
    if job is None:
        return None
    until = now + LEASE
    if not Job.objects.filter(pk=job.pk, due_at=job.due_at).update(due_at=until):
        return None
    job.due_at = until
    return job


def _work_off(job: Job, encoder: "Encoder", *, most: int, now: datetime) -> int:
    """Make vectors of the chat's newest turns that have none; how many turns'. The job ends with the last of them."""
    lacking = selectors.turns_without_vectors(chat_id=job.chat_id, model=encoder.revision, limit=memory.MOST_READ)
    taken = lacking[:most]
    said = selectors.turns_at(chat=job.chat, seqs=taken)
    # With numpy, which is loaded since the encoder is open.
    from conversations import recall

    made = [
        TurnVectors(
            chat_id=job.chat_id,
            seq=seq,
            model=encoder.revision,
            vectors=recall.packed([encoder.encode(reasoning.said(message)) for message in said[seq]]),
        )
        for seq in taken
        if seq in said
    ]
    with transaction.atomic():
        # A deleted chat gets nothing that its erasure would not find; its job goes with it.
        if not Chat.objects.select_for_update().filter(id=job.chat_id, deleted_at__isnull=True).exists():
            return 0
        TurnVectors.objects.bulk_create(
            made, update_conflicts=True, unique_fields=["chat", "seq"], update_fields=["model", "vectors"]
        )
        ours = Job.objects.filter(pk=job.pk, due_at=job.due_at)
        if len(lacking) > most:
            ours.update(due_at=now, failures=0)
        else:
            ours.delete()
    return len(made)


def _put_off(job: Job, *, now: datetime) -> None:
    """Have the job done later, or give it up; the chat's next turn that needs it wants it anew."""
    ours = Job.objects.filter(pk=job.pk, due_at=job.due_at)
    failures = job.failures + 1
    if failures < MOST_FAILURES:
        ours.update(failures=failures, due_at=now + AGAIN * 4 ** (failures - 1))
    else:
        log.warning("vectors_given_up", chat_id=str(job.chat_id))
        ours.delete()
