"""What follows a commit: the queue entry of an accepted run, the terminal event and settlement of an ended one.

Each may fail without harm: the database has decided, and the reaper does again what is missing.
"""

import structlog
from django.db import DatabaseError

from inference import admission, store
from inference.cell import queue, stream
from inference.cell.errors import StoreUnavailable
from inference.models import Run

log = structlog.get_logger(__name__)

# No stream holds this text: a NUL is never published.
_UNKNOWN = "\0"


def enqueue(run: Run) -> bool:
    """Put an accepted run into its pool's queue. False when Redis is away: the run waits in the database."""
    try:
        store.connector().run(
            lambda cell: cell.call(
                queue.enqueue(
                    cell.keys,
                    user_id=run.owner_id,
                    pool=run.pool.slug,
                    run_id=run.id,
                    epoch=run.epoch,
                    base_epoch=run.base_epoch,
                    admission_id=run.admission_id,
                    now_ms=store.now_ms(),
                )
            )
        )
    except StoreUnavailable as error:
        log.warning("enqueue_failed", run_id=str(run.id), error=str(error))
        return False
    return True


def dequeue(run: Run) -> None:
    """Take a run that ended unclaimed out of its pool's queue."""
    ticketed = queue.Ticketed(run_id=run.id, epoch=run.epoch)
    try:
        store.connector().run(lambda cell: cell.call(queue.dequeue(cell.keys, pool=run.pool.slug, run=ticketed)))
    except StoreUnavailable as error:
        # Whoever claims it finds that it is over.
        log.warning("dequeue_failed", run_id=str(run.id), error=str(error))


def announce_end(run: Run, *, text: str | None) -> None:
    """Append an ended run's terminal event to its stream and settle its reservation.

    With text None the caller does not know the answer: followers are told to fetch it.
    """
    kind, data = terminal_event(run)
    try:
        store.connector().run(
            lambda cell: cell.call(
                stream.close(
                    cell.keys,
                    run_id=run.id,
                    epoch=run.epoch,
                    base_epoch=run.base_epoch,
                    kind=kind,
                    data=data,
                    text=_UNKNOWN if text is None else text,
                )
            )
        )
    except StoreUnavailable as error:
        log.warning("close_failed", run_id=str(run.id), error=str(error))
    try:
        admission.settle(user_id=run.owner_id, admission_id=run.admission_id)
    except (StoreUnavailable, DatabaseError) as error:
        log.warning("settle_failed", run_id=str(run.id), error=str(error))


_EXPLANATIONS = {
    "cancelled": "Stopped at the user's request.",
    "interrupted": "The answer broke off.",
    "failed": "The answer could not be generated.",
}


def terminal_event(run: Run) -> tuple[str, dict[str, object]]:
    """The type and data of an ended run's last event."""
    usage = {"prompt": run.prompt_tokens, "cached": run.cached_tokens, "output": run.output_tokens}
    if run.status == Run.Status.DONE:
        return "completed", {
            "message_id": str(run.message_id),
            "finish_reason": run.finish_reason,
            "usage": usage,
            "timings": {
                "queue_ms": elapsed_ms(run, "claimed_at"),
                "ttft_ms": elapsed_ms(run, "first_token_at"),
            },
        }
    return run.status, {
        "message_id": str(run.message_id),
        "code": run.error_code or run.status,
        "text": _EXPLANATIONS[run.status],
        "usage": usage,
    }


def elapsed_ms(run: Run, moment: str) -> int | None:
    """From the run's acceptance to one of its moments, in ms; None when that has not come."""
    at = getattr(run, moment)
    return None if at is None else max(0, round((at - run.created_at).total_seconds() * 1000))
