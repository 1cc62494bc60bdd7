"""The state machine of runs and attempts, and their only writer.

Every transition is one conditional update that names the state it expects; zero rows mean that somebody else was
first. Nothing here touches Redis: what must follow a commit is the caller's next step. Source of the rules: the turn
protocol (docs/turn.md).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import DateTimeField, F, UUIDField, Value
from django.db.models.functions import Coalesce, Least
from uuid_utils.compat import uuid7

from billing import api as billing
from inference import charging, prompts, token_ids
from inference.contracts import PromptBase, SettledRun
from inference.errors import ChatBusy
from inference.models import Attempt, ModelPool, Run
from inference.signals import run_settled
from inference.worker.audience import TO_THE_END, Unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ends: its terminal status, the whole answer, and what the last epoch used.

    `own_tokens` are the output tokens of the ending epoch; `output_tokens` those of the whole answer. `ids` are the
    tokens of its text, where they are known.
    """

    status: Run.Status
    text: str
    own_tokens: int
    output_tokens: int
    ids: Sequence[int] = ()
    cached_tokens: int = 0
    finish_reason: str = ""
    error_code: str = ""
    first_token_at: datetime | None = None
    release_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that just became terminal, and its answer."""

    run: Run
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What followers were shown of an answer: the tokens, their text, and when the first of it was shown, if known."""

    ids: Sequence[int]
    text: str
    first_at: datetime | None = None


# How often workers that go may hand one answer over. Not counted with the lost ones: it is not the prompt's fault.
MAX_DRAINS = 50


def accept(
    *,
    run_id: UUID,
    owner_id: UUID,
    chat_id: UUID,
    turn: str,
    pool: ModelPool,
    model: str,
    admission_id: UUID,
    prompt_ids: Sequence[int],
    max_output_tokens: int,
    context: Mapping[str, object],
    now: datetime,
    kind: Run.Kind = Run.Kind.TURN,
    base: PromptBase | None = None,
    reserved_tokens: int | None = None,
    queue_wait_s: int | None = None,
    tier: str = "",
    degraded: bool = False,
    unwatched: Unwatched = TO_THE_END,
) -> Run:
    """Store a queued run and its prompt; call it inside the transaction that stores the turn.

    `base`: the prompt of the chat that this one begins with.

    `reserved_tokens` is what its admission holds: unless told otherwise, prompt and output. `queue_wait_s` is how long
    its user may wait for a worker, where that is less than the pool's bound. `tier` is the plan whose share of the pool
    it uses; `degraded`: a smaller model answers than was asked for. `unwatched` is what becomes of it when
    nobody follows: fixed now, whatever its owner's plan says later.

    Raises ChatBusy when the chat has an active run; that transaction must then be given up.
    """
    with _only_active_run(chat_id):
        run = Run.objects.create(
            id=run_id,
            kind=kind,
            owner_id=owner_id,
            chat_id=chat_id,
            turn=turn,
            pool=pool,
            model=model,
            admission_id=admission_id,
            reserved_tokens=reserved_tokens or len(prompt_ids) + max_output_tokens,
            prompt_ids=token_ids.pack(prompt_ids),
            prompt_tokens=len(prompt_ids),
            max_output_tokens=max_output_tokens,
            tier=tier,
            degraded=degraded,
            unwatched_tokens=unwatched.tokens,
            unwatched_s=unwatched.seconds,
            context=dict(context),
            created_at=now,
            deadline_at=now + _queue_wait(pool, queue_wait_s),
        )
    prompts.store(run_id=run_id, ids=prompt_ids, base=base)
    return run


def _queue_wait(pool: ModelPool, own_s: int | None) -> timedelta:
    return timedelta(seconds=pool.queue_wait_s if own_s is None else min(own_s, pool.queue_wait_s))


@contextmanager
def _only_active_run(chat_id: UUID) -> Iterator[None]:
    """Make a run of the chat active. Raises ChatBusy when another one is."""
    try:
        # A savepoint, so that the constraint's refusal leaves the connection able to say who is in the way.
        with transaction.atomic():
            yield
    except IntegrityError as error:
        active = Run.objects.filter(chat_id=chat_id, kind=Run.Kind.TURN, status__in=Run.ACTIVE)
        busy = active.values_list("id", flat=True).first()
        if busy is None:
            raise
        raise ChatBusy(run_id=busy) from error


