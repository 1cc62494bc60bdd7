"""What operators set for a pool's queue, read from the database at most every few seconds."""

import threading
import time
from uuid import UUID

import structlog
from django.db import DatabaseError

from billing import api as billing
from inference.cell.policy import Policy, TierPolicy
from inference.models import ModelPool, PoolWeight

log = structlog.get_logger(__name__)

# How late a change may reach the queue. A send needs the whole policy, and sends are many.
KEPT_S = 2.0

# Jobs for chats, such as summaries: a name that no plan can have. Where it is busy they get one token in a hundred or
# so, and no wait of theirs is anybody's concern.
SYSTEM_TIER = "~system"
_SYSTEM = TierPolicy(weight=0.01, wait_ms=3_600_000)

_kept: dict[UUID, tuple[float, Policy]] = {}
_lock = threading.Lock()


def policy_of(pool_id: UUID) -> Policy:
    """The pool's policy, at most KEPT_S old. Raises ModelPool.DoesNotExist."""
    kept = _kept.get(pool_id)
    if kept is not None and time.monotonic() - kept[0] < KEPT_S:
        return kept[1]
    policy = _read(pool_id)
    with _lock:
        _kept[pool_id] = time.monotonic(), policy
    return policy


def last_known(pool_id: UUID) -> Policy | None:
    """As `policy_of`; while the database cannot be asked, the policy read last, None where this process read none."""
    try:
        return policy_of(pool_id)
    except DatabaseError as error:
        kept = _kept.get(pool_id)
        log.warning("policy_not_read", pool_id=str(pool_id), error=str(error))
        return None if kept is None else kept[1]


def forget() -> None:
    """Read anew what is asked for next."""
    with _lock:
        _kept.clear()


def _read(pool_id: UUID) -> Policy:
    pool = ModelPool.objects.get(pk=pool_id)
    own = dict(PoolWeight.objects.filter(pool_id=pool_id).values_list("plan__slug", "weight"))
    return Policy(
        tiers={
            tier.plan: TierPolicy(
                weight=own.get(tier.plan, tier.weight),
                is_free=tier.is_free,
                wait_ms=1000 * min(tier.queue_wait_s or pool.queue_wait_s, pool.queue_wait_s),
            )
            for tier in billing.tiers()
        }
        | {SYSTEM_TIER: _SYSTEM},
        mode=pool.mode,
        depth=pool.queue_depth,
        floor=pool.free_floor / 100,
        delay_ms=pool.affinity_delay_ms,
        slack=pool.fairness_slack,
        prompt_weight=pool.prompt_weight,
        output_weight=pool.output_weight,
    )
