"""Reads of the ledger and of what is metered from it, always of one user or run. Days are those of UTC."""

from datetime import UTC, date, datetime
from uuid import UUID

from django.db.models import Count, F, Min, Q, QuerySet, Sum
from django.db.models.functions import TruncDate

from billing import metering
from billing.contracts import Adjusted, DayUsage, RunCharge, Used
from billing.models import Adjustment, DailyUsage, LimitOverride, UsageEntry, UsageEvent
from billing.sums import COLUMNS, ENDED, USED


def usage_since(*, user_id: UUID, starts: list[datetime]) -> list[Used]:
    """What the ledger holds from each of these moments on, in one query over the rows since the earliest."""
    columns: dict[str, Sum | Count] = {}
    for number, start in enumerate(starts):
        since = Q(created_at__gte=start)
        columns |= {f"{name}_{number}": Sum(column, filter=since, default=0) for name, column in COLUMNS.items()}
        columns[f"runs_{number}"] = Count("run_id", filter=since & ENDED, distinct=True)
    sums = UsageEntry.objects.filter(user_id=user_id, created_at__gte=min(starts)).aggregate(**columns)
    return [
        Used(**{name: int(sums[f"{name}_{number}"]) for name in (*COLUMNS, "runs")}) for number in range(len(starts))
    ]


def daily_usage(*, user_id: UUID, since: date) -> list[DayUsage]:
    """What the user used from this day on by day and pool, the newest day first. No entry where there is nothing.

    Never behind the ledger: from the first day on that is not yet metered, the ledger itself is summed. That is today
    and perhaps yesterday, unless metering has stood still.
    """
    # Asked first. A day that is metered between the two reads is then summed from the ledger all the same; the other
    # way round its old sums would be read.
    pending = UsageEvent.objects.filter(user_id=user_id, day__gte=since).aggregate(first=Min("day"))["first"]
    stored = DailyUsage.objects.filter(user_id=user_id, day__gte=since)
    if pending is None:
        return _metered(stored)
    return _summed(user_id=user_id, since=pending) + _metered(stored.filter(day__lt=pending))


def run_charge(*, run_id: UUID) -> RunCharge:
    """What all of a run's attempts come to, those before a retry included."""
    found = UsageEntry.objects.filter(run_id=run_id).aggregate(
        charged=Sum(F("prompt_tokens") + F("output_tokens"), default=0), wasted=Sum("wasted_tokens", default=0)
    )
    return RunCharge(charged=int(found["charged"]), wasted=int(found["wasted"]))


def _metered(rows: QuerySet[DailyUsage]) -> list[DayUsage]:
    return [
        DayUsage(
            day=row.day,
            pool=row.pool,
            used=Used(runs=row.runs, **{name: getattr(row, column) for name, column in COLUMNS.items()}),
        )
        for row in rows
    ]


def _summed(*, user_id: UUID, since: date) -> list[DayUsage]:
    begin, _ = metering.bounds(since)
    rows = (
        UsageEntry.objects.filter(user_id=user_id, created_at__gte=begin)
        .annotate(day=TruncDate("created_at", tzinfo=UTC))
        .values("day", "pool")
        .annotate(**USED)
        .order_by("-day", "pool")
    )
    return [
        DayUsage(day=day, pool=pool, used=Used(runs=runs, **dict(zip(COLUMNS, map(int, sums), strict=True))))
        for day, pool, runs, *sums in rows.values_list("day", "pool", *USED)
    ]


def adjusted(*, user_id: UUID, since: datetime) -> Adjusted:
    """What people's adjustments of the user add up to since then."""
    sums = Adjustment.objects.filter(user_id=user_id, created_at__gte=since).aggregate(
        tokens=Sum("tokens", default=0), cost=Sum("cost", default=0)
    )
    return Adjusted(tokens=int(sums["tokens"]), cost=int(sums["cost"]))


def has_own_limits(*, user_id: UUID, now: datetime) -> bool:
    """Whether some of the plan's numbers are replaced for this user alone."""
    return LimitOverride.objects.filter(Q(until__isnull=True) | Q(until__gt=now), user_id=user_id).exists()
