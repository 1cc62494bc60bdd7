"""Billing as the other apps see it: limits, the account lock, and the ledger."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import F, Q, Sum

from billing import metering, sums
from billing.contracts import Charge, HourOfUse, Prices, Used
from billing.debts import charged_lately, checkpoint, debt_of, due_for_checkpoint, ever_charged
from billing.errors import AccountRebuilt
from billing.history import history_days_of, shortest_history
from billing.limits import limits_for, plan_for, tiers
from billing.metering import complete_days, meter, metering_backlog, remeter
from billing.models import Account, Plan, Subscription, UsageEntry
from billing.money import amount
from billing.selectors import adjusted, daily_usage, has_own_limits, run_charge, usage_since
from billing.takeaway import SECTIONS as TAKEAWAY
from billing.takeaway import page_of as takeaway_page

__all__ = [
    "TAKEAWAY",
    "account_generation",
    "account_generations",
    "adjusted",
    "advance_generation",
    "amount",
    "charged",
    "charged_lately",
    "charges_of",
    "checkpoint",
    "complete_days",
    "daily_usage",
    "debt_of",
    "due_for_checkpoint",
    "ever_charged",
    "has_own_limits",
    "history_days_of",
    "hold_account",
    "hourly_usage",
    "limits_for",
    "lock_account",
    "meter",
    "metering_backlog",
    "plan_for",
    "plans_of",
    "pool_usage",
    "record",
    "remeter",
    "run_charge",
    "shortest_history",
    "system_usage",
    "takeaway_page",
    "tiers",
    "usage_of",
    "usage_since",
    "used_tokens",
]


def plans_of(*, user_ids: Sequence[UUID], now: datetime) -> dict[UUID, str]:
    """The name of each user's plan: of the current subscription, or of the default plan."""
    default = Plan.objects.filter(is_default=True).values_list("name", flat=True).first() or ""
    current = (
        Subscription.objects.filter(user_id__in=user_ids, starts_at__lte=now)
        .filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now))
        .order_by("starts_at")
        .values_list("user_id", "plan__name")
    )
    return dict.fromkeys(user_ids, default) | dict(current)


def account_generation(*, user_id: UUID) -> int:
    """The generation of the user's quota account; opens the account on first use."""
    account, _ = Account.objects.get_or_create(user_id=user_id)
    return account.quota_gen


def account_generations(*, user_ids: Iterable[UUID]) -> dict[UUID, int]:
    """The generations of these users' accounts; a user who has none yet is left out."""
    return dict(Account.objects.filter(user_id__in=list(user_ids)).values_list("user_id", "quota_gen"))


def hold_account(*, user_id: UUID) -> None:
    """Hold the account's row, if there is one, until the transaction ends, whatever its generation."""
    Account.objects.select_for_update().filter(user_id=user_id).first()


def lock_account(*, user_id: UUID, generation: int) -> None:
    """Hold the account's row until the transaction ends.

    Raises AccountRebuilt when its counters were rebuilt since the admission that `generation` belongs to.
    """
    account = Account.objects.select_for_update().get(user_id=user_id)
    if account.quota_gen != generation:
        raise AccountRebuilt(expected=generation, current=account.quota_gen)


def advance_generation(*, user_id: UUID) -> int:
    """Void every acceptance in flight, before the account's Redis counters are rebuilt. Returns the new generation."""
    Account.objects.get_or_create(user_id=user_id)
    Account.objects.filter(user_id=user_id).update(quota_gen=F("quota_gen") + 1)
    return Account.objects.values_list("quota_gen", flat=True).get(user_id=user_id)


def record(charge: Charge) -> None:
    """Append one attempt's row, and say that its day is to be metered; call it inside the transaction that ends the
    attempt.
    """
    UsageEntry.objects.create(
        user_id=charge.user_id,
        run_id=charge.run_id,
        epoch=charge.epoch,
        admission_id=charge.admission_id,
        pool=charge.pool,
        reason=charge.reason,
        purpose=charge.purpose,
        prompt_tokens=charge.prompt_tokens,
        cached_tokens=charge.cached_tokens,
        output_tokens=charge.output_tokens,
        wasted_tokens=charge.wasted_tokens,
        prompt_price=charge.prices.prompt,
        cached_price=charge.prices.cached,
        output_price=charge.prices.output,
        cost=charge.cost,
        created_at=charge.at,
    )
    if charge.user_id is not None:
        metering.note(user_id=charge.user_id, at=charge.at, pool=charge.pool)


def charged(*, admission_id: UUID) -> int:
    """Tokens charged so far to one admission: its rows' prompt and output tokens."""
    sums = UsageEntry.objects.filter(admission_id=admission_id).aggregate(
        prompt=Sum("prompt_tokens", default=0), output=Sum("output_tokens", default=0)
    )
    return int(sums["prompt"] + sums["output"])


def used_tokens(*, user_id: UUID, except_admissions: Iterable[UUID] = ()) -> int:
    """All tokens ever charged to the user, leaving out admissions whose reservation still covers them.

    What runs used, that is: adjustments stand beside it.
    """
    sums = (
        UsageEntry.objects.filter(user_id=user_id)
        .exclude(admission_id__in=list(except_admissions))
        .aggregate(prompt=Sum("prompt_tokens", default=0), output=Sum("output_tokens", default=0))
    )
    return int(sums["prompt"] + sums["output"])


def usage_of(*, user_ids: Sequence[UUID], since: datetime) -> dict[UUID, Used]:
    """What each of these users has used since then; one query, and no entry for who has used nothing."""
    return sums.of_users(user_ids=user_ids, since=since)


def hourly_usage(*, since: datetime) -> list[HourOfUse]:
    """Everybody's tokens since then by hour, oldest first; hours without any are left out."""
    return sums.by_hour(since=since)


def system_usage(*, since: datetime) -> dict[str, Used]:
    """What the system itself has used since then, by purpose; those for which it used nothing are left out."""
    return sums.by_purpose(since=since)


def pool_usage(*, since: datetime) -> dict[str, Used]:
    """Pool (its slug) → everybody's tokens since then, for those that gave any."""
    return sums.by_pool(since=since)


def charges_of(*, user_id: UUID, since: datetime | None = None) -> list[Charge]:
    """Every row of the ledger that names the user, or those since then, oldest first."""
    rows = UsageEntry.objects.filter(user_id=user_id)
    if since is not None:
        rows = rows.filter(created_at__gte=since)
    return [
        Charge(
            user_id=entry.user_id,
            run_id=entry.run_id,
            epoch=entry.epoch,
            admission_id=entry.admission_id,
            pool=entry.pool,
            reason=entry.reason,
            purpose=entry.purpose,
            prompt_tokens=entry.prompt_tokens,
            cached_tokens=entry.cached_tokens,
            output_tokens=entry.output_tokens,
            wasted_tokens=entry.wasted_tokens,
            at=entry.created_at,
            prices=Prices(prompt=entry.prompt_price, cached=entry.cached_price, output=entry.output_price),
        )
        for entry in rows.order_by("id")
    ]
