"""Jobs for chats, begun when pools have room to spare: summaries and titles. What a job comes to is stored as it ends.

Nothing waits for them. A job that fails is tried again later, a few times; then the chat goes on without it.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.conf import settings
from django.db import transaction
from uuid_utils.compat import uuid7

from billing import api as billing
from conversations import chats, jobs, preparation, reasoning, selectors, summaries, titles
from conversations.models import Chat, Job
from inference import api as inference
from inference.contracts import ChatTokenizer, PoolInfo, RunInfo, SettledRun
from inference.errors import PoolNotFound, ServiceUnavailable

log = structlog.get_logger(__name__)

# How long a title waits for a moment in which its pool answers nobody; a summary, which a chat's next turns are asked
# with, does not.
PATIENCE = timedelta(seconds=5)
# And after an answer was stopped: whoever stops one sees the engine's work fall.
CALM = timedelta(seconds=2)
# Jobs begun in one pass.
STEP = 20
# Before the second try; four times as long before each further one.
AGAIN = timedelta(seconds=15)
# Before one more try of what has failed too often.
SELDOM = timedelta(hours=1)
_KINDS = {Job.Kind.TITLE, Job.Kind.SUMMARY}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What a job asks of a model, and whether its prompt opens reasoning. The numbers are a summary's."""

    prompt_ids: list[int]
    max_output_tokens: int
    opens_reasoning: bool
    version: int = 0
    first_seq: int = 0
    last_seq: int = 0
    most_tokens: int = 0


def dispatch(*, now: datetime) -> int:
    """Begin the jobs that are due, as far as their pools have room to spare; how many.

    Any number of processes may do so at once. Raises ServiceUnavailable while Redis is away.
    """
    begun = 0
    # Pools without room now, and those without it for what can wait: what waits for them must not hide what waits for
    # others.
    full: set[str] = set()
    busy: set[str] = set()
    for _ in range(STEP):
        job = _next(now=now, full=full, busy=busy)
        if job is None:
            break
        can_wait = job.kind == Job.Kind.TITLE and job.due_at > now - PATIENCE
        pool = inference.background_pool(slug=job.pool, quiet_since=now - CALM if can_wait else None)
        if pool is None:
            (busy if can_wait else full).add(job.pool)
            continue
        try:
            begun += _begin(job, pool, now=now)
        except Exception:
            # One that cannot be begun must not keep the others waiting: its model's files may not be there.
            log.exception("job_not_begun", kind=job.kind, chat_id=str(job.chat_id))
            _put_off(job, now=now)
    return begun


def _next(*, now: datetime, full: Collection[str], busy: Collection[str]) -> Job | None:
    """The job that has been due for longest, of a chat that is there and of somebody who may use the site.

    None of a pool that is `full`; no title that can wait of one that is `busy`.
    """
    waiting = Job.objects.filter(
        run_id__isnull=True,
        due_at__lte=now,
        failures__lt=jobs.MOST_FAILURES,
        chat__deleted_at__isnull=True,
        chat__owner__is_active=True,
    )
    wanted = waiting.filter(kind__in=_KINDS & set(settings.BACKGROUND_JOBS)).exclude(pool__in=full)
    wanted = wanted.exclude(kind=Job.Kind.TITLE, due_at__gt=now - PATIENCE, pool__in=busy)
    return wanted.select_related("chat").order_by("due_at", "id").first()


def _begin(job: Job, pool: PoolInfo, *, now: datetime) -> bool:
    """Accept the job's run and queue it. False where there is nothing to do, or somebody else does it."""
    work = _title(job, pool) if job.kind == Job.Kind.TITLE else _summary(job, pool, now=now)
    if work is None:
        log.info("nothing_to_do", kind=job.kind, chat_id=str(job.chat_id))
        # Unless it has been wanted again meanwhile.
        Job.objects.filter(pk=job.pk, run_id__isnull=True, wanted_at=job.wanted_at).delete()
        return False
    run = _accept(job, pool, work, revisions=inference.revisions_of(pool), now=now)
    if run is None:
        return False
    inference.enqueue(run)
    return True


def _accept(job: Job, pool: PoolInfo, work: _Work, *, revisions: dict[str, str], now: datetime) -> RunInfo | None:
    """Store the job's run; None where another process has begun it, or its chat is gone."""
    run_id = uuid7()
    bounds = {name: getattr(work, name) for name in ("version", "first_seq", "last_seq", "most_tokens")}
    with transaction.atomic():
        # First the chat, as everywhere: a deletion either finds the run, or is found.
        chats_there = Chat.objects.select_for_update().filter(pk=job.chat_id, deleted_at__isnull=True)
        if chats_there.first() is None:
            return None
        ours = Job.objects.filter(pk=job.pk, run_id__isnull=True)
        if not ours.update(run_id=run_id, opens_reasoning=work.opens_reasoning, **bounds):
            return None
        return inference.accept_job(
            run_id=run_id,
            owner_id=job.chat.owner_id,
            chat_id=job.chat_id,
            kind=job.kind,
            pool=pool,
            prompt_ids=work.prompt_ids,
            max_output_tokens=work.max_output_tokens,
            context={"revisions": revisions, **(bounds if job.kind == Job.Kind.SUMMARY else {})},
            now=now,
        )


