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
from inference import charging, token_ids
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that just became terminal, and its answer."""

    run: Run
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What followers were shown of an answer: the tokens, and their text."""

    ids: Sequence[int]
    text: str


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
            status=Run.Status.STREAMING,
            stream_incarnation=incarnation,
            # A run that lost its worker stays claimed since its first.
            claimed_at=Coalesce("claimed_at", Value(now, output_field=DateTimeField())),
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


def cancel_queued(*, run_id: UUID, now: datetime) -> Ended | None:
    """End a run that nobody has claimed; its answer is what earlier epochs published. None when it is not queued."""
    return _end_queued(run_id=run_id, status=Run.Status.CANCELLED, error_code="cancelled", now=now)


def fail_queued(*, run_id: UUID, error_code: str, now: datetime) -> Ended | None:
    """End a run that nobody came for. None when it is not queued any more."""
    return _end_queued(run_id=run_id, status=Run.Status.FAILED, error_code=error_code, now=now)


def _end_queued(*, run_id: UUID, status: Run.Status, error_code: str, now: datetime) -> Ended | None:
    run = Run.objects.filter(id=run_id, status=Run.Status.QUEUED).first()
    if run is None:
        return None
    ending = Ending(
        status=status,
        text=run.carry_text,
        own_tokens=0,
        output_tokens=token_ids.count(run.carry_ids),
        error_code=error_code,
        release_ms=0 if status == Run.Status.CANCELLED else None,
    )
    ended = _end(run_id=run_id, epoch=run.epoch, expected=Run.Status.QUEUED, ending=ending, now=now)
    return None if ended is None else Ended(run=ended, text=ending.text)


def take_over(
    *, run_id: UUID, epoch: int, incarnation: str, published: Published | None, max_epochs: int, now: datetime
) -> Run | Ended | None:
    """Put a run whose worker is lost back into the queue, at the next epoch; the epoch must be sealed.

    `incarnation` is the run's stream incarnation as it was before the seal: an owner that has proved itself alive since
    keeps the run. `published` is what the seal returned, None where the stream is lost: then what earlier epochs left
    is all there is. A run whose cancel was asked for, or that has used up its epochs, ends instead. None when the run
    is not to be had.
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
        if run.cancel_requested_at is not None or epoch - run.base_epoch + 1 >= max_epochs:
            ending = _ending_of_lost(run, shown=shown, own_tokens=own_tokens, now=now)
            ended = _end(run_id=run_id, epoch=epoch, expected=Run.Status.STREAMING, ending=ending, now=now)
            assert ended is not None  # its row is locked
            return Ended(run=ended, text=shown.text)
        billing.record(charging.of_lost(run, own_tokens=own_tokens, now=now))
        Attempt.objects.filter(run_id=run_id, epoch=epoch).update(
            outcome=Attempt.Outcome.LOST, output_tokens=own_tokens, ended_at=now
        )
        Run.objects.filter(id=run_id, status=Run.Status.STREAMING, epoch=epoch).update(
            status=Run.Status.QUEUED,
            epoch=epoch + 1,
            carry_ids=token_ids.pack(shown.ids),
            carry_text=shown.text,
            stream_incarnation="",
        )
        return Run.objects.select_related("pool").get(id=run_id)


def _ending_of_lost(run: Run, *, shown: Published, own_tokens: int, now: datetime) -> Ending:
    cancelled = run.cancel_requested_at
    return Ending(
        status=Run.Status.INTERRUPTED if cancelled is None else Run.Status.CANCELLED,
        text=shown.text,
        own_tokens=own_tokens,
        output_tokens=len(shown.ids),
        error_code="worker_lost" if cancelled is None else "cancelled",
        # When the lost worker let go, nobody knows; by now it has.
        release_ms=None if cancelled is None else max(0, round((now - cancelled).total_seconds() * 1000)),
    )


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
