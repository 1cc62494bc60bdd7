"""Sums over the usage ledger."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from django.db import connection
from django.db.models import Count, Q, Sum, TextField
from django.db.models.functions import Cast, Substr, TruncHour

from billing.contracts import HourOfUse, Used
from billing.models import UsageEntry

# What is summed, by its name in `Used`.
COLUMNS = {
    "prompt": "prompt_tokens",
    "cached": "cached_tokens",
    "output": "output_tokens",
    "wasted": "wasted_tokens",
    "cost": "cost",
}
# A run that another worker went on with has a row per attempt; a lost one is not its end.
ENDED = ~Q(reason=UsageEntry.Reason.LOST)
# All that `Used` says, as annotations: the names of the columns are taken.
USED = {"runs": Count("run_id", filter=ENDED, distinct=True)} | {
    f"sum_{name}": Sum(column, default=0) for name, column in COLUMNS.items()
}


def of_users(*, user_ids: Sequence[UUID], since: datetime) -> dict[UUID, Used]:
    """User id → tokens since then, for those who have used any."""
    rows = UsageEntry.objects.filter(user_id__in=user_ids, created_at__gte=since).order_by()
    return {row["user_id"]: _used(row) for row in _summed(rows.values("user_id"))}


def by_pool(*, since: datetime) -> dict[str, Used]:
    """Pool → everybody's tokens since then, for those that gave any."""
    rows = UsageEntry.objects.filter(created_at__gte=since).order_by()
    return {row["pool"]: _used(row) for row in _summed(rows.values("pool"))}


def by_purpose(*, since: datetime) -> dict[str, Used]:
    """Purpose → tokens since then of what was no user's answer, for those that used any."""
    purposes = [purpose for purpose in UsageEntry.Purpose.values if purpose != UsageEntry.Purpose.TURN]
    rows = UsageEntry.objects.filter(purpose__in=purposes, created_at__gte=since).order_by()
    return {row["purpose"]: _used(row) for row in _summed(rows.values("purpose"))}


def by_hour(*, since: datetime) -> list[HourOfUse]:
    """Everybody's tokens since then, by hours of UTC, oldest first."""
    rows = UsageEntry.objects.filter(created_at__gte=since).values(hour=_hour_column()).order_by("hour")
    return [HourOfUse(begins_at=_hour(row["hour"]), tokens=_used(row)) for row in _summed(rows)]


def _summed(rows: Any) -> list[dict[str, Any]]:
    sums = {f"sum_{name}": Sum(column, default=0) for name, column in COLUMNS.items()}
    return cast("list[dict[str, Any]]", list(rows.annotate(**sums)))


def _hour_column() -> Substr | TruncHour:
    """SQLite keeps times as text in UTC, `2026-03-01 12:…`, and would call Python for every row to truncate them: ten
    times as long. How Postgres writes a time as text is up to its settings.
    """
    if connection.vendor == "sqlite":
        return Substr(Cast("created_at", TextField()), 1, 13)
    return TruncHour("created_at", tzinfo=UTC)


def _hour(found: str | datetime) -> datetime:
    return found if isinstance(found, datetime) else datetime.strptime(found, "%Y-%m-%d %H").replace(tzinfo=UTC)


def _used(row: dict[str, Any]) -> Used:
    # Postgres sums columns of 64 bits to decimals.
    return Used(**{name: int(row[f"sum_{name}"]) for name in COLUMNS})