def retry(
    *,
    run_id: UUID,
    epoch: int,
    pool: ModelPool,
    model: str,
    admission_id: UUID,
    prompt_ids: Sequence[int],
    max_output_tokens: int,
    context: Mapping[str, object],
    replaced_text: str,
    now: datetime,
    base: PromptBase | None = None,
    reserved_tokens: int | None = None,
    queue_wait_s: int | None = None,
    tier: str = "",
    degraded: bool = False,
    unwatched: Unwatched = TO_THE_END,
) -> Run | None:
    """Queue an ended run anew, from nothing, at the next epoch and under an admission of its own.

    Call it inside the transaction that takes its answer, `replaced_text`, out of sight; the attempt that gave it keeps
    it. None when the run is not to be had: done, under way, or at another epoch by now. Raises ChatBusy; the
    transaction must then be given up.
    """
    ended = Run.objects.select_for_update().filter(id=run_id, status__in=Run.RETRYABLE, epoch=epoch).first()
    if ended is None:
        return None
    with _only_active_run(ended.chat_id):
        Run.objects.filter(id=run_id, status__in=Run.RETRYABLE, epoch=epoch).update(
            status=Run.Status.QUEUED,
            epoch=epoch + 1,
            base_epoch=epoch + 1,
            pool=pool,
            model=model,
            admission_id=admission_id,
            reserved_tokens=reserved_tokens or len(prompt_ids) + max_output_tokens,
            cancel_requested_at=None,
            stream_incarnation="",
            prompt_ids=token_ids.pack(prompt_ids),
            carry_ids=b"",
            carry_text="",
            prompt_tokens=len(prompt_ids),
            max_output_tokens=max_output_tokens,
            tier=tier,
            degraded=degraded,
            unwatched_tokens=unwatched.tokens,
            unwatched_s=unwatched.seconds,
            cached_tokens=0,
            output_tokens=0,
            finish_reason="",
            error_code="",
            context=dict(context),
            retried_at=now,
            deadline_at=now + _queue_wait(pool, queue_wait_s),
            claimed_at=None,
            first_token_at=None,
            finished_at=None,
            release_ms=None,
        )
    prompts.replace(run_id=run_id, ids=prompt_ids, base=base)
    # An epoch that nobody claimed has no attempt: what it showed came from the one before it, of the same admission.
    gave_it = Attempt.objects.filter(run_id=run_id, epoch__gte=ended.base_epoch).order_by("-epoch").first()
    if gave_it is not None:
        Attempt.objects.filter(id=gave_it.id).update(text=replaced_text)
    return Run.objects.select_related("pool").get(id=run_id)


def claim(*, run_id: UUID, epoch: int, worker: str, incarnation: str, now: datetime) -> Run | None:
    """Become the owner of a queued run's epoch. None when it is not to be had any more.

    The time to generate begins with the admission's first epoch; later ones have what is left of it.
    """
    with transaction.atomic():
        waiting = Run.objects.filter(id=run_id, status=Run.Status.QUEUED, epoch=epoch)
        run = waiting.select_for_update(of=("self",)).select_related("pool").first()
        if run is None:
            return None
        run.status, run.stream_incarnation = Run.Status.STREAMING, incarnation
        # A run that lost its worker stays claimed since its first.
        run.claimed_at = run.claimed_at or now
        if run.epoch == run.base_epoch:
            run.deadline_at = now + timedelta(seconds=run.pool.generation_s)
        mine = waiting.update(
            status=run.status,
            stream_incarnation=run.stream_incarnation,
            claimed_at=run.claimed_at,
            deadline_at=run.deadline_at,
        )
        assert mine == 1  # its row is locked
        Attempt.objects.create(run_id=run_id, epoch=epoch, worker=worker, started_at=now)
        return run


def verify_owner(*, run_id: UUID, epoch: int, incarnation: str) -> bool:
    """Whether the epoch still owns the run; it may then publish in this incarnation of Redis."""
    mine = Run.objects.filter(id=run_id, status=Run.Status.STREAMING, epoch=epoch).update(
        stream_incarnation=incarnation
    )
    return mine == 1


