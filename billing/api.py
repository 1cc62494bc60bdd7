"""Billing as the other apps see it: limits, the account lock, and the ledger."""

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db.models import F, Q, Sum

from billing.contracts import Charge, Limits
from billing.errors import AccountRebuilt
from billing.models import Account, Plan, Subscription, UsageEntry

_LIMITS = ("slug", "concurrent_runs", "max_prompt_tokens", "max_output_tokens", "weight")


def limits_for(*, user_id: UUID, now: datetime) -> Limits:
    """The limits of the user's current subscription, or of the default plan."""
    # Plain columns of two plain queries: on the path of every send, where one query for both takes 2 ms to compose.
    row = (
        Subscription.objects.filter(user_id=user_id, starts_at__lte=now)
        .filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now))
        .order_by("-starts_at")
        .values_list(*(f"plan__{name}" for name in _LIMITS))
        .first()
    )
    if row is None:
        row = Plan.objects.filter(is_default=True).values_list(*_LIMITS).get()
    plan, concurrent_runs, max_prompt_tokens, max_output_tokens, weight = row
    return Limits(
        plan=plan,
        concurrent_runs=concurrent_runs,
        max_prompt_tokens=max_prompt_tokens,
        max_output_tokens=max_output_tokens,
        weight=weight,
    )


def account_generation(*, user_id: UUID) -> int:
    """The generation of the user's quota account; opens the account on first use."""
    account, _ = Account.objects.get_or_create(user_id=user_id)
    return account.quota_gen


def account_generations(*, user_ids: Iterable[UUID]) -> dict[UUID, int]:
    """The generations of these users' accounts; a user who has none yet is left out."""
    return dict(Account.objects.filter(user_id__in=list(user_ids)).values_list("user_id", "quota_gen"))


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
    """Append one attempt's row; call it inside the transaction that ends the attempt."""
    UsageEntry.objects.create(
        user_id=charge.user_id,
        run_id=charge.run_id,
        epoch=charge.epoch,
        admission_id=charge.admission_id,
        pool=charge.pool,
        reason=charge.reason,
        prompt_tokens=charge.prompt_tokens,
        cached_tokens=charge.cached_tokens,
        output_tokens=charge.output_tokens,
        wasted_tokens=charge.wasted_tokens,
        created_at=charge.at,
    )


def charged(*, admission_id: UUID) -> int:
    """Tokens charged so far to one admission: its rows' prompt and output tokens."""
    sums = UsageEntry.objects.filter(admission_id=admission_id).aggregate(
        prompt=Sum("prompt_tokens", default=0), output=Sum("output_tokens", default=0)
    )
    return int(sums["prompt"] + sums["output"])


def used_tokens(*, user_id: UUID, except_admissions: Iterable[UUID] = ()) -> int:
    """All tokens ever charged to the user, leaving out admissions whose reservation still covers them."""
    sums = (
        UsageEntry.objects.filter(user_id=user_id)
        .exclude(admission_id__in=list(except_admissions))
        .aggregate(prompt=Sum("prompt_tokens", default=0), output=Sum("output_tokens", default=0))
    )
    return int(sums["prompt"] + sums["output"])


def charges_of(*, user_id: UUID) -> list[Charge]:
    """Every row of the ledger that names the user, oldest first."""
    return [
        Charge(
            user_id=entry.user_id,
            run_id=entry.run_id,
            epoch=entry.epoch,
            admission_id=entry.admission_id,
            pool=entry.pool,
            reason=entry.reason,
            prompt_tokens=entry.prompt_tokens,
            cached_tokens=entry.cached_tokens,
            output_tokens=entry.output_tokens,
            wasted_tokens=entry.wasted_tokens,
            at=entry.created_at,
        )
        for entry in UsageEntry.objects.filter(user_id=user_id).order_by("id")
    ]
