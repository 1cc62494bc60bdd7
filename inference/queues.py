"""Pools as operators watch them: who waits in each tier, what it gets of the pool, and which workers serve it."""

from inference import counting, policies, store
from inference.cell import queue, workers
from inference.cell.link import Cell
from inference.cell.policy import Policy
from inference.contracts import PoolCount, PoolWatch, TierWatch, WorkerWatch
from inference.models import ModelPool


def watch() -> list[PoolWatch]:
    """Every pool as its queue stands now, the default one first. Raises StoreUnavailable."""
    pools = list(ModelPool.objects.order_by("-is_default", "slug"))
    return store.connector().run(lambda cell: [_watch(cell, pool) for pool in pools])


def counts() -> list[PoolCount]:
    """What was refused and what overflowed, of every pool. Raises StoreUnavailable."""
    slugs = list(ModelPool.objects.order_by("slug").values_list("slug", flat=True))
    return store.connector().run(lambda cell: counting.counts(cell, pools=slugs))


def _watch(cell: Cell, pool: ModelPool) -> PoolWatch:
    now_ms = store.now_ms()
    policy = policies.policy_of(pool.pk)
    state = queue.pool_state(cell, pool=pool.slug, now_ms=now_ms)
    reports = cell.run(lambda client: workers.reports(client, cell.keys, pool=pool.slug, now_ms=now_ms))
    return PoolWatch(
        id=pool.pk,
        slug=pool.slug,
        name=pool.name,
        is_open=pool.is_open,
        mode=pool.mode,
        depth=pool.queue_depth,
        waiting=state.waiting,
        begun=state.begun,
        pending=state.pending,
        is_squeezed=state.is_squeezed,
        tiers=_tiers(policy, state),
        workers=[
            WorkerWatch(
                boot_id=boot_id,
                engine=report.engine,
                model=report.model,
                slots=report.slots,
                running=report.running,
                waiting=report.waiting,
                kv_usage=report.kv_usage,
                kv_tokens=report.kv_tokens or None,
                output_tokens=report.output_tokens,
            )
            for boot_id, report in sorted(reports.items())
        ],
    )


def _tiers(policy: Policy, state: queue.PoolState) -> list[TierWatch]:
    """The policy's tiers, in the order of their weights, and those that only the queue remembers."""
    known = {tier.plan: tier for tier in state.tiers}
    pressed = sum(tier.weight for tier in state.tiers if tier.waiting)
    found = []
    for plan in {**policy.tiers, **known}:
        rule, tier = policy.tiers.get(plan), known.get(plan)
        found.append(
            TierWatch(
                plan=plan,
                weight=None if rule is None else rule.weight,
                is_free=rule is not None and rule.is_free,
                due=tier.weight / pressed if tier is not None and tier.waiting else None,
                share=0.0 if tier is None else tier.share,
                waiting=0 if tier is None else tier.waiting,
                users=0 if tier is None else tier.users,
                wait_s=0.0 if tier is None else tier.wait_ms / 1000,
                is_system=plan == policies.SYSTEM_TIER,
            )
        )
    return sorted(found, key=lambda tier: (-(tier.weight or 0), tier.plan))
