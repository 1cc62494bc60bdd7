"""A site of 20,000 prompts a second in virtual time, in several cells, and what it would need of Redis."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from inference.cell.link import Cell, Connector
from inference.simulation import workload
from inference.simulation.engines import Machine
from inference.simulation.run import default_policy
from inference.simulation.scripts import Scripts
from inference.simulation.server import private_valkey
from inference.simulation.turns import FREE, PLUS, PRO
from inference.simulation.world import Pool, World

LOAD = 1.1
# Short answers, so that the pool is full, and a queue grows, within seconds.
LENGTHS = workload.Lengths(answer=(50.0, 0.9))
# Of a run's stream, kept for the five minutes that followers may come back in (docs/benchmarks.md).
STREAM_BYTES = 4_300
STREAM_KEPT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What was measured, and what follows from it for the whole site.

    `cpu_us` and `script_us` are the server's, for each prompt that was sent; `used_bytes` is what it holds at the end,
    for the users it knows (`users`) and the turns that run and wait.
    """

    cells: int
    prompts_per_s: int
    seconds: int
    prompts: int
    served: int
    users: int
    running: int
    waiting: int
    cpu_us: float
    script_us: float
    used_bytes: int

    @property
    def cores(self) -> float:
        """Cores of Redis for all cells."""
        return self.prompts_per_s * self.cpu_us / 1e6

    @property
    def stream_bytes(self) -> int:
        """What streams take that are kept for those who come back."""
        return self.prompts_per_s * STREAM_KEPT_S * STREAM_BYTES


def measure(
    *,
    prompts_per_s: int = 20_000,
    cells: int = 4,
    seconds: int = 6,
    seed: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> Needs:
    """Play the cells one after the other in one server, each with its own tag, workers and users.

    Each has as many workers as its part of the prompts needs at a load of 1.1, so that a queue grows.
    """
    machine = Machine(slots=256, prefill_per_s=128_000.0, kv_tokens=2_400_000)
    with private_valkey() as url:
        connector = Connector(url=lambda: url, timeout_s=10.0)
        try:
            cell = connector.cell()
            prompts = served = running = waiting = users = 0
            cpu, scripts_us, before = _cpu_us(cell), 0.0, _memory(cell)
            for number in range(cells):
                wanted = _workload(seconds=seconds)
                workers = (
                    wanted.slots_for(prompts_per_s / cells, prefill_ms=machine.prefill_ms, token_ms=machine.token_ms)
                    // machine.slots
                )
                pool = Pool(workers=max(1, workers), machine=machine, bounds=_bounds())
                scripts = Scripts(cell=cell, policy=default_policy(), tag=f"c{number}")
                chats = wanted.chats(
                    seed=seed + number, slots=pool.slots, prefill_ms=machine.prefill_ms, token_ms=machine.token_ms
                )
                world = World(pool=pool, scheduler=scripts, chats=chats, end=1000 * seconds)
                record = world.run()
                prompts += len(record.turns)
                served += sum(turn.claimed is not None for turn in record.turns)
                waiting += record.levels[-1][1]
                running += pool.slots - record.levels[-1][2]
                users += len({turn.user_id for turn in record.turns})
                scripts_us = scripts.cost_us()
                progress(f"cell {number + 1} of {cells}: {pool.workers} workers, {len(record.turns):,} prompts")
            return Needs(
                cells=cells,
                prompts_per_s=prompts_per_s,
                seconds=seconds,
                prompts=prompts,
                served=served,
                users=users,
                running=running,
                waiting=waiting,
                cpu_us=(_cpu_us(cell) - cpu) / prompts,
                script_us=scripts_us / prompts,
                used_bytes=_memory(cell) - before,
            )
        finally:
            connector.close()


def table(needs: Needs) -> str:
    """What was measured and what it comes to."""
    return f"""\
{needs.prompts_per_s:,} prompts/s in {needs.cells} cells, {needs.seconds} virtual s: {needs.prompts:,} sent, \
{needs.served:,} begun; at the end {needs.running:,} run and {needs.waiting:,} wait
  Redis CPU per prompt      {needs.cpu_us:,.0f} µs, {needs.script_us:,.0f} µs of it in scripts
  cores of Redis            {needs.cores:.1f}, {needs.cores / needs.cells:.2f} for each cell
  memory of the queues      {needs.used_bytes / 1e6:,.0f} MB, for {needs.users:,} users and the turns that run and wait
  memory of kept streams    {needs.stream_bytes / 1e9:,.1f} GB: {STREAM_BYTES:,} bytes each, for {STREAM_KEPT_S} s"""


def as_json(needs: Needs) -> dict[str, object]:
    """All of it."""
    return {**asdict(needs), "cores": needs.cores, "stream_bytes": needs.stream_bytes}


def _workload(*, seconds: int) -> workload.Workload:
    crowd = {FREE: 0.6, PLUS: 0.25, PRO: 0.15}
    return workload.Workload(
        crowds={
            tier: workload.Crowd(demand=demand, visitors=int(40_000 * demand), flooders=0, flood=0.0)
            for tier, demand in crowd.items()
        },
        load=LOAD,
        seconds=seconds,
        lengths=LENGTHS,
        turns_mean=1.0,
        early_s=0,
    )


def _bounds() -> dict[str, int]:
    return {tier: its.wait_ms for tier, its in default_policy().tiers.items()}


def _cpu_us(cell: Cell) -> float:
    info = cell.run(lambda client: client.info("cpu"))
    return 1e6 * (float(info["used_cpu_user"]) + float(info["used_cpu_sys"]))


def _memory(cell: Cell) -> int:
    return int(cell.run(lambda client: client.info("memory"))["used_memory"])
