"""The queue of a pool: runs wait in it until a worker asks for the one it serves best.

How it is served, and why: docs/scheduler.md. The work is done by the scripts beside this module.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

import redis

from inference.cell.admission import PLACE_MS
from inference.cell.keys import Keys
from inference.cell.link import Cell, Reply, ScriptCall
from inference.cell.policy import NO_TIER, Policy
from inference.cell.stream import STREAM_TTL_MS
from inference.cell.workers import LEASE_MS, WORKER_TTL_MS

# How long it is remembered which worker answered last in a chat.
HOME_MS = 3_600_000
# Runs that are asked about at a time: about a millisecond of the server's time.
ASKED = 300
# Once a second at most, by a clock that is not that exact.
TOLD_MS = 950


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticketed:
    """One run at one epoch, as the queue names it."""

    run_id: UUID
    epoch: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read 'run:epoch'. Raises ValueError for anything else."""
        run_id, _, epoch = name.rpartition(":")
        return cls(run_id=UUID(run_id), epoch=int(epoch))

    def __str__(self) -> str:
        return f"{self.run_id}:{self.epoch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A run that may wait in the queue, with what it is found by there."""

    run: Ticketed
    user_id: UUID
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A run that is to wait: whose share of the pool it uses (`tier`), and what it needs, in tokens.

    It has waited since `since_ms`. `base_epoch` is the first epoch of its present admission.
    """

    run: Ticketed
    base_epoch: int
    admission_id: UUID
    user_id: UUID
    tier: str
    chat_id: UUID
    prompt_tokens: int
    max_output_tokens: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a run stands: how many go before it, the wait in seconds, and a worker with room for it, if any."""

    position: int
    wait_s: float
    boot_id: str


def enqueue(keys: Keys, *, pool: str, policy: Policy | None, waiting: Waiting, now_ms: int) -> ScriptCall:
    """Put an accepted run into the queue. Doing it again changes nothing. `policy` None: the one that was told last."""
    turn = (
        waiting.run.run_id,
        waiting.run.epoch,
        waiting.base_epoch,
        waiting.admission_id,
        waiting.since_ms,
        waiting.user_id,
        waiting.tier or NO_TIER,
        waiting.chat_id,
        waiting.prompt_tokens,
        waiting.max_output_tokens,
        now_ms,
        WORKER_TTL_MS,
        STREAM_TTL_MS,
    )
    return ScriptCall(
        "enqueue",
        [keys.pool(pool)],
        [
            "".join(f"{value}\0" for value in turn),
            "" if policy is None else policy.version,
            "" if policy is None else policy.text,
        ],
    )


def read_enqueue(reply: Reply) -> Placed:
    """ENQUEUE's reply."""
    position, wait, boot_id = str(reply).split("|")
    return Placed(position=int(position), wait_s=float(wait), boot_id=boot_id)


def claim(keys: Keys, *, pool: str, boot_id: str, room_tokens: int, now_ms: int, expected: bool = False) -> ScriptCall:
    """Take and lease the run that this worker serves best; its engine has memory for `room_tokens` more.

    `expected`: ENQUEUE named this worker, and has counted one of its free slots as taken since.
    """
    numbers = struct.pack("<5d", now_ms, room_tokens, LEASE_MS, WORKER_TTL_MS, expected)
    return ScriptCall("claim", [keys.pool(pool)], [boot_id, numbers])


@dataclass(frozen=True, slots=True)
class Later:
    """What waits is kept for other workers, or needs more room than this one has: ask again after so many ms."""

    ms: int


