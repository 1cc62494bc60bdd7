"""The reaper: what a process that died, or a Redis that forgot, has left undone is done here.

Every rule is idempotent, and any number of reapers may run at any time; the database's conditional updates and the
scripts decide. Source of the rules: R1–R6 of the turn protocol (docs/turn.md).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog
from django.db.models import QuerySet

from billing import api as billing
from inference import admission, publishing, runs, store, takeover, tickets
from inference.cell import admission as cell_admission
from inference.cell import queue, sight, stream
from inference.cell.admission import AccountState, Reservation
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.cell.purge import Purge
from inference.cell.queue import Ticketed
from inference.models import Run

log = structlog.get_logger(__name__)
T = TypeVar("T")

# What a web or worker process does within moments after a commit is left to it for this long.
GRACE_MS = 2_000
# An acceptance that takes longer than this from admission to its end is taken for dead.
UNCONFIRMED_MS = 30_000
# Lost tickets sent again at a time, for each pool.
TICKETS = 8
# A worker ends its answers at their deadlines; one that has not by then is taken for lost.
DEADLINE_GRACE = timedelta(seconds=10)
# The same for an answer that its user stopped.
CANCEL_GRACE = timedelta(seconds=2)

Counts = Counter[str]
Watch = Callable[[Cell], bool]


_purge = Purge()


def reap(*, now: datetime, watch: Watch = sight.watch, purge: Purge = _purge) -> Counts:
    """One pass of all rules; returns how often each did something.

    Takes a lease's time (`watch`) where a lease has lapsed. Without Redis only runs that wait for too long are ended.
    """
    done: Counts = Counter()
    # Read before queues and leases: a run that was claimed since has a lease.
    active = list(_light(Run.objects.filter(status__in=Run.ACTIVE).order_by("id")))
    queued = [run for run in active if run.status == Run.Status.QUEUED]
    streaming = [run for run in active if run.status == Run.Status.STREAMING]
    overdue = [run for run in queued if run.deadline_at <= now]
    unruly = [run for run in streaming if _is_unruly(run, now=now)]
    waiting = _by_pool(run for run in queued if run not in overdue)
    given_up: list[runs.Ended] = []
    _each(overdue, lambda run: _give_up(run, now=now, ended=given_up), done=done, rule="gave_up")
    try:
        cell = store.connector().cell()
        rules: list[Callable[[], object]] = [
            # All have ended by now, so that a Redis that hangs keeps none of them waiting.
            lambda: _each(given_up, _retire, done=done, rule="gave_up"),
            *(partial(_requeue, cell, found, pool=pool, now=now, done=done) for pool, found in waiting.items()),
            *(partial(_wake, cell, found, pool=pool, now=now, done=done) for pool, found in waiting.items()),
            lambda: _each(unruly, lambda run: takeover.take_over(cell, run, now=now), done=done, rule="ended"),
            lambda: _close_left_open(cell, active={run.id for run in active}, now=now, done=done),
            lambda: _tidy_accounts(cell, owners={run.owner_id for run in active}, now=now, done=done),
            lambda: done.update(purged=cell.run(lambda client: purge.step(client, cell.keys))),
            # The last, because it may take its time.
            lambda: _take_over_lost(
                cell, [run for run in streaming if run not in unruly], watch=watch, now=now, done=done
            ),
        ]
        for rule in rules:
            _apply(rule)
    except StoreUnavailable as error:
        log.warning("reaper_without_redis", error=str(error))
    done += Counter()  # forgets what did nothing
    if done:
        log.info("reaped", **done)
    return done


def _apply(rule: Callable[[], object]) -> None:
    """Follow one rule; one that fails must not keep the others from being followed."""
    try:
        rule()
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("rule_failed")


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


def _is_unruly(run: Run, *, now: datetime) -> bool:
    """R2: an answer that its worker should have ended by now, at its deadline or because it was stopped."""
    stopped = run.cancel_requested_at is not None and run.cancel_requested_at + CANCEL_GRACE <= now
    return stopped or run.deadline_at + DEADLINE_GRACE <= now


def _give_up(run: Run, *, now: datetime, ended: list[runs.Ended]) -> bool:
    """R1: a run that waited too long ends."""
    end = runs.expire_queued(run_id=run.id, now=now)
    if end is None:
        return False
    ended.append(end)
    return True


def _retire(end: runs.Ended) -> bool:
    """Tell of a run that waited too long. Without Redis nobody can: R3 and R4 do it later."""
    publishing.retire(end.run, text=end.text)
    return False  # it is counted already


def _requeue(cell: Cell, queued: list[Run], *, pool: str, now: datetime, done: Counts) -> None:
    """R1: a run that waits in the database and not in the queue is queued (again)."""
    names = [_name(run) for run in queued]
    sought = [queue.Queued(run=_name(run), user_id=run.owner_id, tier=run.tier) for run in queued]
    known = cell.run(lambda client: queue.waiting(client, cell.keys, pool=pool, runs=sought))
    # A worker that has just claimed one is about to say so in the database.
    known |= cell.run(lambda client: queue.leased(client, cell.keys, pool=pool, runs=names, now_ms=_ms(now)))
    _each([run for run in queued if _name(run) not in known], takeover.queue_up, done=done, rule="queued")


def _take_over_lost(cell: Cell, streaming: list[Run], *, watch: Watch, now: datetime, done: Counts) -> None:
    """R2: a run whose worker has let its lease expire, and does not renew it now, goes on with the next epoch.

    Redis may have hung until a moment ago, so that nobody could renew any. A worker that lives does so while this
    watches.
    """
    before = _lapsed(cell, streaming, now=now)
    if not before or not watch(cell):
        return
    after = _lapsed(cell, [run for run in streaming if _name(run) in before], now=now)
    # Compared with itself, no lease depends on whose clock is right.
    lost = {name for name, end in before.items() if name in after and after[name] == end}
    still = _light(Run.objects.filter(id__in=[name.run_id for name in lost], status=Run.Status.STREAMING))
    gone = [run for run in still if _name(run) in lost]
    _each(gone, lambda run: takeover.take_over(cell, run, now=now), done=done, rule="took_over")


def _lapsed(cell: Cell, streaming: list[Run], *, now: datetime) -> dict[Ticketed, int | None]:
    """The runs that nobody holds, and when each one's lease ended (ms); None without a lease."""
    ends: dict[Ticketed, int | None] = {}
    for pool, found in _by_pool(streaming).items():
        names = [_name(run) for run in found]
        ends |= cell.run(partial(queue.leases, keys=cell.keys, pool=pool, runs=names))
    return {name: end for name, end in ends.items() if end is None or end < _ms(now)}


