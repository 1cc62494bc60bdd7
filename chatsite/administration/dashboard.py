"""What the admin's front page shows: a fixed number of queries, each answered by an index.

Who may not see the lists behind a panel does not see the panel. Nothing here shows what anybody wrote.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from billing import api as billing
from billing.contracts import HourOfUse, Used
from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry
from chatsite.chart import Chart
from chatsite.days import start_of_day
from inference import api as inference
from inference.contracts import PoolLoad, RunBrief

LINES = 10
HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run in a table, and whose it is; an owner's row may be gone by now."""

    run: RunBrief
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What is answered now, and what became of today's runs. `engines_known` is False while Redis is away."""

    pools: Sequence[PoolLoad]
    engines_known: bool
    running: Sequence[RunLine]
    outcomes: Sequence[tuple[str, int]]
    failures: Sequence[RunLine]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWork:
    """What the system itself used for one purpose, and what that costs, for people."""

    purpose: str
    used: Used
    cost: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of today, and of each of the last 24 hours. `own` is the part of today's that no user is charged for."""

    today: Used
    own: Sequence[OwnWork]
    chart: Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """The page. None for a panel that this member of staff may not see."""

    now: datetime
    runs: Runs | None
    tokens: Tokens | None
    acts: Sequence[AuditEntry] | None


def for_staff(*, may: Callable[[str], bool], now: datetime) -> Dashboard:
    """The dashboard of somebody who `may` this and that, by the names of permissions."""
    return Dashboard(
        now=now,
        runs=_runs(now=now) if may("inference.view_run") else None,
        tokens=_tokens(now=now) if may("billing.view_usageentry") else None,
        acts=list(AuditEntry.objects.all()[:LINES]) if may("audit.view_auditentry") else None,
    )


def _runs(*, now: datetime) -> Runs:
    pools = inference.pool_loads()
    running = inference.longest_running(limit=LINES)
    failures = inference.latest_failures(limit=LINES)
    emails = dict(User.objects.filter(pk__in=_owners(running, failures)).values_list("pk", "email"))
    return Runs(
        pools=pools,
        engines_known=all(pool.engines is not None for pool in pools),
        running=[RunLine(run=run, owner=emails.get(run.owner_id, "")) for run in running],
        outcomes=sorted(inference.outcomes_since(since=start_of_day(now)).items()),
        failures=[RunLine(run=run, owner=emails.get(run.owner_id, "")) for run in failures],
    )


def _owners(*tables: Sequence[RunBrief]) -> set[UUID]:
    return {run.owner_id for table in tables for run in table}


def _tokens(*, now: datetime) -> Tokens:
    # In UTC days and hours the day never begins before the oldest of the 24: one query has both.
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    first = this_hour - timedelta(hours=HOURS - 1)
    used = {hour.begins_at: hour for hour in billing.hourly_usage(since=first)}
    hours = [first + timedelta(hours=number) for number in range(HOURS)]
    rows = [used.get(hour) or HourOfUse(begins_at=hour, tokens=Used()) for hour in hours]
    today = sum((row.tokens for row in rows if row.begins_at >= start_of_day(now)), Used())
    return Tokens(today=today, own=_own_work(since=start_of_day(now)), chart=Chart.of(rows))


def _own_work(*, since: datetime) -> list[OwnWork]:
    return [
        OwnWork(purpose=purpose, used=used, cost=billing.amount(used.cost))
        for purpose, used in sorted(billing.system_usage(since=since).items())
    ]
