"""What a run costs Redis from the queue to its end, however many users wait.

The baseline is a queue that decides nothing, one sorted set of runs by the time they came, in the same server and
batches.
The server's own CPU time is counted, commands and replies included.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import redis

from benchmarks import report
from inference.cell import queue, workers
from inference.cell.link import Cell, Connector, Reply, ScriptCall
from inference.cell.policy import Policy, TierPolicy
from inference.cell.queue import Served, Ticketed, Waiting
from inference.cell.workers import Report
from tests.services import valkey

USERS = (1_000, 10_000, 50_000)
GOAL_US = 50.0
RUNS = 2_000
ROUNDS = 3
BATCH = 200
WORKERS = 16
POOL = "p"
TIERS = ("free", "plus", "pro")
NOW_MS = 1_800_000_000_000
POLICY = Policy(
    tiers={
        "free": TierPolicy(weight=1, is_free=True, wait_ms=30_000),
        "plus": TierPolicy(weight=4, wait_ms=20_000),
        "pro": TierPolicy(weight=10, wait_ms=20_000),
    }
)
_SERVED = Served(computed_tokens=400, cached_tokens=100, output_tokens=180, held_ms=6_000, first_token_ms=50)


@dataclass(slots=True)
class Cost:
    """µs of the server's CPU for each call, the least of the rounds; `plain` is the baseline's push and pop."""

    enqueue: float
    claim: float
    finish: float
    plain: float
    bytes_each: float

    @property
    def run(self) -> float:
        return self.enqueue + self.claim + self.finish


class Queue:
    """A pool whose workers are all busy and know half of the chats."""

    def __init__(self, cell: Cell, *, seed: int = 1) -> None:
        self._cell = cell
        self._rng = random.Random(seed)
        self._runs: dict[str, Waiting] = {}
        self._now = NOW_MS

    def beat(self) -> None:
        """A second later all workers tell that they live."""
        self._now += 1_000
        for number in range(WORKERS):
            room = Report(
                engine="none",
                model="none",
                slots=64,
                running=64,
                waiting=0,
                kv_usage=0.0,
                output_tokens=0,
                kv_tokens=10**8,
            )
            self._cell.call(
                workers.heartbeat(
                    self._cell.keys, pool=POOL, boot_id=f"w{number}", report=room, held=(), now_ms=self._now
                )
            )

    def enqueue(self) -> ScriptCall:
        """A run of somebody new, in a chat of its own."""
        waiting = Waiting(
            run=Ticketed(run_id=uuid4(), epoch=1),
            base_epoch=1,
            admission_id=uuid4(),
            user_id=uuid4(),
            tier=self._rng.choice(TIERS),
            chat_id=uuid4(),
            prompt_tokens=500,
            max_output_tokens=500,
            since_ms=self._now,
        )
        self._runs[str(waiting.run)] = waiting
        return queue.enqueue(self._cell.keys, pool=POOL, policy=POLICY, waiting=waiting, now_ms=self._now)

    def claim(self, number: int) -> ScriptCall:
        return queue.claim(
            self._cell.keys, pool=POOL, boot_id=f"w{number % WORKERS}", room_tokens=10**8, now_ms=self._now
        )

    def finish(self, number: int, name: str) -> ScriptCall:
        waiting = self._runs.pop(name)
        return queue.finish(
            self._cell.keys,
            pool=POOL,
            run=waiting.run,
            boot_id=f"w{number % WORKERS}",
            chat_id=waiting.chat_id,
            served=_SERVED,
        )


def run() -> dict[str, object]:
    """Measure at each number of waiting users; a table, and the figures."""
    costs = {users: measure(users) for users in USERS}
    report.table(
        f"Redis CPU, µs a run (goal: {GOAL_US:g} at most, flat)",
        ["users waiting", "enqueue", "claim", "finish", "all three", "push + pop", "bytes each"],
        [
            [
                f"{users:,}",
                *(f"{value:.1f}" for value in (cost.enqueue, cost.claim, cost.finish, cost.run, cost.plain)),
                f"{cost.bytes_each:,.0f}",
            ]
            for users, cost in costs.items()
        ],
    )
    growth = costs[USERS[-1]].run / costs[USERS[0]].run
    print(
        f"  from {USERS[0]:,} to {USERS[-1]:,} users: {growth:.2f} times;"
        f" {1e6 / costs[USERS[-1]].run:,.0f} runs/s a core"
    )
    return {
        "goal_us": GOAL_US,
        "met": costs[USERS[-1]].run <= GOAL_US,
        "growth": round(growth, 3),
        "users": {
            users: {
                "enqueue_us": round(cost.enqueue, 1),
                "claim_us": round(cost.claim, 1),
                "finish_us": round(cost.finish, 1),
                "run_us": round(cost.run, 1),
                "plain_us": round(cost.plain, 1),
                "bytes_each": round(cost.bytes_each),
            }
            for users, cost in costs.items()
        },
    }


def measure(users: int) -> Cost:
    """The cost with so many users waiting, each with one run."""
    with valkey() as server:
        connector = Connector(url=lambda: server.url, timeout_s=30.0)
        try:
            cell = connector.cell()
            return cell.run(lambda client: _measure(cell, client, users=users))
        finally:
            connector.close()


def _measure(cell: Cell, client: redis.Redis, *, users: int) -> Cost:
    pool = Queue(cell)
    pool.beat()
    before = _memory(client)
    _call(client, [pool.enqueue() for _ in range(users)])
    bytes_each = (_memory(client) - before) / users
    spent: dict[str, list[float]] = {"enqueue": [], "claim": [], "finish": [], "plain": []}
    for _ in range(ROUNDS):
        pool.beat()
        for name, replies in _round(client, pool, spent):
            if name == "claim" and not all(isinstance(reply, str) for reply in replies):
                raise AssertionError("a worker found nothing although everybody waits")
            if name == "finish" and not all(replies):
                raise AssertionError("a run was not the worker's that claimed it")
        spent["plain"].append(_plain(client, users=users))
    least = {name: min(values) for name, values in spent.items()}
    return Cost(bytes_each=bytes_each, **least)


def _round(client: redis.Redis, pool: Queue, spent: dict[str, list[float]]) -> Iterator[tuple[str, list[Reply]]]:
    """As many runs enter the queue as are claimed and finished."""
    calls = [pool.enqueue() for _ in range(RUNS)]
    cost, replies = _counted(client, lambda: _call(client, calls))
    spent["enqueue"].append(cost)
    yield "enqueue", replies
    calls = [pool.claim(number) for number in range(RUNS)]
    cost, names = _counted(client, lambda: _call(client, calls))
    spent["claim"].append(cost)
    yield "claim", names
    calls = [pool.finish(number, str(name)) for number, name in enumerate(names)]
    cost, replies = _counted(client, lambda: _call(client, calls))
    spent["finish"].append(cost)
    yield "finish", replies


def _plain(client: redis.Redis, *, users: int) -> float:
    """µs for a run that enters and leaves a sorted set in which as many wait."""
    if not client.exists("plain"):
        _send(client, [["ZADD", "plain", NOW_MS, str(uuid4())] for _ in range(users)])
    names: list[UUID] = [uuid4() for _ in range(RUNS)]
    commands: list[list[object]] = [["ZADD", "plain", NOW_MS + 1, str(name)] for name in names]
    commands += [["ZPOPMIN", "plain"] for _ in names]
    cost, _ = _counted(client, lambda: _send(client, commands))
    return 2 * cost


def _call(client: redis.Redis, calls: Sequence[ScriptCall]) -> list[Reply]:
    return _send(client, [one.command for one in calls])


def _send(client: redis.Redis, commands: Sequence[Sequence[object]]) -> list[Reply]:
    replies: list[Reply] = []
    for begin in range(0, len(commands), BATCH):
        pipeline: Any = client.pipeline(transaction=False)  # the method has no types
        for command in commands[begin : begin + BATCH]:
            pipeline.execute_command(*command)
        replies += pipeline.execute()
    return replies


def _counted(client: redis.Redis, act: Callable[[], list[Reply]]) -> tuple[float, list[Reply]]:
    """µs of the server's CPU for each reply."""
    before = _cpu_us(client)
    replies = act()
    return (_cpu_us(client) - before) / len(replies), replies


def _cpu_us(client: redis.Redis) -> float:
    info: Reply = client.info("cpu")
    return 1e6 * (float(info["used_cpu_user"]) + float(info["used_cpu_sys"]))


def _memory(client: redis.Redis) -> int:
    info: Reply = client.info("memory")
    return int(info["used_memory"])
