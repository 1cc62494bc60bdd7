"""What operators are shown of runs: loads, outcomes and failures, each read from one index."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Count

from inference.contracts import PoolGauges, PoolLoad, RunBrief
from inference.models import ModelPool, Run

_FAILED = (Run.Status.FAILED, Run.Status.INTERRUPTED)
_BRIEF = ("id", "owner_id", "pool__slug", "status", "error_code", "created_at", "finished_at")


def loads(*, gauges: Sequence[PoolGauges]) -> list[PoolLoad]:
    """Each pool with its active runs; `engines` is None for a pool that `gauges` leaves out."""
    reported = {gauge.pool: gauge for gauge in gauges}
    active = Run.objects.filter(status__in=Run.ACTIVE).values_list("pool_id", "status").annotate(n=Count("id"))
    counts = {(pool_id, status): n for pool_id, status, n in active.order_by()}
    return [
        PoolLoad(
            slug=pool.slug,
            name=pool.name,
            id=pool.id,
            is_open=pool.is_open,
            is_default=pool.is_default,
            running=counts.get((pool.id, Run.Status.STREAMING), 0),
            waiting=counts.get((pool.id, Run.Status.QUEUED), 0),
            engines=reported.get(pool.slug),
        )
        for pool in ModelPool.objects.order_by("-is_default", "slug")
    ]


def longest_running(*, limit: int) -> list[RunBrief]:
    """The streaming runs that were accepted first."""
    rows = Run.objects.filter(status=Run.Status.STREAMING).order_by("id").values_list(*_BRIEF)[:limit]
    return [_brief(*row) for row in rows]


def latest_failures(*, limit: int) -> list[RunBrief]:
    """The failed and interrupted runs that were accepted last, newest first."""
    # One query for each status: an index has the newest of one, not of two.
    rows = [
        row
        for status in _FAILED
        for row in Run.objects.filter(status=status).order_by("-id").values_list(*_BRIEF)[:limit]
    ]
    return [_brief(*row) for row in sorted(rows, reverse=True)[:limit]]


def outcomes_since(*, since: datetime) -> dict[str, int]:
    """Status → how many of the runs accepted since then have it now."""
    rows = Run.objects.filter(status__in=Run.Status.values, id__gte=first_id(since)).values_list("status")
    return dict(rows.annotate(n=Count("id")).order_by())


def active_counts(*, owner_ids: Sequence[UUID]) -> dict[UUID, int]:
    """Owner id → answers under way, for those who have any."""
    counts = Counter(owner_id for _, owner_id in _active())
    return {owner_id: counts[owner_id] for owner_id in owner_ids if counts[owner_id]}


def active_of(*, owner_id: UUID) -> list[RunBrief]:
    """The owner's answers under way, oldest first."""
    mine = [run_id for run_id, whose in _active() if whose == owner_id]
    return [_brief(*row) for row in Run.objects.filter(id__in=mine).order_by("id").values_list(*_BRIEF)]


def _active() -> list[tuple[UUID, UUID]]:
    """Every active run of a turn and its owner: no more than the queues hold.

    Asked for an owner's as well, SQLite reads all that the owner ever ran: 60 ms for a hundred thousand.
    """
    turns = Run.objects.filter(status__in=Run.ACTIVE, kind=Run.Kind.TURN)
    return list(turns.values_list("id", "owner_id").order_by())


def first_id(moment: datetime) -> UUID:
    """The least UUIDv7 of the moment: an id's first 48 bits are its time in ms (RFC 9562, 5.7)."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)


def _brief(
    run_id: UUID,
    owner_id: UUID,
    pool: str,
    status: str,
    error_code: str,
    created_at: datetime,
    finished_at: datetime | None,
) -> RunBrief:
    return RunBrief(
        id=run_id,
        owner_id=owner_id,
        pool=pool,
        status=status,
        error_code=error_code,
        created_at=created_at,
        finished_at=finished_at,
    )
