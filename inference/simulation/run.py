"""Runs one simulation after the other: a workload at a load, with a seed, under a policy."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from inference.cell.link import Connector
from inference.cell.policy import Policy, TierPolicy
from inference.simulation import goals, workload
from inference.simulation.baselines import Homebound, Lines
from inference.simulation.engines import Machine
from inference.simulation.goals import Measured, Seen, Setting
from inference.simulation.scheduler import Scheduler
from inference.simulation.scripts import Scripts
from inference.simulation.server import private_valkey
from inference.simulation.turns import FREE, PLUS, PRO, Record, Turn
from inference.simulation.world import Pool, World

OURS, FIFO, STRICT = "ours", "fifo", "strict"
POLICIES = (FIFO, STRICT, OURS)
MIXED, BACKLOGGED = "mixed", "backlogged"
WORKLOADS: dict[str, Callable[..., workload.Workload]] = {
    MIXED: workload.mixed,
    BACKLOGGED: workload.backlogged,
}

_ONE_LINE = {FREE: 0, PLUS: 0, PRO: 0}
_BY_RANK = {PRO: 0, PLUS: 1, FREE: 2}


def default_policy(*, delay_ms: int = 2_000) -> Policy:
    """Weights 1, 4 and 10, a floor of 10 %, and waits of 30 s for nothing and 20 s for money; the rest as shipped."""
    return Policy(
        tiers={
            FREE: TierPolicy(weight=1, is_free=True, wait_ms=30_000),
            PLUS: TierPolicy(weight=4, wait_ms=20_000),
            PRO: TierPolicy(weight=10, wait_ms=20_000),
        },
        delay_ms=delay_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large and how long a simulation is. `seconds` includes the warm-up."""

    workers: int = 4
    machine: Machine = field(default_factory=Machine)
    seconds: int = 180
    warm_up_s: int = 60


QUICK = Size(workers=2, machine=Machine(slots=16), seconds=50, warm_up_s=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One simulation."""

    workload: str
    load: float
    seed: int
    policy: str = OURS
    size: Size = field(default_factory=Size)
    delay_ms: int = 2_000

    def __str__(self) -> str:
        return f"{self.workload}, load {self.load:g}, seed {self.seed}, {self.policy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a simulation. `digest` names everything that happened: equal digests, equal simulations."""

    job: Job
    goals: Sequence[Measured]
    offered_load: float
    hit_rate: float
    digest: str

    def measured(self, goal: str) -> Measured:
        """What was measured of one goal."""
        return next(one for one in self.goals if one.goal == goal)


def play(job: Job, *, progress: Callable[[int], None] = lambda now: None) -> tuple[Outcome, Seen]:
    """Run one simulation and measure it; where affinity is judged, another one for what affinity can reach."""
    best = best_hit_rate(job) if job.load <= 0.95 else None
    with _scheduler(job) as (scheduler, cost_us):
        record = _record(job, scheduler, progress=progress)
        record.script_us = cost_us()
    seen = goals.look(record, setting(job), best_hit_rate=best)
    outcome = Outcome(
        job=job,
        goals=goals.measure(seen),
        offered_load=offered_load(record, job.size),
        hit_rate=goals.hit_rate(seen.window),
        digest=digest(record),
    )
    return outcome, seen


def best_hit_rate(job: Job) -> float:
    """The hit rate of affinity without bounds in the job's workload."""
    return goals.hit_rate(_after_warm_up(_record(job, Homebound()), job.size))


def jobs(*, loads: Sequence[float], seeds: Sequence[int], policies: Sequence[str], size: Size) -> list[Job]:
    """Every simulation that the goals need. Under a load of 1 nobody always wants more than there is."""
    return [
        Job(workload=workload, load=load, seed=seed, policy=policy, size=size)
        for load in loads
        for workload in (MIXED, BACKLOGGED)
        if workload == MIXED or load > 1
        for policy in policies
        for seed in seeds
    ]


def setting(job: Job) -> Setting:
    """The job as the goals look at it."""
    policy = default_policy(delay_ms=job.delay_ms)
    return Setting(
        load=job.load,
        seconds=job.size.seconds,
        warm_up_s=job.size.warm_up_s,
        slots=job.size.workers * job.size.machine.slots,
        weights={tier: its.weight for tier, its in policy.tiers.items()},
        floor=policy.floor,
        slack=policy.slack,
        prompt_weight=policy.prompt_weight,
        output_weight=policy.output_weight,
        bounds={tier: its.wait_ms for tier, its in policy.tiers.items()},
    )


def offered_load(record: Record, size: Size) -> float:
    """Slot time of all turns sent after the warm-up, refused ones too, by what the pool has in that time.

    A chat's earlier turns count as cached.
    """
    machine = size.machine
    wanted = 0.0
    for turn in _after_warm_up(record, size):
        known = min(turn.known, turn.prompt)
        wanted += (turn.prompt - known) * machine.prefill_ms + turn.output * machine.token_ms
    return wanted / (size.workers * machine.slots * 1000 * (size.seconds - size.warm_up_s))


def digest(record: Record) -> str:
    """A name for all that happened."""
    lines = (
        f"{turn.run_id} {turn.sent} {turn.refused} {turn.promised} {turn.claimed} {turn.worker} {turn.cached}"
        f" {turn.expired} {turn.finished}"
        for turn in record.turns
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _after_warm_up(record: Record, size: Size) -> list[Turn]:
    return [turn for turn in record.turns if turn.sent >= 1000 * size.warm_up_s]


def _record(job: Job, scheduler: Scheduler, *, progress: Callable[[int], None] = lambda now: None) -> Record:
    size, machine = job.size, job.size.machine
    pool = Pool(workers=size.workers, machine=machine, bounds=setting(job).bounds)
    chats = WORKLOADS[job.workload](load=job.load, seconds=size.seconds).chats(
        seed=job.seed, slots=pool.slots, prefill_ms=machine.prefill_ms, token_ms=machine.token_ms
    )
    world = World(pool=pool, scheduler=scheduler, chats=chats, end=1000 * size.seconds)
    return world.run(progress=progress)


@contextlib.contextmanager
def _scheduler(job: Job) -> Iterator[tuple[Scheduler, Callable[[], float]]]:
    """The policy's scheduler, and what tells the µs that its scripts took so far."""
    policy = default_policy(delay_ms=job.delay_ms)
    if job.policy != OURS:
        yield Lines(depth=policy.depth, ranks=_ONE_LINE if job.policy == FIFO else _BY_RANK), lambda: 0.0
        return
    with private_valkey() as url:
        connector = Connector(url=lambda: url)
        try:
            scripts = Scripts(cell=connector.cell(), policy=policy)
            yield scripts, scripts.cost_us
        finally:
            connector.close()
