"""Runs that nobody waits for: jobs for chats, such as summaries and titles, done where and when there is room to spare.

They are runs like all others, with epochs, leases and a row in the ledger, but nothing is held for them: they are begun
only while a pool has slots that no turn wants, and should turns come then, the tier they wait in has the least weight.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from uuid_utils.compat import uuid7

from inference import policies, runs, store
from inference.cell import queue
from inference.cell.errors import StoreUnavailable
from inference.errors import ServiceUnavailable
from inference.models import ModelPool, Run

# One job at a time for so many slots of a pool: each slows the answers beside it a little.
SLOTS_PER_JOB = 16
# Stopped runs of which one may have ended lately.
_LOOKED_AT = 20
# How long a job may wait once it is accepted; whoever wanted it asks again.
WAIT_S = 600


def accept(
    *,
    run_id: UUID,
    owner_id: UUID,
    chat_id: UUID,
    kind: str,
    pool: ModelPool,
    model: str,
    prompt_ids: Sequence[int],
    max_output_tokens: int,
    context: Mapping[str, object],
    now: datetime,
) -> Run:
    """Store a job's run; call it inside a transaction. Raises ValueError for a kind that is no job's."""
    purpose = Run.Kind(kind)
    if purpose == Run.Kind.TURN:
        raise ValueError("a turn's run is admitted, not accepted as a job")
    return runs.accept(
        run_id=run_id,
        owner_id=owner_id,
        chat_id=chat_id,
        kind=purpose,
        turn="",
        pool=pool,
        model=model,
        admission_id=uuid7(),
        prompt_ids=prompt_ids,
        max_output_tokens=max_output_tokens,
        queue_wait_s=WAIT_S,
        context=context,
        tier=policies.SYSTEM_TIER,
        now=now,
    )


def with_room(pools: Sequence[ModelPool]) -> ModelPool | None:
    """The first of these pools that has slots to spare for a job. Raises ServiceUnavailable."""
    try:
        return next((pool for pool in pools if _room(pool) > 0), None)
    except StoreUnavailable as error:
        raise ServiceUnavailable(reason="the service's memory is away") from error


def is_quiet(pool: ModelPool, *, since: datetime) -> bool:
    """Whether no turn is under way in a pool, and of those accepted last none was stopped since then."""
    turns = Run.objects.filter(pool_id=pool.pk, kind=Run.Kind.TURN)
    if turns.filter(status__in=Run.ACTIVE).exists():
        return False
    stopped = turns.filter(status=Run.Status.CANCELLED).order_by("-id").values_list("finished_at", flat=True)
    return all(at is None or at < since for at in stopped[:_LOOKED_AT])


def _room(pool: ModelPool) -> int:
    """How many more jobs may begin in a pool: none while a turn waits there, or would find no slot beside them."""
    cell = store.connector().cell()
    now_ms = store.now_ms()
    free = cell.run(lambda client: queue.room(client, cell.keys, pool=pool.slug, now_ms=now_ms))
    state = queue.pool_state(cell, pool=pool.slug, now_ms=now_ms)
    jobs = sum(tier.waiting for tier in state.tiers if tier.plan == policies.SYSTEM_TIER)
    if free == 0 or state.waiting - jobs + state.pending:
        return 0
    under_way = Run.objects.filter(pool_id=pool.pk, status__in=Run.ACTIVE).exclude(kind=Run.Kind.TURN).count()
    return min(free - 1, max(1, state.slots // SLOTS_PER_JOB) - under_way)