def settle(*, run_id: UUID, epoch: int, ending: Ending, now: datetime) -> Run | None:
    """End a streaming run: terminal state, message and ledger row in one transaction.

    None when the epoch does not own the run any more: somebody else ended it or took it over.
    """
    return _end(run_id=run_id, epoch=epoch, expected=Run.Status.STREAMING, ending=ending, now=now)


def cancel_queued(*, run_id: UUID, now: datetime) -> Ended | None:
    """End a run that nobody has claimed; its answer is what earlier epochs published. None when it is not queued."""
    return _end_queued(run_id=run_id, status=Run.Status.CANCELLED, error_code="cancelled", now=now)


def expire_queued(*, run_id: UUID, now: datetime) -> Ended | None:
    """End a run that nobody came for in time; earlier epochs' text is kept. None when it is not to be ended."""
    run = Run.objects.filter(id=run_id, status=Run.Status.QUEUED, deadline_at__lte=now).first()
    if run is None:
        return None
    code = "queue_timeout" if run.epoch == run.base_epoch else "deadline"
    status = Run.Status.INTERRUPTED if run.carry_text else Run.Status.FAILED
    return _end_queued(run_id=run_id, status=status, error_code=code, now=now)


def _end_queued(*, run_id: UUID, status: Run.Status, error_code: str, now: datetime) -> Ended | None:
    run = Run.objects.filter(id=run_id, status=Run.Status.QUEUED).first()
    if run is None:
        return None
    ending = Ending(
        status=status,
        text=run.carry_text,
        own_tokens=0,
        output_tokens=token_ids.count(run.carry_ids),
        ids=token_ids.unpack(run.carry_ids),
        error_code=error_code,
        release_ms=0 if status == Run.Status.CANCELLED else None,
    )
    ended = _end(run_id=run_id, epoch=run.epoch, expected=Run.Status.QUEUED, ending=ending, now=now)
    return None if ended is None else Ended(run=ended, text=ending.text)


def take_over(
    *,
    run_id: UUID,
    epoch: int,
    incarnation: str,
    published: Published | None,
    cause: Attempt.Outcome,
    now: datetime,
) -> Run | Ended | None:
    """Put a run whose epoch ends unfinished back into the queue, at the next epoch; the epoch must be sealed.

    `incarnation` is the run's stream incarnation as it was before the seal: an owner that has proved itself alive since
    keeps the run. `published` is what the seal returned, None where the stream is lost: then what earlier epochs left
    is all there is. `cause` says why it ends: its worker was LOST, or DRAINED. A run whose cancel was asked for, that
    is past its deadline or has used up its epochs ends instead. None when the run is not to be had.
    """
    with transaction.atomic():
        run = (
            Run.objects.select_for_update()
            .filter(id=run_id, status=Run.Status.STREAMING, epoch=epoch, stream_incarnation=incarnation)
            .first()
        )
        if run is None:
            return None
        carried = token_ids.count(run.carry_ids)
        shown = published or Published(ids=token_ids.unpack(run.carry_ids), text=run.carry_text)
        own_tokens = max(0, len(shown.ids) - carried)
        verdict = _verdict(run, cause=cause, shown=shown, now=now)
        if verdict is not None:
            status, error_code = verdict
            ending = Ending(
                status=status,
                text=shown.text,
                own_tokens=own_tokens,
                output_tokens=len(shown.ids),
                ids=shown.ids,
                error_code=error_code,
                first_token_at=shown.first_at,
                release_ms=_release_ms(run, now=now),
            )
            ended = _end(run_id=run_id, epoch=epoch, expected=Run.Status.STREAMING, ending=ending, now=now)
            assert ended is not None  # its row is locked
            return Ended(run=ended, text=shown.text)
        billing.record(charging.of_lost(run, own_tokens=own_tokens, now=now))
        Attempt.objects.filter(run_id=run_id, epoch=epoch).update(outcome=cause, output_tokens=own_tokens, ended_at=now)
        Run.objects.filter(id=run_id, status=Run.Status.STREAMING, epoch=epoch).update(
            status=Run.Status.QUEUED,
            epoch=epoch + 1,
            carry_ids=token_ids.pack(shown.ids),
            carry_text=shown.text,
            stream_incarnation="",
            first_token_at=run.first_token_at or shown.first_at,
        )
        return Run.objects.select_related("pool").get(id=run_id)


