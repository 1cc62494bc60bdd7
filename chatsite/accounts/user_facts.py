"""What staff are shown of users beside their rows: plan, usage, answers under way, ways in."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from allauth.usersessions.models import UserSession

from billing import api as billing
from billing.contracts import Adjusted, Used
from chatsite.accounts.models import ApiKey, User
from chatsite.days import start_of_day
from inference import api as inference
from inference.contracts import RunBrief

LONG = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A user's line in the list. Tokens of today are prompt plus output."""

    plan: str
    tokens_today: int
    active_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A user's page. Costs and adjustments are those of 30 days."""

    plan: str
    has_own_limits: bool
    today: Used
    thirty_days: Used
    adjusted: Adjusted
    cost: str
    adjusted_cost: str
    active_runs: Sequence[RunBrief]
    sessions: int
    keys: int


def briefs_of(*, user_ids: Sequence[UUID], now: datetime) -> dict[UUID, Brief]:
    """One brief for each of the users; four queries, however many they are."""
    plans = billing.plans_of(user_ids=user_ids, now=now)
    used = billing.usage_of(user_ids=user_ids, since=start_of_day(now))
    active = inference.active_counts(owner_ids=user_ids)
    return {
        user_id: Brief(
            plan=plans[user_id],
            tokens_today=used.get(user_id, Used()).charged,
            active_runs=active.get(user_id, 0),
        )
        for user_id in user_ids
    }


def facts_of(*, user: User, now: datetime) -> Facts:
    """What the page of one user shows."""
    today = billing.usage_of(user_ids=[user.pk], since=start_of_day(now))
    month = billing.usage_of(user_ids=[user.pk], since=now - LONG)
    thirty_days = month.get(user.pk, Used())
    adjusted = billing.adjusted(user_id=user.pk, since=now - LONG)
    return Facts(
        plan=billing.plans_of(user_ids=[user.pk], now=now)[user.pk],
        has_own_limits=billing.has_own_limits(user_id=user.pk, now=now),
        today=today.get(user.pk, Used()),
        thirty_days=thirty_days,
        adjusted=adjusted,
        cost=billing.amount(thirty_days.cost),
        adjusted_cost=billing.amount(adjusted.cost),
        active_runs=inference.active_briefs(owner_id=user.pk),
        sessions=UserSession.objects.filter(user=user).count(),
        keys=ApiKey.objects.filter(user=user, revoked_at=None).count(),
    )
