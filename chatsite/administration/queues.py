"""What the page of pools' queues shows: who waits, who gets how much, and which workers serve."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from billing import api as billing
from billing.contracts import Used
from chatsite.strip import KINDS, Strip
from inference import api as inference
from inference.contracts import PoolCount, PoolWatch, TierWatch, WorkerWatch

HIT_WINDOW = timedelta(hours=1)
# Of a boot id: `node/uuid`, of which the end is random.
SHORT = 6
_WORDS = {
    "full": "full",
    "shed_free": "shedding free plans",
    "drain": "draining",
    "away": "no worker",
    "short": "short prompts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A row of a pool's table; `kind` is the colour of its parts."""

    watch: TierWatch
    name: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A row of a pool's workers, with a short name."""

    watch: WorkerWatch
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Why, and how often, turns were refused by a pool, or answered by its smaller one."""

    what: str
    why: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool's panel. `due` is None while nobody waits.

    `hits` is the share of the last hour's prompt tokens that came from the prefix cache, by the ledger.
    """

    watch: PoolWatch
    tiers: Sequence[Tier]
    workers: Sequence[Worker]
    due: Strip | None
    served: Strip
    hits: float | None
    tallies: Sequence[Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The page. `pools` is None while Redis is away."""

    now: datetime
    pools: Sequence[Pool] | None


def for_page(*, now: datetime) -> Queues:
    """Every pool at this moment."""
    watched = inference.watch_pools()
    if watched is None:
        return Queues(now=now, pools=None)
    used = billing.pool_usage(since=now - HIT_WINDOW)
    counts = inference.pool_counts()
    return Queues(now=now, pools=[_pool(pool, used=used.get(pool.slug, Used()), counts=counts) for pool in watched])


def _pool(pool: PoolWatch, *, used: Used, counts: Sequence[PoolCount]) -> Pool:
    return Pool(
        watch=pool,
        tiers=[
            Tier(watch=tier, name=_name(tier), kind=f"part-{min(number, KINDS - 1)}")
            for number, tier in enumerate(pool.tiers)
        ],
        workers=[Worker(watch=worker, name=_short(worker.boot_id)) for worker in pool.workers],
        due=Strip.of([(_name(tier), tier.due or 0.0) for tier in pool.tiers])
        if any(tier.due for tier in pool.tiers)
        else None,
        served=Strip.of([(_name(tier), tier.share) for tier in pool.tiers]),
        hits=used.cached / used.prompt if used.prompt else None,
        tallies=_tallies([count for count in counts if count.pool == pool.slug]),
    )


def _name(tier: TierWatch) -> str:
    """A plan's slug; what is no plan says what it is."""
    return "system: summaries and titles" if tier.is_system else tier.plan


def _short(boot_id: str) -> str:
    node, _, rest = boot_id.rpartition("/")
    return f"{node} {rest[-SHORT:]}".strip()


def _tallies(counts: Sequence[PoolCount]) -> list[Tally]:
    """Sums over plans."""
    sums: dict[tuple[str, str], int] = {}
    for count in counts:
        sums[count.what, count.reason] = sums.get((count.what, count.reason), 0) + count.count
    return [Tally(what=what, why=_WORDS.get(why, why), count=number) for (what, why), number in sums.items()]
