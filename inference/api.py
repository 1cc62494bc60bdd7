"""Inference as the other apps see it: pools, admission, runs and their event streams."""

import contextlib
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import PurePath
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db.models import Q, QuerySet

from billing import api as billing
from billing.contracts import Limits
from inference import (
    admission,
    background,
    counting,
    erasure,
    overview,
    pools,
    prompts,
    publishing,
    queues,
    runs,
    standing,
    store,
    takeaway,
    takeover,
    token_ids,
    tokenization,
    weights,
)
from inference.cell import workers
from inference.cell.errors import StoreUnavailable
from inference.cell.hub import RunState, StreamHub
from inference.cell.link import Cell
from inference.contracts import (
    Admission,
    PoolCount,
    PoolGauges,
    PoolInfo,
    PoolLoad,
    PoolWatch,
    PromptBase,
    QuotaStanding,
    RunBrief,
    RunInfo,
    Timings,
    Usage,
)
from inference.errors import PoolFull, PoolNotFound, RunNotFound, ServiceUnavailable
from inference.models import ModelPool, Run
from inference.worker.audience import Unwatched

log = structlog.get_logger(__name__)

_CANCEL_TRIES = 5


def pools_for(*, plan: str) -> list[PoolInfo]:
    """The pools that users of a plan (its slug) may send to, the default one first."""
    return [_pool_info(pool) for pool in _offered(plan).order_by("-is_default", "slug")]


def pool_for(*, plan: str, slug: str | None) -> PoolInfo:
    """One pool that users of a plan may send to; the default one without a slug. Raises PoolNotFound."""
    return _pool_info(_one_of(_offered(plan), slug))


def pool(*, slug: str) -> PoolInfo:
    """One pool, whether it is open or not. Raises PoolNotFound."""
    return _pool_info(_one_of(_pools(), slug))


def default_pool_slug() -> str:
    """The pool of whoever names none. Raises PoolNotFound."""
    return _one_of(ModelPool.objects.filter(is_open=True), None).slug


def ensure_small_pool(*, model: str) -> str:
    """The slug of the second pool, which serves `model` and takes what the default one has no room for.

    Made where it is not there; what an operator has set of either stays.
    """
    return pools.ensure_small(model=model)


# Loading takes a moment, or minutes where a hub is asked: many first sends at once must load once.
_loading = threading.Lock()


@lru_cache(maxsize=8)
def _load_tokenizer(model: str, revision: str | None) -> tokenization.ChatTokenizer:
    return tokenization.load(model, revision=revision)


def tokenizer_for(pool: PoolInfo) -> tokenization.ChatTokenizer:
    """The pool's tokenizer and chat template, kept in memory. Raises ServiceUnavailable."""
    try:
        with _loading:
            return _load_tokenizer(pool.model, pool.revision)
    except tokenization.TokenizerUnavailable as error:
        log.exception("tokenizer_unavailable", pool=pool.slug)
        raise ServiceUnavailable(reason="the pool's model files are not there", retry_after=30) from error


def revisions_of(pool: PoolInfo) -> dict[str, str]:
    """What the pool's prompts and answers are made with, by digests: system prompt, template, tokenizer, weights.

    Raises ServiceUnavailable.
    """
    tokenizer = tokenizer_for(pool)
    return {
        "system_prompt": hashlib.sha256(pool.system_prompt.encode()).hexdigest()[:12],
        "template": tokenizer.template_revision,
        "tokenizer": tokenizer.tokenizer_revision,
        "weights": weights.revision_of(pool.model, pool.revision),
    }


def admit(
    *,
    user_id: UUID,
    pool: PoolInfo,
    turn: str,
    prompt_tokens: int,
    max_output_tokens: int,
    limits: Limits,
    now: datetime,
    min_generation: int = 0,
    base_epoch: int = 1,
) -> Admission:
    """Hold what a turn may use, with as much output as is left to it. Raises AdmissionRefused, HoldTooSmall, PoolFull,
    ServiceUnavailable.
    """
    try:
        return admission.admit(
            user_id=user_id,
            pool=_row(pool),
            turn=turn,
            base_epoch=base_epoch,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            limits=limits,
            min_generation=min_generation,
            now=now,
        )
    except PoolFull as refusal:
        counting.note(counting.REFUSED, pool=pool.slug, tier=limits.plan, reason=refusal.reason)
        raise