def _title(job: Job, pool: PoolInfo) -> _Work | None:
    if job.chat.title_by != Chat.TitleBy.WORDS:
        return None
    turn = selectors.first_answered(chat=job.chat)
    if not turn:
        return None
    tokenizer = inference.tokenizer_for(pool)
    ids = titles.prompt(turn, tokenizer=tokenizer)
    thoughts = reasoning.room(ids, said_before=turn, window=pool.context_window, tokenizer=tokenizer)
    return _work(ids, titles.MOST_TOKENS + thoughts, pool=pool, tokenizer=tokenizer)


def _summary(job: Job, pool: PoolInfo, *, now: datetime) -> _Work | None:
    try:
        answering = inference.pool(slug=job.pool)
    except PoolNotFound:
        return None
    fold = summaries.fold(
        job.chat,
        answering=answering,
        budget=preparation.budget_of(answering, allowed=billing.limits_for(user_id=job.chat.owner_id, now=now)),
        pool=pool,
    )
    if fold is None:
        return None
    work = _work(fold.prompt_ids, fold.max_output_tokens, pool=pool, tokenizer=inference.tokenizer_for(pool))
    if work is None:
        return None
    return replace(
        work,
        version=fold.version,
        first_seq=fold.first_seq,
        last_seq=fold.last_seq,
        most_tokens=fold.summary_tokens,
    )


def _work(ids: list[int], output: int, *, pool: PoolInfo, tokenizer: ChatTokenizer) -> _Work | None:
    """The work of a prompt and an answer to it; None where they do not fit the pool's window."""
    room = min(output, pool.context_window - len(ids))
    opens = reasoning.is_open(ids, tokenizer=tokenizer)
    return _Work(prompt_ids=ids, max_output_tokens=room, opens_reasoning=opens) if room > 0 else None


def settle(settled: SettledRun) -> None:
    """Store what a job's run came to; call it inside the settlement's transaction.

    A chat that was deleted meanwhile is erased after the commit.
    """
    # First the chat, as everywhere.
    chat = Chat.objects.select_for_update().filter(id=settled.chat_id, deleted_at__isnull=True).first()
    job = Job.objects.select_for_update().filter(run_id=settled.run_id).first()
    if chat is None:
        # Robust: what follows the settlement must not fail with it.
        transaction.on_commit(lambda: _purge(settled.chat_id, now=settled.finished_at), robust=True)
        return
    if job is None:
        # Put off when its run was queued already: it is done anew.
        return
    if settled.status == "done" and _store(job, settled):
        # Once more, at once: a long chat's summary may have more to fold than one prompt has room for.
        Job.objects.filter(pk=job.pk).update(run_id=None, failures=0, due_at=settled.finished_at)
    else:
        _put_off(job, now=settled.finished_at)


def _purge(chat_id: UUID, *, now: datetime) -> None:
    chats.purge(chat_id=chat_id, now=now)
    if not Chat.objects.filter(id=chat_id).exists():
        inference.forget_chat(chat_id=chat_id, now=now)


def _store(job: Job, settled: SettledRun) -> bool:
    """Whether the run came to something."""
    text = reasoning.left_out(settled.text, opened=job.opens_reasoning)
    if job.kind == Job.Kind.TITLE:
        return titles.give(chat_id=job.chat_id, text=text)
    if settled.output_tokens > job.most_tokens:
        # What was left for reasoning, it may have filled with the summary.
        text = _first_tokens(text, most=job.most_tokens, pool=settled.pool)
    return summaries.store(
        chat_id=job.chat_id,
        version=job.version,
        first_seq=job.first_seq,
        last_seq=job.last_seq,
        text=text,
        model=settled.model,
        run_id=settled.run_id,
        now=settled.finished_at,
    )


def _first_tokens(text: str, *, most: int, pool: str) -> str:
    """As much of a text as takes so many of a pool's tokens; all of it where there is no telling."""
    try:
        tokenizer = inference.tokenizer_for(inference.pool(slug=pool))
    except (PoolNotFound, ServiceUnavailable):
        return text
    ids = tokenizer.encode(text)
    # The last character may be cut in half.
    return text if len(ids) <= most else tokenizer.decode(ids[:most]).rstrip("\N{REPLACEMENT CHARACTER}").strip()


def _put_off(job: Job, *, now: datetime) -> None:
    """Have the job done later. After so many failures a title is given up, and a summary waits until it is wanted."""
    # Unless another process has begun it meanwhile.
    ours = Job.objects.filter(pk=job.pk, run_id=job.run_id)
    failures = job.failures + 1
    if failures < jobs.MOST_FAILURES:
        ours.update(run_id=None, failures=failures, due_at=now + AGAIN * 4 ** (failures - 1))
    elif job.kind != Job.Kind.TITLE:
        ours.update(run_id=None, failures=failures, due_at=now + SELDOM)
    elif ours.delete()[0]:
        log.warning("title_given_up", chat_id=str(job.chat_id))
        titles.give_up(chat_id=job.chat_id)
