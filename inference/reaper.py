"""The reaper: what a process that died, or a Redis that forgot, has left undone is done here.

Every rule is idempotent, and any number of reapers may run at any time; the database's conditional updates and the
scripts decide. Source of the rules: R1–R6 and H of the turn protocol (docs/turn.md).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import structlog
from django.db.models import Max, QuerySet

from billing import api as billing
from inference import admission, publishing, runs, store, tickets
from inference.cell import admission as cell_admission
from inference.cell import queue, stream, workers
from inference.cell.admission import AccountState, Reservation
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.cell.queue import Ticketed
from inference.models import Run

log = structlog.get_logger(__name__)
T = TypeVar("T")

# How often a run may be begun before it ends as interrupted.
MAX_EPOCHS = 3
# How long a run may wait for a worker.
WAIT_BOUND = timedelta(minutes=5)
# What a web or worker process does within moments after a commit is left to it for this long.
GRACE_MS = 2_000
# An acceptance that takes longer than this from admission to its end is taken for dead.
UNCONFIRMED_MS = 30_000
# Lost tickets sent again at a time, for each pool.
TICKETS = 8
# Passes come every second; after a longer pause nobody knows whether workers could renew their leases.
SIGHT_GAP = timedelta(seconds=5)

Counts = Counter[str]


class Sight:
    """Since when this process has had one incarnation of Redis in sight, without a gap.

    A missing lease counts only after one lease's time of that: before, a living worker may have had no Redis to renew
    it in.
    """

    def __init__(self) -> None:
        self._incarnation: str | None = None
        self._since: datetime | None = None
        self._last: datetime | None = None

    def is_clear(self, *, incarnation: str, now: datetime) -> bool:
        """Note that the incarnation answers now; whether it has for long enough."""
        if (
            self._since is None
            or self._last is None
            or incarnation != self._incarnation
            or now - self._last > SIGHT_GAP
        ):
            self._since = now
        self._incarnation, self._last = incarnation, now
        return now - self._since > timedelta(milliseconds=workers.LEASE_MS)

    def lose(self) -> None:
        """Redis does not answer."""
        self._incarnation = None


_sight = Sight()


def reap(*, now: datetime, sight: Sight = _sight) -> Counts:
    """One pass of all rules; returns how often each did something.

    Without Redis only runs that wait for too long are ended.
    """
    done: Counts = Counter()
    # Read before queues and leases: a run that was claimed since has a lease.
    active = list(_light(Run.objects.filter(status__in=Run.ACTIVE).order_by("id")))
    queued = [run for run in active if run.status == Run.Status.QUEUED]
    streaming = [run for run in active if run.status == Run.Status.STREAMING]
    overdue = [run for run in queued if _is_overdue(run, now=now)]
    _each(overdue, lambda run: _give_up(run, now=now), done=done, rule="gave_up")
    try:
        cell = store.connector().cell()
        is_clear = sight.is_clear(incarnation=cell.keys.incarnation, now=now)
        for pool, waiting in _by_pool(run for run in queued if run not in overdue).items():
            _requeue(cell, waiting, pool=pool, now=now, done=done)
            _wake(cell, pool=pool, now=now, done=done)
        for pool, running in _by_pool(streaming).items():
            if is_clear:
                _take_over_lost(cell, running, pool=pool, now=now, done=done)
        _tidy_accounts(cell, owners={run.owner_id for run in active}, now=now, done=done)
    except StoreUnavailable as error:
        sight.lose()
        log.warning("reaper_without_redis", error=str(error))
    done += Counter()  # forgets what did nothing
    if done:
        log.info("reaped", **done)
    return done


def take_over(cell: Cell, run: Run, *, now: datetime) -> bool:
    """H: fence a lost epoch, read what it published, and have the next epoch go on. Raises StoreUnavailable."""
    seal = stream.seal(cell.keys, run_id=run.id, epoch=run.epoch, base_epoch=run.base_epoch)
    published = stream.read_seal(cell.call(seal))
    taken = runs.take_over(
        run_id=run.id,
        epoch=run.epoch,
        incarnation=run.stream_incarnation,
        published=None if published is None else runs.Published(ids=published[0], text=published[1]),
        max_epochs=MAX_EPOCHS,
        now=now,
    )
    match taken:
        case None:
            return False
        case runs.Ended(run=ended, text=text):
            publishing.announce_end(ended, text=text)
        case requeued:
            _queue(requeued)
    return True


def _each(found: Iterable[T], act: Callable[[T], int], *, done: Counts, rule: str) -> None:
    """Act on each and count; one that cannot be helped must not keep the others waiting."""
    for one in found:
        try:
            done[rule] += act(one)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("not_reaped", what=str(one), rule=rule)


def _light(found: QuerySet[Run]) -> QuerySet[Run]:
    return found.select_related("pool").defer("prompt_ids", "carry_ids", "carry_text")


def _by_pool(found: Iterable[Run]) -> dict[str, list[Run]]:
    pools: dict[str, list[Run]] = {}
    for run in found:
        pools.setdefault(run.pool.slug, []).append(run)
    return pools


def _name(run: Run) -> Ticketed:
    return Ticketed(run_id=run.id, epoch=run.epoch)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _queue(run: Run) -> bool:
    return publishing.enqueue(run) and tickets.send(pool=run.pool.slug)


def _is_overdue(run: Run, *, now: datetime) -> bool:
    if run.created_at + WAIT_BOUND > now:
        return False
    requeued_at = run.attempts.aggregate(latest=Max("ended_at"))["latest"]
    return requeued_at is None or requeued_at + WAIT_BOUND <= now


def _give_up(run: Run, *, now: datetime) -> bool:
    """R1: a run that waited too long fails."""
    ended = runs.fail_queued(run_id=run.id, error_code="queue_timeout", now=now)
    if ended is None:
        return False
    publishing.dequeue(ended.run)
    publishing.announce_end(ended.run, text=ended.text)
    return True


def _requeue(cell: Cell, queued: list[Run], *, pool: str, now: datetime, done: Counts) -> None:
    """R1: a run that waits in the database and not in the queue is queued (again)."""
    names = [_name(run) for run in queued]
    known = cell.run(lambda client: queue.waiting(client, cell.keys, pool=pool, runs=names))
    # A worker that has just claimed one is about to say so in the database.
    known |= cell.run(lambda client: queue.leased(client, cell.keys, pool=pool, runs=names, now_ms=_ms(now)))
    _each([run for run in queued if _name(run) not in known], _queue, done=done, rule="queued")


def _take_over_lost(cell: Cell, streaming: list[Run], *, pool: str, now: datetime, done: Counts) -> None:
    """R2: a run whose worker has let its lease expire goes on with the next epoch."""
    names = [_name(run) for run in streaming]
    held = cell.run(lambda client: queue.leased(client, cell.keys, pool=pool, runs=names, now_ms=_ms(now)))
    lost = [run for run in streaming if _name(run) not in held]
    _each(lost, lambda run: take_over(cell, run, now=now), done=done, rule="took_over")


def _wake(cell: Cell, *, pool: str, now: datetime, done: Counts) -> None:
    """R6: runs that wait although workers have room have lost their tickets."""
    load = cell.run(lambda client: queue.load(client, cell.keys, pool=pool, now_ms=_ms(now)))
    if load.oldest_ms is None or _ms(now) - load.oldest_ms < GRACE_MS:
        return
    reports = cell.run(lambda client: workers.alive(client, cell.keys, pool=pool, now_ms=_ms(now)))
    room = sum(report.slots for report in reports) - load.leased
    for _ in range(min(room, load.waiting, TICKETS)):
        done["woke"] += tickets.send(pool=pool)


def _tidy_accounts(cell: Cell, *, owners: set[UUID], now: datetime, done: Counts) -> None:
    """R3–R5: holds that are over are settled; accounts that Redis lost, or has too old, are rebuilt."""
    users = owners | cell.run(lambda client: cell_admission.holders(client, cell.keys))
    accounts = cell.run(lambda client: cell_admission.states(client, cell.keys, user_ids=users))
    generations = billing.account_generations(user_ids=users)
    # Read after the holds: whatever was accepted under one of them in between is found.
    live = set(Run.objects.filter(status__in=Run.ACTIVE).values_list("admission_id", flat=True))

    def tidy(account: AccountState) -> bool:
        over = [hold for hold in account.reservations if hold.admission_id not in live]
        verdicts = [_settle_over(account.user_id, hold, now=now, done=done) for hold in over]
        behind = account.generation is None or account.generation < generations.get(account.user_id, 0)
        if not (behind or any(verdicts)) or not admission.elected(cell, user_id=account.user_id):
            return False
        admission.rebuild(cell, user_id=account.user_id, now=now)
        return True

    _each(accounts, tidy, done=done, rule="rebuilt")


def _settle_over(user_id: UUID, hold: Reservation, *, now: datetime, done: Counts) -> bool:
    """R3, R4: settle a hold of no active run. True when it is an orphan: only a rebuild may drop it."""
    run = _light(Run.objects.filter(owner_id=user_id, admission_id=hold.admission_id)).first()
    if run is None and not hold.is_confirmed:
        return _ms(now) - hold.made_at_ms >= UNCONFIRMED_MS
    if run is None:
        # Its run has another admission by now: it was retried.
        admission.settle(user_id=user_id, admission_id=hold.admission_id)
        done["settled"] += 1
    elif run.finished_at is not None and _ms(now) - _ms(run.finished_at) >= GRACE_MS:
        # Whoever ended it appends its terminal event before it settles, so that may be missing too.
        publishing.announce_end(run, text=None)
        done["closed"] += 1
    return False