def note_overflow(*, pool: PoolInfo, tier: str, reason: str) -> None:
    """Count a turn that was meant for `pool` and has a place in its overflow pool. Never fails."""
    counting.note(counting.OVERFLOWED, pool=pool.slug, tier=tier, reason=reason)


def release(held: Admission) -> None:
    """Give back the hold of a turn that was not accepted. Never fails: the reaper finds what stays."""
    try:
        admission.release(held)
    except StoreUnavailable as error:
        log.warning("release_failed", admission_id=str(held.admission_id), error=str(error))


def quota_standing(*, user_id: UUID, limits: Limits, now: datetime) -> QuotaStanding | None:
    """Where the user stands in token budget and messages; None while Redis is away. Changes nothing."""
    return standing.quota_standing(user_id=user_id, limits=limits, now=now)


def quota_users() -> list[UUID]:
    """Everybody whose quota account counts something: who was ever charged, or has an answer under way."""
    running = Run.objects.filter(status__in=Run.ACTIVE).values_list("owner_id", flat=True)
    return sorted({*billing.ever_charged(), *running})


def rebuild_quota(*, user_id: UUID, now: datetime) -> None:
    """Make what Redis counts for the user of the ledger and the runs anew. Raises ServiceUnavailable."""
    try:
        admission.rebuild(store.connector().cell(), user_id=user_id, now=now)
    except StoreUnavailable as error:
        raise ServiceUnavailable(reason="the service's memory is away") from error


def accept_run(
    *,
    run_id: UUID,
    chat_id: UUID,
    turn: str,
    pool: PoolInfo,
    held: Admission,
    prompt_ids: Sequence[int],
    context: Mapping[str, object],
    limits: Limits,
    now: datetime,
    base: PromptBase | None = None,
    degraded: bool = False,
) -> RunInfo:
    """Store the run of an accepted turn; call it inside that turn's transaction, the user's account locked.

    `base` is the prompt of the chat that this one begins with, where that is known. Of `limits` the plan's share and
    its bound on waiting count, and what becomes of an answer that nobody follows. `degraded`: the pool is a smaller one
    than was asked for. Raises ChatBusy when the chat has an active run; the transaction must then be given up.
    """
    run = runs.accept(
        run_id=run_id,
        owner_id=held.user_id,
        chat_id=chat_id,
        turn=turn,
        pool=_row(pool),
        model=pool.label,
        admission_id=held.admission_id,
        prompt_ids=prompt_ids,
        base=base,
        max_output_tokens=held.max_output_tokens,
        reserved_tokens=held.reserved_tokens,
        queue_wait_s=limits.queue_wait_s,
        context=context,
        tier=limits.plan,
        degraded=degraded,
        unwatched=_unwatched(limits),
        now=now,
    )
    return run_info(run)


def end_admission(run: RunInfo, *, text: str) -> None:
    """See to it that an ended run's stream is closed and its hold settled, before a retry asks for another one.

    Both have happened already unless its worker died in between; `text` is its answer. Raises ServiceUnavailable.
    """
    row = _visible_runs().filter(id=run.id, epoch=run.epoch).exclude(status__in=Run.ACTIVE).first()
    if row is None:
        return
    try:
        publishing.close(row, text=text)
        admission.settle(user_id=row.owner_id, admission_id=row.admission_id)
    except StoreUnavailable as error:
        raise ServiceUnavailable(reason="the service's memory is away") from error


def retry_run(
    run: RunInfo,
    *,
    pool: PoolInfo,
    held: Admission,
    prompt_ids: Sequence[int],
    context: Mapping[str, object],
    replaced_text: str,
    limits: Limits,
    now: datetime,
    base: PromptBase | None = None,
    degraded: bool = False,
) -> RunInfo | None:
    """Have an ended run answered anew; call it inside a transaction, the user's account locked.

    Otherwise as `accept_run`. None when `run` is out of date: somebody else has retried it. Raises ChatBusy when the
    chat has another active run. The transaction must be given up in either case.
    """
    retried = runs.retry(
        run_id=run.id,
        epoch=run.epoch,
        pool=_row(pool),
        model=pool.label,
        admission_id=held.admission_id,
        prompt_ids=prompt_ids,
        base=base,
        max_output_tokens=held.max_output_tokens,
        reserved_tokens=held.reserved_tokens,
        queue_wait_s=limits.queue_wait_s,
        context=context,
        replaced_text=replaced_text,
        tier=limits.plan,
        degraded=degraded,
        unwatched=_unwatched(limits),
        now=now,
    )
    return None if retried is None else run_info(retried)


