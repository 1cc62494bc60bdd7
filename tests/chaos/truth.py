"""Reading the truth from outside: rows by plain SQL, the state of Redis by its keys, the engines' counters by HTTP."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import httpx
import redis

from inference.cell.keys import Keys
from inference.testing import queued
from tests.chaos.databases import Database
from tests.chaos.records import AttemptRow, MessageRow, Rest, RunRow, Truth, TurnRow, UsageRow
from tests.chaos.site import POOL

_CELERY = ("chatsite:celery:pool.default", "chatsite:celery:jobs")
_WORKERS = "chatsite:celery:worker.*"


def rows(database: Database) -> Truth:
    """Every row of the site's tables."""
    connection: Any = database.connect()
    try:

        def select(table: str, *columns: str) -> Iterator[Sequence[Any]]:
            cursor = connection.cursor()
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table}")
            yield from cursor.fetchall()

        return Truth(
            turns=[
                TurnRow(id=_id(a), chat_id=_id(b), client_turn_id=c, run_id=_id(d))
                for a, b, c, d in select("conversations_turn", "id", "chat_id", "client_turn_id", "run_id")
            ],
            runs=[_run(row) for row in select("inference_run", *_RUN)],
            messages=[
                MessageRow(
                    id=_id(row[0]),
                    chat_id=_id(row[1]),
                    turn_id=_id(row[2]),
                    seq=row[3],
                    role=row[4],
                    content=row[5],
                    state=row[6],
                    hidden=bool(row[7]),
                    run_id=_id(row[8]),
                )
                for row in select("conversations_message", *_MESSAGE)
            ],
            usage=[
                UsageRow(
                    user_id="" if row[0] is None else _id(row[0]),
                    run_id=_id(row[1]),
                    epoch=row[2],
                    admission_id=_id(row[3]),
                    reason=row[4],
                    prompt_tokens=row[5],
                    output_tokens=row[6],
                )
                for row in select("billing_usageentry", *_USAGE)
            ],
            attempts=[
                AttemptRow(run_id=_id(row[0]), epoch=row[1], worker=row[2], outcome=row[3], output_tokens=row[4])
                for row in select("inference_attempt", "run_id", "epoch", "worker", "outcome", "output_tokens")
            ],
        )
    finally:
        connection.close()


def active_runs(database: Database) -> int:
    """How many runs are not over."""
    connection: Any = database.connect()
    try:
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM inference_run WHERE status IN ('queued', 'streaming')")
        return int(cursor.fetchone()[0])
    finally:
        connection.close()


def rest(*, redis_port: int, metrics: str, now_ms: int) -> Rest:
    """What Redis holds, and what the engines report in `metrics`, the text of /metrics."""
    with redis.Redis(port=redis_port, decode_responses=True, socket_timeout=10) as client:
        info: Any = client.info("server")
        keys = Keys(info["run_id"])
        prefix = keys.account("*")  # type: ignore[arg-type]  # a pattern
        held: list[str] = []
        for key in client.scan_iter(match=keys.reservations("*")):  # type: ignore[arg-type]
            user = str(key).rpartition(":")[2]
            held += [f"{admission} of user {user}: {value}" for admission, value in _hash(client, str(key)).items()]
        used = {
            str(key).rpartition(":")[2]: int(_hash(client, str(key)).get("used", 0))
            for key in client.scan_iter(match=prefix)
        }
        waiting = queued(client, keys, pool=POOL)
        leases: Any = client.zrangebyscore(keys.leases(POOL), now_ms, "+inf")
        holders: Any = client.smembers(keys.holders())
        queues = [*_CELERY, *client.scan_iter(match=_WORKERS)]
        tickets = sum(int(client.llen(name)) for name in queues)
    return Rest(
        reservations=held,
        holders=sorted(holders),
        queued=list(waiting),
        leases=list(leases),
        tickets=tickets,
        workers=gauge(metrics, "workers"),
        running=gauge(metrics, "running"),
        waiting=gauge(metrics, "waiting"),
        used=used,
    )


def gauge(metrics: str, name: str) -> int:
    """A gauge of the pool in the text of /metrics; -1 when it is not there, as while Redis is away."""
    start = f'chatsite_pool_{name}{{pool="{POOL}"}} '
    found = [line for line in metrics.splitlines() if line.startswith(start)]
    return int(float(found[0].removeprefix(start))) if found else -1


def metrics(url: str) -> str:
    """The text of /metrics; empty when it cannot be had."""
    try:
        return httpx.get(f"{url}/metrics", timeout=5).text
    except httpx.HTTPError:
        return ""


_RUN = [
    "id",
    "owner_id",
    "chat_id",
    "status",
    "epoch",
    "base_epoch",
    "admission_id",
    "prompt_tokens",
    "output_tokens",
    "error_code",
    "message_id",
    "claimed_at",
    "created_at",
    "finished_at",
    "retried_at",
    "kind",
]
_MESSAGE = ["id", "chat_id", "turn_id", "seq", "role", "content", "state", "hidden", "run_id"]
_USAGE = ["user_id", "run_id", "epoch", "admission_id", "reason", "prompt_tokens", "output_tokens"]


def _run(row: Sequence[Any]) -> RunRow:
    asked, finished = _time(row[14]) or _time(row[12]), _time(row[13])
    return RunRow(
        id=_id(row[0]),
        kind=row[15],
        owner_id=_id(row[1]),
        chat_id=_id(row[2]),
        status=row[3],
        epoch=row[4],
        base_epoch=row[5],
        admission_id=_id(row[6]),
        prompt_tokens=row[7],
        output_tokens=row[8],
        error_code=row[9],
        message_id=None if row[10] is None else _id(row[10]),
        claimed=row[11] is not None,
        total_s=None if asked is None or finished is None else (finished - asked).total_seconds(),
    )


def _hash(client: redis.Redis, key: str) -> dict[str, str]:
    found: Any = client.hgetall(key)
    return dict(found)


def _id(value: Any) -> str:
    """An id as the API writes it; SQLite keeps 32 hexadecimal digits."""
    text = str(value)
    return text if "-" in text else f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _time(value: Any) -> datetime | None:
    return value if value is None or isinstance(value, datetime) else datetime.fromisoformat(value)
