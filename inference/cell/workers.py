"""The workers of a pool: who is alive, what their engines report, and the orders sent to them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import Reply, ScriptCall

# A worker silent for longer counts as gone; it beats every HEARTBEAT_MS.
HEARTBEAT_MS = 250
WORKER_TTL_MS = 3_000
LEASE_MS = 3_000
FORGET_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker tells about itself: the engine's own counters, and the runs it can hold (`slots`)."""

    engine: str
    model: str
    slots: int
    running: int
    waiting: int
    kv_usage: float
    output_tokens: int


def heartbeat(
    keys: Keys, *, pool: str, boot_id: str, report: Report | None, held: Iterable[str], now_ms: int
) -> ScriptCall:
    """Tell that the worker lives and renew the leases of the runs it holds ('run:epoch' names).

    A worker that takes no more runs has no report: it only keeps what it holds. Replies the names that it lost.
    """
    return ScriptCall(
        "heartbeat",
        [keys.workers(pool), keys.worker_reports(pool), keys.leases(pool), keys.lease_owners(pool)],
        [
            boot_id,
            now_ms,
            LEASE_MS,
            json.dumps(asdict(report)) if report is not None else "",
            now_ms - FORGET_MS,
            *held,
        ],
    )


def farewell(keys: Keys, *, pool: str, boot_id: str) -> ScriptCall:
    """Tell that the worker leaves in order."""
    return ScriptCall("farewell", [keys.workers(pool), keys.worker_reports(pool)], [boot_id])


def alive(client: redis.Redis, keys: Keys, *, pool: str, now_ms: int) -> list[Report]:
    """The reports of the pool's live workers."""
    boots: Reply = client.zrangebyscore(keys.workers(pool), now_ms - WORKER_TTL_MS, "+inf")
    if not boots:
        return []
    reports: Reply = client.hmget(keys.worker_reports(pool), boots)
    return [Report(**json.loads(report)) for report in reports if report]


def order_cancel(client: redis.Redis, keys: Keys, *, boot_id: str, run_id: UUID) -> None:
    """Ask a worker to look at a run's cancel flag at once; its heartbeat would see it a little later."""
    client.publish(keys.control_channel(boot_id), f"cancel {run_id}")
