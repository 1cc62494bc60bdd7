"""The workers of a pool: who is alive, what their engines report, and the orders sent to them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Self
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import Reply, ScriptCall

# A worker silent for longer counts as gone; it beats every HEARTBEAT_MS. Measured on two cores at a load of 10, with
# 12 streams and cold prompts: beats come at most 275 ms apart. A lease that lapses on a living worker costs an epoch.
HEARTBEAT_MS = 250
WORKER_TTL_MS = 3_000
LEASE_MS = 1_500
FORGET_MS = 60_000
# Tokens in the memory of an engine that does not tell.
NO_BOUND = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker tells about itself: the engine's own counters, and the runs it can hold (`slots`).

    While a site is upgraded, workers of two releases report: a field that is added later needs a default.
    """

    engine: str
    model: str
    slots: int
    running: int
    waiting: int
    kv_usage: float
    output_tokens: int
    # How many more runs it can take, and for how many tokens its engine has memory in all (0 = no bound known).
    room: int = 0
    kv_tokens: int = 0
    # Prompt and output tokens that it has computed in all.
    computed_tokens: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a report, of a newer release perhaps: fields unknown here are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


def heartbeat(
    keys: Keys, *, pool: str, boot_id: str, report: Report | None, held: Iterable[str], now_ms: int
) -> ScriptCall:
    """Tell that the worker lives and renew the leases of the runs it holds ('run:epoch' names).

    A worker that takes no more runs has no report: it only keeps what it holds. Replies
    [the names that it lost, names whose leases lapsed, whoever held them].
    """
    names = list(held)
    return ScriptCall(
        "heartbeat",
        [
            keys.workers(pool),
            keys.worker_reports(pool),
            keys.leases(pool),
            keys.lease_owners(pool),
            keys.pool(pool),
            keys.room(pool),
            keys.worker_facts(pool),
        ],
        [
            boot_id,
            now_ms,
            LEASE_MS,
            json.dumps(asdict(report)) if report is not None else "",
            now_ms - FORGET_MS,
            0 if report is None else report.slots,
            # The report may be older than what the worker holds now.
            0 if report is None else max(0, min(report.room, report.slots - len(names))),
            0 if report is None else report.kv_tokens or NO_BOUND,
            0 if report is None else report.computed_tokens,
            WORKER_TTL_MS,
            *names,
        ],
    )


def farewell(keys: Keys, *, pool: str, boot_id: str) -> ScriptCall:
    """Tell that the worker leaves in order."""
    return ScriptCall(
        "farewell",
        [
            keys.workers(pool),
            keys.worker_reports(pool),
            keys.pool(pool),
            keys.room(pool),
            keys.worker_facts(pool),
        ],
        [boot_id],
    )


def gone(keys: Keys, *, pool: str, node: str, now_ms: int) -> ScriptCall:
    """Tell that a worker's process (by its Celery node name) has ended: nobody need wait for its leases to lapse.

    For whoever has seen it end. Replies how many it held.
    """
    return ScriptCall(
        "gone",
        [
            keys.workers(pool),
            keys.worker_reports(pool),
            keys.leases(pool),
            keys.lease_owners(pool),
            keys.pool(pool),
            keys.room(pool),
            keys.worker_facts(pool),
        ],
        [f"{node}/", now_ms],
    )


def alive(client: redis.Redis, keys: Keys, *, pool: str, now_ms: int) -> list[Report]:
    """The reports of the pool's live workers."""
    return list(reports(client, keys, pool=pool, now_ms=now_ms).values())


def reports(client: redis.Redis, keys: Keys, *, pool: str, now_ms: int) -> dict[str, Report]:
    """Boot id → report, of the pool's live workers."""
    boots: Reply = client.zrangebyscore(keys.workers(pool), now_ms - WORKER_TTL_MS, "+inf")
    if not boots:
        return {}
    found: Reply = client.hmget(keys.worker_reports(pool), boots)
    return {boot: Report.parse(report) for boot, report in zip(boots, found, strict=True) if report}


def order_cancel(client: redis.Redis, keys: Keys, *, boot_id: str, run_id: UUID) -> None:
    """Ask a worker to look at a run's cancel flag at once; its heartbeat would see it a little later."""
    client.publish(keys.control_channel(boot_id), f"cancel {run_id}")