def _wake(cell: Cell, waiting: list[Run], *, pool: str, now: datetime, done: Counts) -> None:
    """R6: runs that wait although workers have room have lost their tickets."""
    if now - min(run.asked_at for run in waiting) < timedelta(milliseconds=GRACE_MS):
        return
    room = cell.run(lambda client: queue.room(client, cell.keys, pool=pool, now_ms=_ms(now)))
    for _ in range(min(room, len(waiting), TICKETS)):
        done["woke"] += tickets.send(pool=pool)


def _close_left_open(cell: Cell, *, active: set[UUID], now: datetime, done: Counts) -> None:
    """R4: the stream of a run that is over gets its terminal event, which names no text."""
    left = cell.run(lambda client: stream.left_open(client, cell.keys)) - active
    if not left:
        return
    known = {run.id: run for run in _light(Run.objects.filter(id__in=left))}
    over = [
        run for run in known.values() if run.finished_at is not None and _ms(now) - _ms(run.finished_at) >= GRACE_MS
    ]
    _each(over, _announce, done=done, rule="closed")
    gone = left - set(known)
    if gone:
        cell.run(lambda client: stream.forget_open(client, cell.keys, run_ids=gone))


def _announce(run: Run) -> bool:
    publishing.announce_end(run, text=None)
    return True


def _tidy_accounts(cell: Cell, *, owners: set[UUID], now: datetime, done: Counts) -> None:
    """R3, R5: holds that are over are settled; accounts that Redis lost, or has too old, are rebuilt."""
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
    """R3: settle a hold of no active run. True when it is an orphan: only a rebuild may drop it."""
    run = _light(Run.objects.filter(owner_id=user_id, admission_id=hold.admission_id)).first()
    if run is None and not hold.is_confirmed:
        return _ms(now) - hold.made_at_ms >= UNCONFIRMED_MS
    # Without a run, its run has another admission by now: it was retried.
    if run is None or (run.finished_at is not None and _ms(now) - _ms(run.finished_at) >= GRACE_MS):
        admission.settle(user_id=user_id, admission_id=hold.admission_id)
        done["settled"] += 1
    return False
