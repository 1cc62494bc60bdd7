"""What follows a commit: the queue entry of an accepted run, the terminal event and settlement of an ended one.

Each may fail without harm: the database has decided, and the reaper does again what is missing.
"""

import structlog
from django.db import DatabaseError

from inference import admission, policies, store
from inference.cell import queue, stream
from inference.cell.errors import StoreUnavailable
from inference.cell.queue import Placed
from inference.models import Run

log = structlog.get_logger(__name__)

# No stream holds this text: a NUL is never published.
_UNKNOWN = "\0"


def enqueue(run: Run) -> Placed | None:
    """Put an accepted run into its pool's queue; where it stands. None when Redis is away: it waits in the database.

    Needs of the run: id, kind, owner, chat, pool (id and slug), tier, epochs, admission, token counts, and the moments.
    """
    waiting = queue.Waiting(
        run=queue.Ticketed(run_id=run.id, epoch=run.epoch),
        base_epoch=run.base_epoch,
        admission_id=run.admission_id,
        user_id=run.owner_id,
        tier=run.tier,
        chat_id=run.thread_id,
        prompt_tokens=run.prompt_tokens,
        max_output_tokens=run.max_output_tokens,
        since_ms=int(run.asked_at.timestamp() * 1000),
    )
    try:
        policy = policies.last_known(run.pool_id)
        return store.connector().run(
            lambda cell: queue.read_enqueue(
                cell.call(
                    queue.enqueue(cell.keys, pool=run.pool.slug, policy=policy, waiting=waiting, now_ms=store.now_ms())
                )
            )
        )
    except StoreUnavailable as error:
        log.warning("enqueue_failed", run_id=str(run.id), error=str(error))
        return None


def dequeue(run: Run) -> None:
    """Take a run that ended unclaimed out of its pool's queue."""
    try:
        _dequeue(run)
    except StoreUnavailable as error:
        # Whoever claims it finds that it is over.
        log.warning("dequeue_failed", run_id=str(run.id), error=str(error))


def retire(run: Run, *, text: str) -> None:
    """As `dequeue` and `announce_end`. Raises StoreUnavailable at the first step that fails.

    For whoever ends many at once: where Redis hangs, each step takes its timeout.
    """
    _dequeue(run)
    close(run, text=text)
    admission.settle(user_id=run.owner_id, admission_id=run.admission_id)


def _dequeue(run: Run) -> None:
    ticketed = queue.Ticketed(run_id=run.id, epoch=run.epoch)
    store.connector().run(
        lambda cell: cell.call(
            queue.expire(cell.keys, pool=run.pool.slug, run=ticketed, user_id=run.owner_id, tier=run.tier)
        )
    )


def announce_end(run: Run, *, text: str | None) -> None:
    """Append an ended run's terminal event to its stream and settle its reservation.

    With text None the caller does not know the answer: followers are told to fetch it.
    """
    tell_end(run, text=text)
    settle_hold(run)


def tell_end(run: Run, *, text: str | None) -> None:
    """T3 alone, as `announce_end` does it. Without Redis R4 does it later."""
    try:
        close(run, text=text)
    except StoreUnavailable as error:
        log.warning("close_failed", run_id=str(run.id), error=str(error))


def settle_hold(run: Run) -> None:
    """T4 alone, as `announce_end` does it. Without Redis or the database R3 does it later."""
    try:
        admission.settle(user_id=run.owner_id, admission_id=run.admission_id)
    except (StoreUnavailable, DatabaseError) as error:
        log.warning("settle_failed", run_id=str(run.id), error=str(error))


def close(run: Run, *, text: str | None) -> None:
    """Append an ended run's terminal event, as `announce_end` does, unless it is there. Raises StoreUnavailable."""
    kind, data = terminal_event(run)
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


# By code, where it says more than the status does.
_REASONS = {"unwatched": "Stopped because nobody was following the answer."}
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
        "text": _REASONS.get(run.error_code, _EXPLANATIONS[run.status]),
        "usage": usage,
    }


def elapsed_ms(run: Run, moment: str) -> int | None:
    """From when the answer was asked for to one of the run's moments, in ms; None when that has not come."""
    at = getattr(run, moment)
    return None if at is None else max(0, round((at - run.asked_at).total_seconds() * 1000))