def read_claim(reply: Reply) -> Ticketed | Later | None:
    """CLAIM's reply; None when nothing waits."""
    if reply is None:
        return None
    return Later(int(reply)) if isinstance(reply, int) else Ticketed.parse(str(reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a finished run used: prompt tokens computed and cached, output; ms it held its slot, and to the first token
    (0 = none came). `worker_tokens` is what its worker has computed in all, for other runs, too. Estimates learn from
    whole answers.
    """

    computed_tokens: int
    cached_tokens: int
    output_tokens: int
    held_ms: int
    first_token_ms: int = 0
    worker_tokens: int = 0
    is_whole: bool = True


def finish(keys: Keys, *, pool: str, run: Ticketed, boot_id: str, chat_id: UUID, served: Served) -> ScriptCall:
    """Give a finished run's lease back: it is charged for what it used. Replies 1 when it was this worker's, else 0."""
    numbers = (
        served.held_ms,
        served.computed_tokens,
        served.cached_tokens,
        served.output_tokens,
        served.first_token_ms,
        served.worker_tokens,
        HOME_MS,
        served.is_whole,
    )
    return ScriptCall("finish", [keys.pool(pool)], [str(run), boot_id, str(chat_id), struct.pack("<8d", *numbers)])


def abort(keys: Keys, *, pool: str, run: Ticketed, boot_id: str | None, shown_tokens: int | None) -> ScriptCall:
    """Give back the lease of a run that its worker does not finish; `boot_id` None = whoever holds it, who may be dead.

    It is charged for the `shown_tokens` of its answer; None = it was never begun, and costs nothing. Replies 1 when
    there was such a lease, else 0.
    """
    return ScriptCall(
        "abort",
        [
            keys.pool(pool),
            keys.queue(pool),
            keys.leases(pool),
            keys.lease_owners(pool),
            keys.room(pool),
            keys.accounts(),
        ],
        [str(run), boot_id or "", -1 if shown_tokens is None else shown_tokens, pool],
    )


def expire(keys: Keys, *, pool: str, run: Ticketed, user_id: UUID, tier: str) -> ScriptCall:
    """Take a run that ended unclaimed out of the queue. Replies 1 when it was there, else 0."""
    return ScriptCall(
        "expire",
        [keys.pool(pool), keys.queue(pool), keys.account(user_id)],
        [str(run), str(user_id), tier or NO_TIER, pool],
    )


def tell(keys: Keys, *, pool: str, tier: str, first: int, users: int, now_ms: int) -> ScriptCall:
    """Tell the waiting runs of a tier's users, from rank `first` on, where they stand, where that has changed.

    Replies [users looked at, events appended].
    """
    streams, states, channels = keys.streams()
    return ScriptCall(
        "tell",
        [keys.pool(pool), keys.queue(pool), streams, states],
        [tier, first, users, now_ms, pool, channels, TOLD_MS],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """A tier's part of a pool: runs that wait, and whose; its effective weight, its share of the service given lately,
    and the wait (ms) of a run that comes now.
    """

    plan: str
    waiting: int
    users: int
    weight: float
    is_free: bool
    share: float
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """What the scheduler knows of a pool. `begun` wait to go on after they lost their worker, `pending` are admitted,
    but not queued yet; `is_squeezed`: free tiers have only their floor.
    """

    waiting: int
    begun: int
    pending: int
    is_squeezed: bool
    slots: int
    hold_ms: float
    tiers: list[TierState]


def pool_state(cell: Cell, *, pool: str, now_ms: int) -> PoolState:
    """How a pool's queue stands. Raises StoreUnavailable."""
    keys = cell.keys
    call = ScriptCall("look", [keys.pool(pool), keys.queue(pool), keys.places(pool)], [now_ms, PLACE_MS])
    found: dict[str, Any] = json.loads(str(cell.call(call)))
    return PoolState(
        waiting=found["waiting"],
        begun=found["begun"],
        pending=found["places"],
        is_squeezed=found["squeezed"],
        slots=found["slots"],
        hold_ms=found["hold_ms"],
        tiers=[
            TierState(
                plan=slug,
                waiting=tier["waiting"],
                users=tier["users"],
                weight=tier["weight"],
                is_free=tier["free"],
                share=tier["share"],
                wait_ms=tier["wait_ms"],
            )
            for slug, tier in sorted(found.get("tiers", {}).items())
        ],
    )


def waiting(client: redis.Redis, keys: Keys, *, pool: str, runs: Sequence[Queued]) -> set[Ticketed]:
    """Which of these runs wait in the queue."""
    found: set[Ticketed] = set()
    for start in range(0, len(runs), ASKED):
        found |= _waiting(client, keys, pool=pool, runs=runs[start : start + ASKED])
    return found


def _waiting(client: redis.Redis, keys: Keys, *, pool: str, runs: Sequence[Queued]) -> set[Ticketed]:
    queue = keys.queue(pool)
    pipeline = client.pipeline(transaction=True)
    for one in runs:
        pipeline.hget(f"{queue}:f:{one.tier or NO_TIER}", str(one.user_id))
        pipeline.zrange(f"{queue}:l:{one.tier or NO_TIER}:{one.user_id}", 0, -1)
        pipeline.hexists(f"{queue}:b", str(one.run))
    replies = iter(pipeline.execute())
    found = set()
    for one in runs:
        first, others, is_begun = next(replies), next(replies), next(replies)
        names = {facts.partition("|")[0] for facts in others} | ({first.split("|", 2)[1]} if first else set())
        if is_begun or str(one.run) in names:
            found.add(one.run)
    return found


def room(client: redis.Redis, keys: Keys, *, pool: str, now_ms: int) -> int:
    """How many more runs the pool's live workers can take, as they told last."""
    boots: Reply = client.zrangebyscore(keys.workers(pool), now_ms - WORKER_TTL_MS, "+inf")
    if not boots:
        return 0
    free: Reply = client.zmscore(keys.room(pool), boots)
    return sum(max(0, int(one or 0)) for one in free)


def leases(client: redis.Redis, keys: Keys, *, pool: str, runs: Sequence[Ticketed]) -> dict[Ticketed, int | None]:
    """When the lease of each of these runs ends or has ended (ms); None where there is none."""
    return _scores(client, keys.leases(pool), runs)


def leased(client: redis.Redis, keys: Keys, *, pool: str, runs: Sequence[Ticketed], now_ms: int) -> set[Ticketed]:
    """Which of these runs some worker holds."""
    ends = leases(client, keys, pool=pool, runs=runs)
    return {run for run, end in ends.items() if end is not None and end >= now_ms}


def _scores(client: redis.Redis, key: str, runs: Sequence[Ticketed]) -> dict[Ticketed, int | None]:
    if not runs:
        return {}
    scores: Reply = client.zmscore(key, [str(run) for run in runs])
    return {run: None if score is None else int(score) for run, score in zip(runs, scores, strict=True)}
