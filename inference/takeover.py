"""H: an epoch that ends unfinished is sealed, and the next one goes on from what it published.

Done by whoever finds a worker lost (the reaper, another worker), and by a worker that has to go. Source: H of the turn
protocol (docs/turn.md).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog

from inference import publishing, runs, store, tickets, token_ids
from inference.cell import queue, stream
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.cell.queue import Ticketed
from inference.models import Attempt, Run

log = structlog.get_logger(__name__)


def take_over(cell: Cell, run: Run, *, now: datetime, cause: Attempt.Outcome = Attempt.Outcome.LOST) -> bool:
    """Fence an epoch, read what it published, and have the next one go on, or end the run where none may.

    `run` is as it was before. False when somebody else was first. Raises StoreUnavailable.
    """
    seal = stream.seal(cell.keys, run_id=run.id, epoch=run.epoch, base_epoch=run.base_epoch)
    sealed = stream.read_seal(cell.call(seal))
    carried = _carried(run)
    taken = runs.take_over(
        run_id=run.id,
        epoch=run.epoch,
        incarnation=run.stream_incarnation,
        published=None if sealed is None else _published(sealed),
        cause=cause,
        now=now,
    )
    if taken is None:
        return False
    _end_lease(cell, run, shown=0 if sealed is None else len(sealed.ids) - carried)
    match taken:
        case runs.Ended(run=ended, text=text):
            publishing.announce_end(ended, text=text)
        case requeued:
            queue_up(requeued)
    return True


def _carried(run: Run) -> int:
    """How many tokens of the answer earlier epochs made."""
    if run.epoch == run.base_epoch:
        return 0
    ids = Run.objects.filter(id=run.id, epoch=run.epoch).values_list("carry_ids", flat=True).first()
    return 0 if ids is None else token_ids.count(ids)


def _end_lease(cell: Cell, run: Run, *, shown: int) -> None:
    """Whoever held the epoch, holds it no more; of what it was charged, what it has shown remains."""
    name = Ticketed(run_id=run.id, epoch=run.epoch)
    cell.call(
        queue.abort(
            cell.keys,
            pool=run.pool.slug,
            run=name,
            boot_id=None,
            shown_tokens=max(0, shown),
        )
    )


def hand_over(*, run_id: UUID, epoch: int, cause: Attempt.Outcome, now: datetime) -> bool:
    """Give an epoch up as its owner, which publishes no more. Raises StoreUnavailable; then the reaper does it."""
    return store.connector().run(lambda cell: _take_over_named(cell, run_id=run_id, epoch=epoch, cause=cause, now=now))


def take_over_lapsed(*, pool: str, names: Sequence[str], now: datetime) -> int:
    """Take over the runs of a pool whose leases ('run:epoch') lapsed; how many. Raises StoreUnavailable."""
    cell = store.connector().cell()
    lapsed = [Ticketed.parse(name) for name in names]
    # Some may have been renewed since.
    held = cell.run(lambda client: queue.leased(client, cell.keys, pool=pool, runs=lapsed, now_ms=store.now_ms()))
    taken = 0
    for name in lapsed:
        if name in held:
            continue
        try:
            taken += _take_over_named(cell, run_id=name.run_id, epoch=name.epoch, cause=Attempt.Outcome.LOST, now=now)
            shown = _shown(name)
        except StoreUnavailable:
            raise
        except Exception:
            # The database is away, say. The lease still lies there to be told of, so this is tried at the next beat.
            log.exception("not_taken_over", run=str(name))
            continue
        # Nobody needs it any more, whether it was taken over, had ended, or was never begun.
        cell.call(queue.abort(cell.keys, pool=pool, run=name, boot_id=None, shown_tokens=shown))
    return taken


def _shown(name: Ticketed) -> int | None:
    """How many tokens an epoch's owner showed that let its lease lapse; None = it never began."""
    found = Run.objects.filter(id=name.run_id, epoch=name.epoch).values_list("status", "output_tokens").first()
    if found is None:
        return 0
    status, output_tokens = found
    return None if status == Run.Status.QUEUED else output_tokens


def queue_up(run: Run) -> bool:
    """Queue a waiting run and wake a worker, the one that has room for it if there is such.

    False when Redis or the broker is away: the reaper repeats it. What the run needs: `publishing.enqueue`.
    """
    placed = publishing.enqueue(run)
    return placed is not None and tickets.send(
        pool=run.pool.slug, boot_id=placed.boot_id, expected=placed.boot_id != ""
    )


def _take_over_named(cell: Cell, *, run_id: UUID, epoch: int, cause: Attempt.Outcome, now: datetime) -> bool:
    streaming = Run.objects.filter(id=run_id, epoch=epoch, status=Run.Status.STREAMING)
    run = streaming.select_related("pool").defer("prompt_ids", "carry_ids", "carry_text").first()
    return run is not None and take_over(cell, run, cause=cause, now=now)


def _published(sealed: stream.Sealed) -> runs.Published:
    first_at = None if sealed.first_ms is None else datetime.fromtimestamp(sealed.first_ms / 1000, UTC)
    return runs.Published(ids=sealed.ids, text=sealed.text, first_at=first_at)
