"""The queue of a pool: runs wait in it until a worker asks for the one it serves best."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import Reply, ScriptCall
from inference.cell.stream import STREAM_TTL_MS
from inference.cell.workers import LEASE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticketed:
    """One run at one epoch, as the queue names it."""

    run_id: UUID
    epoch: int

    def __str__(self) -> str:
        return f"{self.run_id}:{self.epoch}"


def enqueue(
    keys: Keys,
    *,
    user_id: UUID,
    pool: str,
    run_id: UUID,
    epoch: int,
    base_epoch: int,
    admission_id: UUID,
    now_ms: int,
) -> ScriptCall:
    """Put an accepted run into the queue. Replies [position, wait in seconds]."""
    return ScriptCall(
        "enqueue",
        [
            keys.reservations(user_id),
            keys.queue(pool),
            keys.leases(pool),
            keys.pace(pool),
            keys.worker_reports(pool),
            keys.stream(run_id),
            keys.stream_state(run_id),
        ],
        [
            keys.events_channel(run_id),
            str(run_id),
            epoch,
            base_epoch,
            str(admission_id),
            now_ms,
            pool,
            STREAM_TTL_MS,
        ],
    )


def claim(keys: Keys, *, pool: str, boot_id: str, now_ms: int) -> ScriptCall:
    """Take and lease the best run for this worker."""
    return ScriptCall(
        "claim", [keys.queue(pool), keys.leases(pool), keys.lease_owners(pool)], [boot_id, now_ms, LEASE_MS]
    )


def read_claim(reply: Reply) -> Ticketed | None:
    """The claimed run in CLAIM's reply, None when nothing waits."""
    if not reply:
        return None
    run_id, _, epoch = str(reply).rpartition(":")
    return Ticketed(run_id=UUID(run_id), epoch=int(epoch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A pool at one moment: how many runs wait, since when the first of them (ms), and how many are leased."""

    waiting: int
    oldest_ms: int | None
    leased: int


def load(client: redis.Redis, keys: Keys, *, pool: str, now_ms: int) -> Load:
    """How busy a pool is."""
    oldest: Reply = client.zrange(keys.queue(pool), 0, 0, withscores=True)
    return Load(
        waiting=int(client.zcard(keys.queue(pool))),
        oldest_ms=int(oldest[0][1]) if oldest else None,
        leased=int(client.zcount(keys.leases(pool), now_ms, "+inf")),
    )


def waiting(client: redis.Redis, keys: Keys, *, pool: str, runs: Sequence[Ticketed]) -> set[Ticketed]:
    """Which of these runs wait in the queue."""
    return set() if not runs else _known(client, keys.queue(pool), runs, since_ms=0)


def leased(client: redis.Redis, keys: Keys, *, pool: str, runs: Sequence[Ticketed], now_ms: int) -> set[Ticketed]:
    """Which of these runs some worker holds."""
    return set() if not runs else _known(client, keys.leases(pool), runs, since_ms=now_ms)


def _known(client: redis.Redis, key: str, runs: Sequence[Ticketed], *, since_ms: int) -> set[Ticketed]:
    scores: Reply = client.zmscore(key, [str(run) for run in runs])
    return {run for run, score in zip(runs, scores, strict=True) if score is not None and score >= since_ms}


def unlease(keys: Keys, *, pool: str, run: Ticketed, boot_id: str, held_ms: int) -> ScriptCall:
    """Give a run's lease back; `held_ms` = how long it took, -1 when that tells nothing about the pace."""
    return ScriptCall(
        "unlease", [keys.leases(pool), keys.lease_owners(pool), keys.pace(pool)], [str(run), boot_id, held_ms]
    )


def dequeue(keys: Keys, *, pool: str, run: Ticketed) -> ScriptCall:
    """Take a run that ended unclaimed out of the queue."""
    return ScriptCall("dequeue", [keys.queue(pool)], [str(run)])
