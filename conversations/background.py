"""Jobs for chats, begun when pools have room to spare: summaries and titles. What a job comes to is stored as it ends.

Nothing waits for them. A job that fails is tried again later, a few times; then the chat goes on without it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.db import transaction
from uuid_utils.compat import uuid7

from conversations import chats, summaries, titles
from conversations.models import Chat, Job
from inference import api as inference
from inference.contracts import PoolInfo, RunInfo, SettledRun
from inference.errors import ChatTemplateRefused, PoolNotFound, ServiceUnavailable

log = structlog.get_logger(__name__)

# Jobs begun in one pass.
STEP = 20
MOST_FAILURES = 4
# Before the second try; four times as long before each further one.
AGAIN = timedelta(seconds=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a job asks of a model. The numbers are a summary's."""

    prompt_ids: list[int]
    max_output_tokens: int
    version: int = 0
    first_seq: int = 0
    last_seq: int = 0


def dispatch(*, now: datetime) -> int:
    """Begin the jobs that are due, as far as their pools have room to spare; how many.

    Any number of processes may do so at once. Raises ServiceUnavailable while Redis is away.
    """
    begun = 0
    full: set[str] = set()
    waiting = Job.objects.filter(run_id__isnull=True, due_at__lte=now).exclude(kind=Job.Kind.VECTORS)
    for job in waiting.select_related("chat").order_by("due_at", "id")[:STEP]:
        if job.pool in full:
            continue
        pool = inference.background_pool(slug=job.pool)
        if pool is None:
            full.add(job.pool)
            continue
        try:
            begun += _begin(job, pool, now=now)
        except ServiceUnavailable:
            raise
        except Exception:
            # One that cannot be begun must not keep the others waiting.
            log.exception("job_not_begun", kind=job.kind, chat_id=str(job.chat_id))
            _put_off(job, now=now)
    return begun


def _begin(job: Job, pool: PoolInfo, *, now: datetime) -> bool:
    """Accept the job's run and queue it. False where there is nothing to do, or somebody else does it."""
    if job.chat.deleted_at is not None:
        return False
    try:
        work = _title(job, pool) if job.kind == Job.Kind.TITLE else _summary(job, pool)
    except ChatTemplateRefused:
        log.exception("job_refused", kind=job.kind, pool=pool.slug)
        _put_off(job, now=now)
        return False
    if work is None:
        Job.objects.filter(pk=job.pk, run_id__isnull=True).delete()
        return False
    run = _accept(job, pool, work, now=now)
    if run is None:
        return False
    inference.enqueue(run)
    return True


def _accept(job: Job, pool: PoolInfo, work: _Work, *, now: datetime) -> RunInfo | None:
    """Store the job's run; None where another process has begun it, or its chat is gone."""
    run_id = uuid7()
    with transaction.atomic():
        ours = Job.objects.filter(pk=job.pk, run_id__isnull=True, chat__deleted_at__isnull=True).update(
            run_id=run_id, version=work.version, first_seq=work.first_seq, last_seq=work.last_seq
        )
        if not ours:
            return None
        return inference.accept_job(
            run_id=run_id,
            owner_id=job.chat.owner_id,
            chat_id=job.chat_id,
            kind=job.kind,
            pool=pool,
            prompt_ids=work.prompt_ids,
            max_output_tokens=work.max_output_tokens,
            context={"revisions": inference.revisions_of(pool)}
            | (
                {"version": work.version, "first_seq": work.first_seq, "last_seq": work.last_seq}
                if job.kind == Job.Kind.SUMMARY
                else {}
            ),
            now=now,
        )


def _title(job: Job, pool: PoolInfo) -> _Work | None:
    if job.chat.title_by != Chat.TitleBy.WORDS:
        return None
    prompt_ids = titles.prompt(job.chat, tokenizer=inference.tokenizer_for(pool))
    if prompt_ids is None:
        return None
    room = pool.context_window - len(prompt_ids)
    return _Work(prompt_ids=prompt_ids, max_output_tokens=min(titles.MOST_TOKENS, room)) if room > 0 else None


def _summary(job: Job, pool: PoolInfo) -> _Work | None:
    try:
        answering = inference.pool(slug=job.pool)
    except PoolNotFound:
        return None
    fold = summaries.fold(
        job.chat,
        answering=answering,
        counting=inference.tokenizer_for(answering),
        pool=pool,
        tokenizer=inference.tokenizer_for(pool),
    )
    if fold is None or fold.max_output_tokens < 1:
        return None
    return _Work(
        prompt_ids=fold.prompt_ids,
        max_output_tokens=fold.max_output_tokens,
        version=fold.version,
        first_seq=fold.first_seq,
        last_seq=fold.last_seq,
    )


def settle(settled: SettledRun) -> None:
    """Store what a job's run came to; call it inside the settlement's transaction.

    A chat that was deleted meanwhile is erased after the commit.
    """
    job = Job.objects.select_for_update().filter(run_id=settled.run_id).first()
    if job is None or not Chat.objects.filter(id=settled.chat_id, deleted_at__isnull=True).exists():
        # Robust: what follows the settlement must not fail with it.
        transaction.on_commit(lambda: _purge(settled.chat_id, now=settled.finished_at), robust=True)
        return
    if settled.status == "done" and _store(job, settled):
        # Once more, at once: a long chat's summary may have more to fold than one prompt has room for.
        Job.objects.filter(pk=job.pk).update(run_id=None, failures=0, due_at=settled.finished_at)
    else:
        _put_off(job, now=settled.finished_at)


def _purge(chat_id: UUID, *, now: datetime) -> None:
    chats.purge(chat_id=chat_id, now=now)


def _store(job: Job, settled: SettledRun) -> bool:
    """Whether the run came to something."""
    if job.kind == Job.Kind.TITLE:
        return titles.give(chat_id=job.chat_id, text=settled.text)
    return summaries.store(
        chat_id=job.chat_id,
        version=job.version,
        first_seq=job.first_seq,
        last_seq=job.last_seq,
        text=settled.text,
        model=settled.model,
        run_id=settled.run_id,
        now=settled.finished_at,
    )


def _put_off(job: Job, *, now: datetime) -> None:
    """Have the job done later, or give it up; the turn that needs a summary wants it anew."""
    failures = job.failures + 1
    if failures < MOST_FAILURES:
        due_at = now + AGAIN * 4 ** (failures - 1)
        Job.objects.filter(pk=job.pk).update(run_id=None, failures=failures, due_at=due_at)
        return
    log.warning("job_given_up", kind=job.kind, chat_id=str(job.chat_id))
    Job.objects.filter(pk=job.pk).delete()
    if job.kind == Job.Kind.TITLE:
        titles.give_up(chat_id=job.chat_id)
