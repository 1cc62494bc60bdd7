"""Inference as the other apps see it: pools, admission, runs and their event streams."""

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import PurePath
from uuid import UUID

import structlog
from django.conf import settings
from django.db.models import QuerySet

from billing.contracts import Limits
from inference import admission, publishing, runs, store, tickets, tokenization
from inference.cell import workers
from inference.cell.errors import StoreUnavailable
from inference.cell.hub import RunState, StreamHub
from inference.cell.link import Cell
from inference.contracts import Admission, PoolGauges, PoolInfo, RunInfo, Timings, Usage
from inference.errors import PoolNotFound, RunNotFound, ServiceUnavailable
from inference.models import ModelPool, Run

log = structlog.get_logger(__name__)

_CANCEL_TRIES = 5


def pools_for(*, user_id: UUID) -> list[PoolInfo]:
    """The pools that the user may send to, the default one first."""
    open_pools = ModelPool.objects.filter(is_open=True).order_by("-is_default", "slug")
    return [_pool_info(pool) for pool in open_pools]


def pool_for(*, user_id: UUID, slug: str | None) -> PoolInfo:
    """One pool that the user may send to; the default one without a slug. Raises PoolNotFound."""
    return _pool_info(_open_pool(slug))


def default_pool_slug() -> str:
    """The pool of whoever names none. Raises PoolNotFound."""
    return _open_pool(None).slug


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
    """Hold what a turn may use. Raises AdmissionRefused, ServiceUnavailable."""
    return admission.admit(
        user_id=user_id,
        pool=_row(pool),
        turn=turn,
        base_epoch=base_epoch,
        tokens=prompt_tokens + max_output_tokens,
        limits=limits,
        min_generation=min_generation,
        now=now,
    )


def release(held: Admission) -> None:
    """Give back the hold of a turn that was not accepted. Never fails: the reaper finds what stays."""
    try:
        admission.release(held)
    except StoreUnavailable as error:
        log.warning("release_failed", admission_id=str(held.admission_id), error=str(error))


def accept_run(
    *,
    run_id: UUID,
    chat_id: UUID,
    turn: str,
    pool: PoolInfo,
    held: Admission,
    prompt_ids: Sequence[int],
    max_output_tokens: int,
    context: Mapping[str, object],
    now: datetime,
) -> RunInfo:
    """Store the run of an accepted turn; call it inside that turn's transaction, the user's account locked.

    Raises ChatBusy when the chat has an active run; the transaction must then be given up.
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
        max_output_tokens=max_output_tokens,
        context=context,
        now=now,
    )
    return run_info(run)


def enqueue(run: RunInfo) -> None:
    """Queue a run just accepted and wake a worker; call it after the commit. Never fails: the reaper repeats it."""
    # The row is not read again: all that the queue needs to know is here, and the epoch is the admission's first.
    row = Run(
        id=run.id,
        owner_id=run.owner_id,
        pool=ModelPool(slug=run.pool),
        epoch=run.epoch,
        base_epoch=run.epoch,
        admission_id=run.admission_id,
    )
    if publishing.enqueue(row):
        tickets.send(pool=run.pool)


def run_for(*, owner_id: UUID, run_id: UUID) -> RunInfo:
    """One run of this owner. Raises RunNotFound."""
    return run_info(_owned(owner_id=owner_id, run_id=run_id))


def active_run(*, chat_id: UUID) -> UUID | None:
    """The id of the chat's active run."""
    return active_runs(chat_ids=[chat_id]).get(chat_id)


def active_runs(*, chat_ids: Sequence[UUID]) -> dict[UUID, UUID]:
    """Chat id → id of its active run, for those of the chats that have one."""
    return dict(Run.objects.filter(chat_id__in=chat_ids, status__in=Run.ACTIVE).values_list("chat_id", "id"))


def active_runs_of(*, owner_id: UUID) -> list[UUID]:
    """The ids of the user's active runs, in whatever chats."""
    return list(Run.objects.filter(owner_id=owner_id, status__in=Run.ACTIVE).values_list("id", flat=True))


def cancel(*, owner_id: UUID, run_id: UUID, now: datetime) -> RunInfo:
    """Stop a run: at once when it waits, through its worker when it streams, not at all when it is over.

    Doing it again changes nothing. Raises RunNotFound.
    """
    run = _owned(owner_id=owner_id, run_id=run_id)
    # Again when it went from one state to the other between the two looks: claimed, or requeued after a worker's loss.
    for _ in range(_CANCEL_TRIES):
        if _cancel_waiting(run, now=now):
            break
        if runs.request_cancel(run_id=run.id, now=now):
            _tell_worker(run)
            break
        if not Run.objects.filter(id=run_id, status__in=Run.ACTIVE).exists():
            break
    return run_info(_owned(owner_id=owner_id, run_id=run_id))


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


def forget_chat(*, chat_id: UUID) -> None:
    """Erase the runs of a deleted chat, none of which may be active; the ledger's rows stay."""
    Run.objects.filter(chat_id=chat_id).exclude(status__in=Run.ACTIVE).delete()


def ready_pools() -> list[str]:
    """Slugs of the open pools that a live worker serves and this process can count tokens for.

    None when Redis is away. Loads tokenizers that are not in memory yet.
    """
    served = {gauges.pool for gauges in pool_gauges() if gauges.workers}
    return [
        pool.slug for pool in map(_pool_info, ModelPool.objects.filter(slug__in=served, is_open=True)) if _counts(pool)
    ]


def _counts(pool: PoolInfo) -> bool:
    try:
        tokenizer_for(pool)
    except ServiceUnavailable:
        return False
    return True


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


def _reports(cell: Cell, *, pool: str) -> list[workers.Report]:
    return cell.run(lambda client: workers.alive(client, cell.keys, pool=pool, now_ms=store.now_ms()))


def model_label(model: str) -> str:
    """What the outside is told of a model: of a folder its name, not where it lies."""
    return PurePath(model).name if model.startswith(("/", ".", "~")) else model


def model_of(pool: ModelPool) -> str:
    """Folder or Hugging Face name of the weights that a pool serves."""
    return pool.model or str(settings.MODEL)


def run_info(run: Run) -> RunInfo:
    return RunInfo(
        id=run.id,
        owner_id=run.owner_id,
        chat_id=run.chat_id,
        admission_id=run.admission_id,
        status=run.status,
        is_active=run.is_active,
        pool=run.pool.slug,
        model=run.model,
        epoch=run.epoch,
        degraded=run.degraded,
        finish_reason=run.finish_reason,
        error_code=run.error_code,
        created_at=run.created_at,
        message_id=run.message_id if not run.is_active else None,
        usage=Usage(prompt=run.prompt_tokens, cached=run.cached_tokens, output=run.output_tokens),
        timings=Timings(
            queue_ms=publishing.elapsed_ms(run, "claimed_at"),
            ttft_ms=publishing.elapsed_ms(run, "first_token_at"),
            total_ms=publishing.elapsed_ms(run, "finished_at"),
            release_ms=run.release_ms,
        ),
        context=run.context,
    )


def _pool_info(pool: ModelPool) -> PoolInfo:
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
        system_prompt=pool.system_prompt,
    )


def _row(pool: PoolInfo) -> ModelPool:
    """Enough of the pool's row to refer to it, without reading it again."""
    return ModelPool(id=pool.id, slug=pool.slug)


def _open_pool(slug: str | None) -> ModelPool:
    chosen = ModelPool.objects.filter(is_open=True)
    pool = (chosen.filter(is_default=True) if slug is None else chosen.filter(slug=slug)).first()
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
