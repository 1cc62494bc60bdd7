"""What the account page shows of usage: the plan, where the user stands in it, and the last 30 days."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from uuid import UUID

from billing import api as billing
from billing.contracts import PlanInfo, Used
from chatsite.chart import Chart
from chatsite.days import start_of_day
from inference import api as inference
from inference.contracts import BudgetStanding, WindowStanding

DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DayOfUse:
    """One day of UTC, all pools together."""

    begins_at: date
    tokens: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The section. A standing is None where the plan has no such limit, and while Redis is away (`is_known` False)."""

    plan: PlanInfo
    running: int
    is_known: bool
    budget: BudgetStanding | None
    messages: WindowStanding | None
    now: datetime
    today: Used
    month: Used
    chart: Chart

    @property
    def cost_today(self) -> str:
        return billing.amount(self.today.cost)

    @property
    def cost_month(self) -> str:
        return billing.amount(self.month.cost)

    @property
    def is_low(self) -> bool:
        """Whether less than a tenth of the budget is left."""
        return self.budget is not None and 10 * self.budget.remaining < self.budget.capacity

    @property
    def fills_soon(self) -> bool:
        """Whether the budget is full before there is a whole minute to be told."""
        return self.budget is not None and self.budget.full_at - self.now < timedelta(minutes=1)


def of_user(*, user_id: UUID, now: datetime) -> Panel:
    """The user's section. Changes nothing."""
    limits = billing.limits_for(user_id=user_id, now=now)
    quota = inference.quota_standing(user_id=user_id, limits=limits, now=now)
    days = _days(user_id=user_id, today=start_of_day(now).date())
    return Panel(
        plan=billing.plan_for(user_id=user_id, now=now),
        running=len(inference.active_runs_of(owner_id=user_id)),
        is_known=quota is not None,
        budget=None if quota is None else quota.budget,
        messages=None if quota is None else quota.messages,
        now=now,
        today=days[-1].tokens,
        month=sum((day.tokens for day in days), Used()),
        # What was computed in vain is nobody's, and no part of the bars.
        chart=Chart.of([replace(day, tokens=replace(day.tokens, wasted=0)) for day in days]),
    )


def _days(*, user_id: UUID, today: date) -> list[DayOfUse]:
    first = today - timedelta(days=DAYS - 1)
    used: defaultdict[date, Used] = defaultdict(Used)
    for day in billing.daily_usage(user_id=user_id, since=first):
        used[day.day] += day.used
    return [DayOfUse(begins_at=day, tokens=used[day]) for day in (first + timedelta(days=n) for n in range(DAYS))]