def enqueue(run: RunInfo) -> None:
    """Queue a run just accepted and wake a worker; call it after the commit. Never fails: the reaper repeats it."""
    # The row is not read again: all that the queue needs to know is here, and the epoch is the admission's first.
    row = Run(
        id=run.id,
        owner_id=run.owner_id,
        chat_id=run.chat_id,
        pool=ModelPool(id=run.pool_id, slug=run.pool),
        tier=run.tier,
        epoch=run.epoch,
        base_epoch=run.epoch,
        admission_id=run.admission_id,
        prompt_tokens=run.usage.prompt,
        max_output_tokens=run.max_output_tokens,
        created_at=run.created_at,
        retried_at=run.retried_at,
        kind=run.kind,
    )
    takeover.queue_up(row)


def run_for(*, owner_id: UUID, run_id: UUID) -> RunInfo:
    """One run of this owner that answers a turn. Raises RunNotFound."""
    run = run_info(_owned(owner_id=owner_id, run_id=run_id))
    if run.kind != Run.Kind.TURN:
        raise RunNotFound
    return run


def active_run(*, chat_id: UUID) -> UUID | None:
    """The id of the run that answers a turn of the chat now."""
    return active_runs(chat_ids=[chat_id]).get(chat_id)


def active_runs(*, chat_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Chat id → id of the run that answers a turn of it now, for those of the chats that have one."""
    turns = Run.objects.filter(chat_id__in=chat_ids, kind=Run.Kind.TURN, status__in=Run.ACTIVE)
    return dict(turns.values_list("chat_id", "id"))


def active_runs_of(*, owner_id: UUID) -> list[UUID]:
    """The ids of the runs that answer the user's turns now, in whatever chats."""
    turns = Run.objects.filter(owner_id=owner_id, kind=Run.Kind.TURN, status__in=Run.ACTIVE)
    return list(turns.values_list("id", flat=True))


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32."""
    return token_ids.pack(ids)


def unpack_ids(packed: bytes) -> list[int]:
    """Raises ValueError for what is no packed ids."""
    return token_ids.unpack(packed)


def last_context(*, chat_id: UUID, pool: PoolInfo) -> Mapping[str, object] | None:
    """The snapshot of the last prompt that a pool was sent for a turn of the chat."""
    sent = Run.objects.filter(chat_id=chat_id, kind=Run.Kind.TURN, pool_id=pool.id).order_by("-id")
    found: Mapping[str, object] | None = sent.values_list("context", flat=True).first()
    return found


def prompt_ids_of(*, run_id: UUID) -> list[int]:
    """The exact token ids that the run was accepted with. Raises PromptNotRebuilt."""
    return prompts.rebuild(run_id=run_id)


def prompt_depth(base: PromptBase | None) -> int:
    """The depth at which a prompt with that base is stored."""
    return prompts.depth_after(base)


def background_pool(*, slug: str, quiet_since: datetime | None = None) -> PoolInfo | None:
    """Where a job of a chat that this pool answers is done: on its small pool, where one is served, else on itself.

    None when neither takes everything and has room to spare: turns come first. With `quiet_since` also where turns are
    under way there, or one was stopped since then. Raises ServiceUnavailable while Redis is away.
    """
    pool = _pools().filter(slug=slug).first()
    if pool is None:
        return None
    pools = [pool] if pool.overflow_to is None else [pool.overflow_to, pool]
    able = [one for one in pools if one.is_open and one.mode == ModelPool.Mode.NORMAL]
    found = background.with_room(able)
    if found is None or (quiet_since is not None and not background.is_quiet(found, since=quiet_since)):
        return None
    return _alone(found)


def accept_job(
    *,
    run_id: UUID,
    owner_id: UUID,
    chat_id: UUID,
    kind: str,
    pool: PoolInfo,
    prompt_ids: Sequence[int],
    max_output_tokens: int,
    context: Mapping[str, object],
    now: datetime,
) -> RunInfo:
    """Store the run of a job for a chat (`kind` summary or title); call it inside a transaction, `enqueue` after it.

    Nothing is held for it, its share of the pool is the least there is, and the system is charged.
    """
    return run_info(
        background.accept(
            run_id=run_id,
            owner_id=owner_id,
            chat_id=chat_id,
            kind=kind,
            pool=_row(pool),
            model=pool.label,
            prompt_ids=prompt_ids,
            max_output_tokens=max_output_tokens,
            context=context,
            now=now,
        )
    )


def cancel_jobs(*, now: datetime, chat_id: UUID | None = None, owner_id: UUID | None = None) -> int:
    """Stop the jobs that are under way for a chat, or for all of a user's; how many there were."""
    found = list(_jobs(chat_id=chat_id, owner_id=owner_id))
    for job in found:
        # Whichever ends here may take the others along with its chat.
        with contextlib.suppress(RunNotFound):
            _cancel(job, now=now)
    return len(found)


def has_jobs(*, chat_id: UUID | None = None, owner_id: UUID | None = None) -> bool:
    """Whether a job is under way for the chat, or for any of the user's."""
    return _jobs(chat_id=chat_id, owner_id=owner_id).exists()


def _jobs(*, chat_id: UUID | None, owner_id: UUID | None) -> QuerySet[Run]:
    """Those that are under way for the chat, or for the user where no chat is named."""
    jobs = _visible_runs().filter(status__in=Run.ACTIVE).exclude(kind=Run.Kind.TURN)
    return jobs.filter(owner_id=owner_id) if chat_id is None else jobs.filter(chat_id=chat_id)


def cancel(*, owner_id: UUID, run_id: UUID, now: datetime) -> RunInfo:
    """Stop a run: at once when it waits, through its worker when it streams, not at all when it is over.

    Doing it again changes nothing. Raises RunNotFound.
    """
    run = _owned(owner_id=owner_id, run_id=run_id)
    if not run.is_turn:
        raise RunNotFound
    return _cancel(run, now=now)


def _cancel(run: Run, *, now: datetime) -> RunInfo:
    # Again when it went from one state to the other between the two looks: claimed, or requeued after a worker's loss.
    for _ in range(_CANCEL_TRIES):
        if _cancel_waiting(run, now=now):
            break
        if runs.request_cancel(run_id=run.id, now=now):
            _tell_worker(run)
            break
        if not Run.objects.filter(id=run.id, status__in=Run.ACTIVE).exists():
            break
    return run_info(_owned(owner_id=run.owner_id, run_id=run.id))


def run_state(*, run_id: UUID) -> RunState | None:
    """What the database says of a run, for its followers; None when it is gone."""
    row = Run.objects.filter(id=run_id).values_list("status", "epoch", "message_id").first()
    if row is None:
        return None
    status, epoch, message_id = row
    return RunState(status=status, epoch=epoch, is_terminal=status not in Run.ACTIVE, message_id=message_id)


def stream_hub() -> StreamHub:
    """A hub for the running event loop; the caller keeps one per process."""
    return StreamHub(connector=store.async_connector())


def forget_chat(*, chat_id: UUID, now: datetime) -> None:
    """Erase the runs of a deleted chat, none of which may be active, and their streams; the ledger's rows stay."""
    erasure.forget_chat(chat_id=chat_id, now=now)


def forget_user(*, user_id: UUID, now: datetime) -> None:
    """Erase the runs of a user who is being deleted, their streams, and what Redis counts for the user."""
    erasure.forget_user(user_id=user_id, now=now)


def runs_page(*, user_id: UUID, after: UUID | None, limit: int) -> list[dict[str, Any]]:
    """The user's next runs with their attempts, in the order of their `id`, to be taken away."""
    return takeaway.page_of(user_id=user_id, after=after, limit=limit)


def ready_pools() -> list[str]:
    """Slugs of the open pools that a live worker serves and this process can count tokens for.

    None when Redis is away. Loads tokenizers that are not in memory yet.
    """
    served = {gauges.pool for gauges in pool_gauges() if gauges.workers}
    return [pool.slug for pool in map(_pool_info, _pools().filter(slug__in=served, is_open=True)) if _counts(pool)]


def _counts(pool: PoolInfo) -> bool:
    try:
        tokenizer_for(pool)
    except ServiceUnavailable:
        return False
    return True


def worker_gone(*, pool: str, node: str) -> int:
    """The process of a pool's worker (by its Celery node name) has ended, by whatever cause; how many answers it held.

    They go on elsewhere at once instead of when its leases lapse. Raises ServiceUnavailable: then they lapse.
    """
    try:
        held: int = store.connector().run(
            lambda cell: cell.call(workers.gone(cell.keys, pool=pool, node=node, now_ms=store.now_ms()))
        )
    except StoreUnavailable as error:
        raise ServiceUnavailable(reason=str(error)) from error
    return held


def pool_gauges() -> list[PoolGauges]:
    """What the engines of each pool report; zeros for a pool without a live worker. Empty when Redis is away."""
    slugs = list(ModelPool.objects.values_list("slug", flat=True))
    try:
        reports_of = store.connector().run(lambda cell: {slug: _reports(cell, pool=slug) for slug in slugs})
    except StoreUnavailable:
        return []
    found = []
    for slug, reports in reports_of.items():
        found.append(
            PoolGauges(
                pool=slug,
                workers=len(reports),
                slots=sum(report.slots for report in reports),
                running=sum(report.running for report in reports),
                waiting=sum(report.waiting for report in reports),
                kv_usage=max((report.kv_usage for report in reports), default=0.0),
                output_tokens=sum(report.output_tokens for report in reports),
            )
        )
    return found


def pool_loads() -> list[PoolLoad]:
    """Every pool with its active runs and what its engines report, the default one first."""
    return overview.loads(gauges=pool_gauges())


def watch_pools() -> list[PoolWatch] | None:
    """Every pool as its queue stands now, the default one first; None while Redis is away."""
    try:
        return queues.watch()
    except StoreUnavailable:
        return None


def pool_counts() -> list[PoolCount]:
    """What pools refused and what overflowed from them, since Redis began to count. Empty while Redis is away."""
    try:
        return queues.counts()
    except StoreUnavailable:
        return []


def longest_running(*, limit: int) -> list[RunBrief]:
    """The streaming runs that were accepted first."""
    return overview.longest_running(limit=limit)


def latest_failures(*, limit: int) -> list[RunBrief]:
    """The failed and interrupted runs that were accepted last, newest first."""
    return overview.latest_failures(limit=limit)


def outcomes_since(*, since: datetime) -> dict[str, int]:
    """Status → how many of the runs accepted since then have it now."""
    return overview.outcomes_since(since=since)


def active_counts(*, owner_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Owner id → active runs, for those who have any."""
    return overview.active_counts(owner_ids=owner_ids)


def active_briefs(*, owner_id: UUID) -> list[RunBrief]:
    """The owner's active runs, oldest first."""
    return overview.active_of(owner_id=owner_id)


def pool_slugs() -> list[str]:
    """Every pool there is, open or not."""
    return list(ModelPool.objects.order_by("slug").values_list("slug", flat=True))


def _reports(cell: Cell, *, pool: str) -> list[workers.Report]:
    return cell.run(lambda client: workers.alive(client, cell.keys, pool=pool, now_ms=store.now_ms()))


def model_label(model: str) -> str:
    """What the outside is told of a model: of a folder its name, not where it lies."""
    return PurePath(model).name if model.startswith(("/", ".", "~")) else model


def model_of(pool: ModelPool) -> str:
    """Folder or Hugging Face name of the weights that a pool serves."""
    return pool.model or str(settings.MODEL)


def run_info(run: Run) -> RunInfo:
    charge = None if run.is_active else billing.run_charge(run_id=run.id)
    return RunInfo(
        id=run.id,
        kind=run.kind,
        owner_id=run.owner_id,
        chat_id=run.chat_id,
        admission_id=run.admission_id,
        status=run.status,
        is_active=run.is_active,
        is_retryable=run.status in Run.RETRYABLE,
        pool=run.pool.slug,
        pool_id=run.pool_id,
        model=run.model,
        epoch=run.epoch,
        tier=run.tier,
        degraded=run.degraded,
        max_output_tokens=run.max_output_tokens,
        finish_reason=run.finish_reason,
        error_code=run.error_code,
        created_at=run.created_at,
        retried_at=run.retried_at,
        cancel_requested_at=run.cancel_requested_at,
        message_id=run.message_id if not run.is_active else None,
        usage=Usage(prompt=run.prompt_tokens, cached=run.cached_tokens, output=run.output_tokens),
        charged=None if charge is None else charge.charged,
        waste=None if charge is None else charge.wasted,
        timings=Timings(
            queue_ms=publishing.elapsed_ms(run, "claimed_at"),
            ttft_ms=publishing.elapsed_ms(run, "first_token_at"),
            total_ms=publishing.elapsed_ms(run, "finished_at"),
            release_ms=run.release_ms,
        ),
        context=run.context,
    )


def _pool_info(pool: ModelPool) -> PoolInfo:
    """The pool, read with its overflow pool, as those are by `_pools`."""
    smaller = pool.overflow_to
    takes_more = smaller is not None and smaller.is_open and smaller.mode != ModelPool.Mode.DRAIN
    return replace(_alone(pool), overflow=_alone(smaller) if smaller is not None and takes_more else None)


def _alone(pool: ModelPool) -> PoolInfo:
    return PoolInfo(
        id=pool.id,
        slug=pool.slug,
        name=pool.name,
        model=model_of(pool),
        label=model_label(model_of(pool)),
        revision=pool.engine_options.get("revision"),
        engine=str(settings.ENGINE),
        is_default=pool.is_default,
        context_window=pool.context_window,
        max_output_tokens=pool.max_output_tokens,
        queue_wait_s=pool.queue_wait_s,
        short_prompt_tokens=pool.short_prompt_tokens,
        system_prompt=pool.system_prompt,
        reserve_tokens=pool.reserve_tokens,
        high_water=pool.high_water,
        low_water=pool.low_water,
    )


def _unwatched(limits: Limits) -> Unwatched:
    """The bound that the plan's choice names; it may have numbers for the others."""
    return Unwatched(
        tokens=limits.unwatched_tokens if limits.unwatched == "shorten" else None,
        seconds=limits.unwatched_s if limits.unwatched == "stop" else None,
    )


def _row(pool: PoolInfo) -> ModelPool:
    """Enough of the pool's row to refer to it, without reading it again."""
    return ModelPool(id=pool.id, slug=pool.slug, queue_wait_s=pool.queue_wait_s)


def _offered(plan: str) -> QuerySet[ModelPool]:
    """The open pools of everybody and those of this plan, in one query: each at most once, by one link or by none."""
    return _pools().filter(Q(plans__isnull=True) | Q(plans__slug=plan), is_open=True)


def _pools() -> QuerySet[ModelPool]:
    # A send asks for its pool in one query, the smaller one included.
    return ModelPool.objects.select_related("overflow_to")


def _one_of(pools: QuerySet[ModelPool], slug: str | None) -> ModelPool:
    pool = (pools.filter(is_default=True) if slug is None else pools.filter(slug=slug)).first()
    if pool is None:
        raise PoolNotFound(slug=slug or "default")
    return pool


def _visible_runs() -> QuerySet[Run]:
    return Run.objects.select_related("pool").defer("prompt_ids", "carry_ids", "carry_text")


def _owned(*, owner_id: UUID, run_id: UUID) -> Run:
    run = _visible_runs().filter(id=run_id, owner_id=owner_id).first()
    if run is None:
        raise RunNotFound
    return run


def _cancel_waiting(run: Run, *, now: datetime) -> bool:
    ended = runs.cancel_queued(run_id=run.id, now=now)
    if ended is None:
        return False
    publishing.dequeue(ended.run)
    publishing.announce_end(ended.run, text=ended.text)
    return True


def _order_cancel(cell: Cell, *, boot_id: str, run_id: UUID) -> None:
    cell.run(lambda client: workers.order_cancel(client, cell.keys, boot_id=boot_id, run_id=run_id))


def _tell_worker(run: Run) -> None:
    """The worker's next look at the flag, within a second, does without this message."""
    boot_id = run.attempts.order_by("-epoch").values_list("worker", flat=True).first()
    try:
        store.connector().run(lambda cell: _order_cancel(cell, boot_id=str(boot_id), run_id=run.id))
    except StoreUnavailable as error:
        log.warning("cancel_order_failed", run_id=str(run.id), error=str(error))