def _verdict(run: Run, *, cause: Attempt.Outcome, shown: Published, now: datetime) -> tuple[Run.Status, str] | None:
    """How a run ends whose epoch ended unfinished: status and code. None = another epoch may go on."""
    if run.cancel_requested_at is not None:
        return Run.Status.CANCELLED, "cancelled"
    if run.deadline_at <= now:
        return Run.Status.INTERRUPTED if shown.text else Run.Status.FAILED, "deadline"
    before = Attempt.objects.filter(run_id=run.id, epoch__gte=run.base_epoch, epoch__lt=run.epoch, outcome=cause)
    if before.count() + 1 < (MAX_DRAINS if cause == Attempt.Outcome.DRAINED else run.pool.max_epochs):
        return None
    return Run.Status.INTERRUPTED, "worker_stopped" if cause == Attempt.Outcome.DRAINED else "worker_lost"


def _release_ms(run: Run, *, now: datetime) -> int | None:
    """When a lost worker let go of a stopped answer, nobody knows; by now it has."""
    if run.cancel_requested_at is None:
        return None
    return max(0, round((now - run.cancel_requested_at).total_seconds() * 1000))


def request_cancel(*, run_id: UUID, now: datetime) -> bool:
    """Flag a streaming run for its owner to stop; only the owner ends it. False when it is not streaming."""
    Run.objects.filter(id=run_id, status=Run.Status.STREAMING, cancel_requested_at__isnull=True).update(
        cancel_requested_at=now
    )
    return Run.objects.filter(id=run_id, status=Run.Status.STREAMING).exists()


def cancel_requests(*, run_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Which of these runs are flagged, and since when."""
    rows = Run.objects.filter(id__in=run_ids, cancel_requested_at__isnull=False)
    return {run_id: at for run_id, at in rows.values_list("id", "cancel_requested_at") if at is not None}


def _end(*, run_id: UUID, epoch: int, expected: Run.Status, ending: Ending, now: datetime) -> Run | None:
    with transaction.atomic():
        ended = Run.objects.filter(id=run_id, status=expected, epoch=epoch).update(
            status=ending.status,
            prompt_ids=b"",
            carry_ids=b"",
            carry_text="",
            # A continued epoch's prefix may be longer than the prompt: it holds the answer so far.
            cached_tokens=Least(F("prompt_tokens"), ending.cached_tokens),
            output_tokens=ending.output_tokens,
            finish_reason=ending.finish_reason,
            error_code=ending.error_code,
            first_token_at=Coalesce("first_token_at", Value(ending.first_token_at, output_field=DateTimeField())),
            finished_at=now,
            release_ms=ending.release_ms,
            # A retried run keeps its message: the answer is replaced in place.
            message_id=Coalesce("message_id", Value(uuid7(), output_field=UUIDField())),
        )
        if not ended:
            return None
        run = Run.objects.select_related("pool").get(id=run_id)
        assert run.message_id is not None
        Attempt.objects.filter(run_id=run_id, epoch=epoch).update(
            outcome=ending.status,
            output_tokens=ending.own_tokens,
            cached_tokens=ending.cached_tokens,
            ended_at=now,
        )
        charge = charging.of_end(run, own_tokens=ending.own_tokens, began=expected == Run.Status.STREAMING, now=now)
        if charge is not None:
            billing.record(charge)
        run_settled.send(
            sender=Run,
            settled=SettledRun(
                run_id=run.id,
                kind=run.kind,
                owner_id=run.owner_id,
                chat_id=run.chat_id,
                pool=run.pool.slug,
                context=run.context,
                status=ending.status.value,
                error_code=ending.error_code,
                text=ending.text,
                output_tokens=ending.output_tokens,
                token_ids=token_ids.pack(ending.ids),
                model=run.model,
                message_id=run.message_id,
                degraded=run.degraded,
                finished_at=now,
            ),
        )
    return run
