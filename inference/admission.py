"""Admission: may this turn run, and what is held for it until it settles.

The reservation is one Redis script; the account it is made in is rebuilt from the database when Redis does not know
it. Source of the rules: the turn protocol's P2 and RB (docs/turn.md).
"""

import math
import time
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Limits
from inference import accounts, policies, store
from inference.cell import admission
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.contracts import Admission
from inference.errors import AdmissionRefused, HoldTooSmall, NoWorkerAlive, PoolFull, ServiceUnavailable
from inference.models import ModelPool

# A refusal by what answers under way hold ends when one of them does; nobody knows when, so ask again soon.
RETRY_CONCURRENCY_S = 5
# Ten years: a refill that takes longer is as good as none, and may lie beyond what a date can say.
_FAR_MS = 315_360_000_000
# How long a send waits for its account to be rebuilt by somebody else.
PATIENCE_S = 2.0
POLL_S = 0.01


def admit(
    *,
    user_id: UUID,
    pool: ModelPool,
    turn: str,
    base_epoch: int,
    prompt_tokens: int,
    max_output_tokens: int,
    limits: Limits,
    min_generation: int,
    now: datetime,
) -> Admission:
    """Hold the prompt and as much of the output as the user's budget has left for one turn's present admission.

    All or nothing, and no less output than the plan's floor. The same turn and base epoch get the first hold again, and
    what it leaves beside this prompt. Raises AdmissionRefused at a limit of the user's own, HoldTooSmall, PoolFull, and
    ServiceUnavailable when Redis or every worker of the pool is away.
    """

    def attempt(cell: Cell) -> Admission:
        until = time.monotonic() + PATIENCE_S
        while True:
            call = admission.admit(
                cell.keys,
                user_id=user_id,
                pool=pool.slug,
                turn=turn,
                base_epoch=base_epoch,
                admission_id=uuid7(),
                min_generation=min_generation,
                prompt_tokens=prompt_tokens,
                output_tokens=max_output_tokens,
                output_floor=min(limits.output_floor, max_output_tokens),
                bounds=admission.Bounds(
                    concurrent_runs=limits.concurrent_runs,
                    messages=limits.messages_per_hour,
                    budget_tokens=limits.budget_tokens,
                    refill_per_hour=limits.refill_per_hour,
                ),
                tier=limits.plan,
                policy=policies.policy_of(pool.id),
                now_ms=_ms(now),
            )
            match admission.read_verdict(cell.call(call)):
                case admission.Admitted(admission_id=admission_id, generation=generation, tokens=tokens):
                    if tokens <= prompt_tokens:
                        raise HoldTooSmall
                    return Admission(
                        admission_id=admission_id,
                        generation=generation,
                        user_id=user_id,
                        pool=pool.slug,
                        max_output_tokens=min(max_output_tokens, tokens - prompt_tokens),
                        reserved_tokens=tokens,
                    )
                case admission.Refused() as refused:
                    raise _refusal(refused, now=now)
                case admission.Full(reason=reason, wait_ms=wait_ms, again_ms=again_ms):
                    raise PoolFull(
                        pool=pool.slug,
                        reason=reason,
                        wait_s=None if wait_ms is None else math.ceil(wait_ms / 1000),
                        retry_after=math.ceil(again_ms / 1000),
                    )
                case admission.NoWorker():
                    raise NoWorkerAlive
                case admission.AccountAbsent() if elected(cell, user_id=user_id):
                    rebuild(cell, user_id=user_id, now=now)
                case admission.AccountAbsent() | admission.AccountStale():
                    if time.monotonic() > until:
                        raise ServiceUnavailable(reason="the quota account is being rebuilt", retry_after=1)
                    time.sleep(POLL_S)

    try:
        return store.connector().run(attempt)
    except StoreUnavailable as error:
        raise ServiceUnavailable(reason="the service's memory is away") from error


def _refusal(refused: admission.Refused, *, now: datetime) -> AdmissionRefused:
    if refused.wait_ms is None:
        resets_at, retry_after = None, RETRY_CONCURRENCY_S
    else:
        wait_ms = min(refused.wait_ms, _FAR_MS)
        retry_after = max(1, math.ceil(wait_ms / 1000))
        resets_at = now + timedelta(milliseconds=wait_ms)
    return AdmissionRefused(
        limit=refused.limit,
        maximum=refused.maximum,
        remaining=refused.remaining,
        retry_after=retry_after,
        resets_at=resets_at,
    )


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def elected(cell: Cell, *, user_id: UUID) -> bool:
    """Whether this process is the one to rebuild an account, for a second.

    Only a courtesy: every rebuild voids the admissions made since the one before, so that a new user's first sends,
    coming all at once, would void each other.
    """
    key = cell.keys.rebuilder(user_id)
    return cell.run(lambda client: bool(client.set(key, "1", nx=True, px=round(PATIENCE_S * 500))))


def rebuild(cell: Cell, *, user_id: UUID, now: datetime) -> None:
    """Load the user's account into `cell` from the ledger and the runs in progress.

    The new generation voids acceptances made under counters that are gone. The cell is bound to the incarnation
    known before the database is read, so that a late load never lands in a newer one. Raises StoreUnavailable.
    """
    limits = billing.limits_for(user_id=user_id, now=now)
    with transaction.atomic():
        generation = billing.advance_generation(user_id=user_id)
        account = accounts.recall(user_id=user_id, limits=limits, now=now)
    cell.call(
        admission.load(
            cell.keys,
            user_id=user_id,
            generation=generation,
            used=account.used,
            debt=account.debt.tokens,
            debt_at_ms=_ms(account.debt.at),
            refill_per_hour=limits.refill_per_hour,
            live=account.live,
            messages={admission_id: _ms(at) for admission_id, at in account.messages.items()},
            now_ms=_ms(now),
        )
    )


def settle(*, user_id: UUID, admission_id: UUID) -> None:
    """Turn a settled turn's hold into what its ledger rows charge. Raises StoreUnavailable."""
    tokens = billing.charged(admission_id=admission_id)
    store.connector().run(
        lambda cell: cell.call(
            admission.settle(
                cell.keys, user_id=user_id, admission_id=admission_id, tokens=tokens, now_ms=store.now_ms()
            )
        )
    )


def release(held: Admission) -> None:
    """Give back the hold of a turn that was not accepted. Raises StoreUnavailable."""
    store.connector().run(
        lambda cell: cell.call(
            admission.release(cell.keys, user_id=held.user_id, pool=held.pool, admission_id=held.admission_id)
        )
    )
