"""The state machine of runs and attempts, and their only writer.

Every transition is one conditional update that names the state it expects; zero rows mean that somebody else was
first. Nothing here touches Redis: what must follow a commit is the caller's next step. Source of the rules: the turn
protocol (docs/turn.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import DateTimeField, F, UUIDField, Value
from django.db.models.functions import Coalesce, Least
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Charge
from inference import token_ids
from inference.contracts import SettledRun
from inference.errors import ChatBusy
from inference.models import Attempt, ModelPool, Run
from inference.signals import run_settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ends: its terminal status, the whole answer, and what the last epoch used.

    `own_tokens` are the output tokens of the ending epoch; `output_tokens` those of the whole answer.
    """

    status: Run.Status
    text: str
    own_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    finish_reason: str = ""
    error_code: str = ""
    first_token_at: datetime | None = None
    release_ms: int | None = None


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
) -> Run:
    """Store a queued run; call it inside the transaction that stores the turn.

    Raises ChatBusy when the chat has an active run; that transaction must then be given up.
    """
    try:
        # A savepoint, so that the constraint's refusal leaves the connection able to say who is in the way.
        with transaction.atomic():
            return Run.objects.create(
                id=run_id,
                owner_id=owner_id,
                chat_id=chat_id,
                turn=turn,
                pool=pool,
                model=model,
                admission_id=admission_id,
                reserved_tokens=len(prompt_ids) + max_output_tokens,
                prompt_ids=token_ids.pack(prompt_ids),
                prompt_tokens=len(prompt_ids),
                max_output_tokens=max_output_tokens,
                context=dict(context),
                created_at=now,
            )
    except IntegrityError as error:
        busy = Run.objects.filter(chat_id=chat_id, status__in=Run.ACTIVE).values_list("id", flat=True).first()
        if busy is None:
            raise
        raise ChatBusy(run_id=busy) from error


def claim(*, run_id: UUID, epoch: int, worker: str, incarnation: str, now: datetime) -> Run | None:
    """Become the owner of a queued run's epoch. None when it is not to be had any more."""
    with transaction.atomic():
        mine = Run.objects.filter(id=run_id, status=Run.Status.QUEUED, epoch=epoch).update(
            status=Run.Status.STREAMING, stream_incarnation=incarnation, claimed_at=now
        )
        if not mine:
            return None
        Attempt.objects.create(run_id=run_id, epoch=epoch, worker=worker, started_at=now)
        return Run.objects.select_related("pool").get(id=run_id)


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


def cancel_queued(*, run_id: UUID, now: datetime) -> tuple[Run, str] | None:
    """End a run that nobody has claimed. Returns it with its answer: what earlier epochs published.

    None when it is not queued.
    """
    run = Run.objects.filter(id=run_id, status=Run.Status.QUEUED).first()
    if run is None:
        return None
    ending = Ending(
        status=Run.Status.CANCELLED,
        text=run.carry_text,
        own_tokens=0,
        output_tokens=token_ids.count(run.carry_ids),
        error_code="cancelled",
        release_ms=0,
    )
    ended = _end(run_id=run_id, epoch=run.epoch, expected=Run.Status.QUEUED, ending=ending, now=now)
    return None if ended is None else (ended, ending.text)


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
        _charge(run, ending=ending, expected=expected, now=now)
        run_settled.send(
            sender=Run,
            settled=SettledRun(
                run_id=run.id,
                owner_id=run.owner_id,
                chat_id=run.chat_id,
                status=ending.status.value,
                text=ending.text,
                output_tokens=ending.output_tokens,
                message_id=run.message_id,
                finished_at=now,
            ),
        )
    return run


def _charge(run: Run, *, ending: Ending, expected: Run.Status, now: datetime) -> None:
    """The user pays the prompt once, on the terminal row, and each visible token in the row of its epoch.

    A run that no engine began and that shows nothing costs nothing; one that broke before it showed anything is our
    loss, not the user's.
    """
    if expected == Run.Status.QUEUED and not ending.output_tokens:
        return
    reasons = {Run.Status.DONE: "completed"}
    broken = ending.status in (Run.Status.FAILED, Run.Status.INTERRUPTED)
    wasted = broken and not ending.output_tokens
    billing.record(
        Charge(
            user_id=run.owner_id,
            run_id=run.id,
            epoch=run.epoch,
            admission_id=run.admission_id,
            pool=run.pool.slug,
            reason=reasons.get(ending.status, ending.status.value),
            prompt_tokens=0 if wasted else run.prompt_tokens,
            cached_tokens=0 if wasted else run.cached_tokens,
            output_tokens=ending.own_tokens,
            wasted_tokens=run.prompt_tokens if wasted else 0,
            at=now,
        )
    )
