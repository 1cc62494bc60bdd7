"""What a run costs Redis from the queue to its end, however many users wait.

In a round RUNS turns enter the queue, as many are claimed, and those end. Each is of a user with an account, holds a
reservation, and finds all workers busy; half go on in a chat that a worker has in memory, and are kept for that one for
a while. ENQUEUE, CLAIM and FINISH are counted, and nothing of what makes and ends the turns between them: LOAD, ADMIT,
SETTLE, heartbeats.

The baseline is a queue that decides nothing, one sorted set of runs by the time they came, in the same server and
batches.
The server's own CPU time is counted, commands and replies included.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import redis

from benchmarks import report
from inference.cell import admission, queue, workers
from inference.cell.admission import Admitted, Bounds
from inference.cell.link import Cell, Connector, Reply, ScriptCall
from inference.cell.policy import Policy, TierPolicy
from inference.cell.queue import Served, Ticketed, Waiting
from inference.cell.workers import Report
from tests.services import valkey

USERS = (1_000, 10_000, 50_000)
GOAL_US = 50.0
RUNS = 2_000
ROUNDS = 7
BATCH = 200
WORKERS = 16
POOL = "p"
TIERS = ("free", "plus", "pro")
NOW_MS = 1_800_000_000_000
FOREVER_MS = 10**10
POLICY = Policy(
    tiers={
        "free": TierPolicy(weight=1, is_free=True, wait_ms=FOREVER_MS),
        "plus": TierPolicy(weight=4, wait_ms=FOREVER_MS),
        "pro": TierPolicy(weight=10, wait_ms=FOREVER_MS),
        # Of jobs. None waits, but the pool's record has their tier.
        "~system": TierPolicy(weight=0.01, wait_ms=FOREVER_MS),
    },
    # No turn is refused, however many wait.
    depth=10**6,
)
_SERVED = Served(computed_tokens=400, cached_tokens=100, output_tokens=180, held_ms=6_000, first_token_ms=50)


@dataclass(slots=True)
class Cost:
    """µs of the server's CPU for each call, the median of the rounds; `plain` is the baseline's push and pop."""

    enqueue: float
    claim: float
    finish: float
    plain: float
    bytes_each: float

    @property
    def run(self) -> float:
        return self.enqueue + self.claim + self.finish


class Queue:
    """A pool whose workers are all busy. Half of the turns go on in a chat that one of these has in its memory."""

    def __init__(self, cell: Cell, *, seed: int = 1) -> None:
        self._cell = cell
        self._rng = random.Random(seed)
        # Who waits or runs, by 'run:epoch'; and who has had an answer, and may go on in that chat.
        self._runs: dict[str, Waiting] = {}
        self._answered: list[Waiting] = []
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

    def turns(self, count: int, *, known: int) -> list[Waiting]:
        """So many turns, each of another user: of `known` of those who were answered first, and of new ones."""
        back, self._answered = self._answered[:known], self._answered[known:]
        found = [
            replace(one, run=Ticketed(run_id=uuid4(), epoch=1), admission_id=uuid4(), since_ms=self._now)
            for one in back
        ] + [self._turn() for _ in range(count - len(back))]
        self._rng.shuffle(found)
        return found

    def _turn(self) -> Waiting:
        return Waiting(
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

    def load(self, turn: Waiting) -> ScriptCall:
        """The account, unless it is there."""
        return admission.load(
            self._cell.keys,
            user_id=turn.user_id,
            generation=1,
            used=0,
            debt=0,
            debt_at_ms=self._now,
            refill_per_hour=10**6,
            live=(),
            messages={},
            now_ms=self._now,
        )

    def admit(self, turn: Waiting) -> ScriptCall:
        """A reservation that the run's entry into the queue confirms, and a place."""
        return admission.admit(
            self._cell.keys,
            user_id=turn.user_id,
            pool=POOL,
            turn=str(turn.run.run_id),
            base_epoch=1,
            admission_id=turn.admission_id,
            min_generation=1,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.max_output_tokens,
            output_floor=1,
            bounds=Bounds(concurrent_runs=4, budget_tokens=10**7, refill_per_hour=10**6),
            tier=turn.tier,
            policy=POLICY,
            now_ms=self._now,
        )

    def enqueue(self, turn: Waiting) -> ScriptCall:
        self._runs[str(turn.run)] = turn
        return queue.enqueue(self._cell.keys, pool=POOL, policy=POLICY, waiting=turn, now_ms=self._now)

    def claim(self, number: int) -> ScriptCall:
        return queue.claim(
            self._cell.keys, pool=POOL, boot_id=f"w{number % WORKERS}", room_tokens=10**8, now_ms=self._now
        )

    def finish(self, number: int, name: str) -> ScriptCall:
        turn = self._runs[name]
        return queue.finish(
            self._cell.keys,
            pool=POOL,
            run=turn.run,
            boot_id=f"w{number % WORKERS}",
            chat_id=turn.chat_id,
            served=_SERVED,
        )

    def settle(self, name: str) -> ScriptCall:
        turn = self._runs.pop(name)
        self._answered.append(turn)
        return admission.settle(
            self._cell.keys, user_id=turn.user_id, admission_id=turn.admission_id, tokens=680, now_ms=self._now
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
    # Until as many have been answered as half of those who are to wait, and half of a round.
    for _ in range(users // RUNS // 2 + 1):
        pool.beat()
        _round(client, pool, known=0)
    pool.beat()
    turns = pool.turns(users, known=users // 2)
    _admitted(client, pool, turns)
    before = _memory(client)
    _call(client, [pool.enqueue(turn) for turn in turns])
    bytes_each = (_memory(client) - before) / users
    rounds = []
    for _ in range(ROUNDS):
        pool.beat()
        rounds.append(_round(client, pool, known=RUNS // 2) | {"plain": _plain(client, users=users)})
    middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return Cost(bytes_each=bytes_each, **middle)


def _round(client: redis.Redis, pool: Queue, *, known: int) -> dict[str, float]:
    """As many runs enter the queue as are claimed and finished; what each call costs."""
    turns = pool.turns(RUNS, known=known)
    _admitted(client, pool, turns)
    calls = [pool.enqueue(turn) for turn in turns]
    enqueue, _ = _counted(client, lambda: _call(client, calls))
    calls = [pool.claim(number) for number in range(RUNS)]
    claim, names = _counted(client, lambda: _call(client, calls))
    if not all(isinstance(name, str) for name in names):
        raise AssertionError("a worker found nothing although everybody waits")
    calls = [pool.finish(number, str(name)) for number, name in enumerate(names)]
    finish, replies = _counted(client, lambda: _call(client, calls))
    if not all(replies):
        raise AssertionError("a run was not the worker's that claimed it")
    _call(client, [pool.settle(str(name)) for name in names])
    return {"enqueue": enqueue, "claim": claim, "finish": finish}


def _admitted(client: redis.Redis, pool: Queue, turns: Sequence[Waiting]) -> None:
    """These turns hold a reservation each, of accounts that are known."""
    _call(client, [pool.load(turn) for turn in turns])
    verdicts = [admission.read_verdict(reply) for reply in _call(client, [pool.admit(turn) for turn in turns])]
    if not all(isinstance(verdict, Admitted) for verdict in verdicts):
        raise AssertionError("a turn was refused")


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
