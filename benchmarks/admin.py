"""`python -m benchmarks.admin [ROWS]`: how long the admin's pages take over a million rows, on SQLite and on Postgres.

Every table that the admin lists gets that many rows, and a thousand for comparison. Each page is asked for in this
process through Django's test client: middleware, queries and template included, network not. There is no Redis, which
the dashboard says.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report

ROWS = 1_000_000
FEW = 1_000
LIMIT_MS = 300
TRIES = 7
# What the foot of an empty list says.
EMPTY = re.compile(r'<p class="paginator">\s*0\s')


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page: its name in the table, its address, and whether it must list something."""

    name: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    lists: bool = True


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["measure"]:
        return measure(rows=int(arguments[1]), output=Path(arguments[2]))
    from tests.services import postgres

    rows = int(arguments[0]) if arguments else ROWS
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="chatsite-admin-") as folder:
        for number in (FEW, rows):
            found[f"SQLite {number:,}"] = in_child(
                rows=number, url=f"sqlite:///{folder}/{number}.sqlite3", folder=folder
            )
        for number in (FEW, rows):
            with postgres() as url:
                found[f"Postgres {number:,}"] = in_child(rows=number, url=url, folder=folder)
    return tell(found, rows=rows)


def in_child(*, rows: int, url: str, folder: str) -> dict[str, dict[str, float]]:
    """Page → its times, measured in a process whose settings name this database."""
    output = Path(folder) / "figures.json"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "chatsite.settings.local",
        "STATE_DIR": folder,
        "DATABASE_URL": url,
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "LOG_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "benchmarks.admin", "measure", str(rows), str(output)]
    subprocess.run(command, env=environment, check=True)
    figures: dict[str, dict[str, float]] = json.loads(output.read_text())
    return figures


def tell(found: dict[str, dict[str, dict[str, float]]], *, rows: int) -> int:
    """Print the table, write the figures; 1 when a page is over the limit."""
    pages = list(next(iter(found.values())))
    cells = [
        [page, *(f"{times[page]['p50']:.0f} ({times[page]['cpu']:.0f})" for times in found.values())] for page in pages
    ]
    title = f"Admin pages, median of {TRIES} in ms (of it this process at work), over so many rows"
    report.table(title, ["page", *found], cells)
    slow = sorted(
        f"{page} on {where}: {times[page]['p50']:.0f} ms"
        for where, times in found.items()
        for page in pages
        if times[page]["p50"] > LIMIT_MS
    )
    print(f"\n  over {LIMIT_MS} ms: {'; '.join(slow) or 'none'}")
    print(f"  written to {report.write('admin', {'rows': rows, 'limit_ms': LIMIT_MS, 'slow': slow, 'pages': found})}")
    return 1 if slow else 0


def measure(*, rows: int, output: Path) -> int:
    """Fill the database that the settings name and write each page's times."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection
    from django.test import Client
    from django.utils import timezone

    from benchmarks.filling import Filler
    from chatsite.accounts.models import User

    call_command("migrate", verbosity=0)
    began = time.monotonic()
    filler = Filler(rows=rows, now=timezone.now())
    filler.fill_fast()
    print(f"  {connection.vendor}: {rows:,} rows of each in {time.monotonic() - began:.0f} s", flush=True)
    root = User.objects.create_superuser(email="root@example.org")
    client = Client(headers={"host": "localhost"})
    client.force_login(root)
    figures = {page.name: timed(client, page) for page in pages_of(filler)}
    figures["the ledger as a file"] = exported(client)
    output.write_text(json.dumps(figures))
    return 0


def timed(client: Any, page: Page) -> dict[str, float]:
    times, work = [], []
    for _ in range(TRIES + 1):
        began, worked = time.perf_counter(), time.process_time()
        response = client.get(page.path, page.query)
        times.append((time.perf_counter() - began) * 1000)
        work.append((time.process_time() - worked) * 1000)
        shown = response.content.decode()
        if response.status_code != 200 or (page.lists and EMPTY.search(shown)):
            raise AssertionError(f"{page.name}: {response.status_code}, or nothing listed")
    # The first loads templates and plans.
    return {
        "p50": round(median(times[1:]), 1),
        "max": round(max(times[1:]), 1),
        "first": round(times[0], 1),
        "cpu": round(median(work[1:]), 1),
    }


def exported(client: Any) -> dict[str, float]:
    """All of the ledger as CSV: ms to the first rows (told as the page's time), to the end, and what memory grew by.

    Memory is at its peak, so that this comes last and says little where a page took more.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, worked = time.perf_counter(), time.process_time()
    made = iter(client.get("/admin/billing/usageentry/export/"))
    size = len(next(made)) + len(next(made))
    first, cpu = (time.perf_counter() - began) * 1000, (time.process_time() - worked) * 1000
    size += sum(map(len, made))
    seconds = time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"  CSV: {size / 1e6:.1f} MB in {seconds:.1f} s, memory grew by {grown / 1024:.0f} MiB", flush=True)
    return {
        "p50": round(first, 1),
        "max": round(seconds * 1000, 1),
        "first": round(first, 1),
        "cpu": round(cpu, 1),
    }


def pages_of(filler: Any) -> list[Page]:
    """The dashboard, and of each list the ways in which operators look at it."""
    middle = filler.rows // 2
    some, many = filler.email(filler.owner(middle - middle % 100 + 10)), filler.email(filler.owner(0))

    def of(screen: str, *more: tuple[str, dict[str, str]], by_owner: bool = True, ways: bool = True) -> list[Page]:
        path = f"/admin/{screen}/"
        name = screen.partition("/")[2]
        queries: list[tuple[str, dict[str, str]]] = [("", {})]
        if ways:
            queries += [(", page 2", {"p": "2"}), (", last page", {"p": str(min(200, filler.rows // 50))})]
        if by_owner:
            queries += [(", by e-mail", {"q": some}), (", by e-mail of who has most", {"q": many})]
        return [
            Page(name=name + said, path=path, query=query, lists="no hit" not in said)
            for said, query in (*queries, *more)
        ]

    run, chat, user = filler.uuid(1, middle), filler.uuid(2, middle - middle % 10), filler.uuid(0, 0)
    return [
        Page(name="dashboard", path="/admin/", lists=False),
        *of(
            "inference/run",
            (", by id", {"q": str(run)}),
            (", by chat", {"q": str(chat)}),
            (", oldest first", {"o": "10"}),
            (", for summaries", {"kind__exact": "summary"}),
            (", failed", {"status__exact": "failed"}),
            (", done", {"status__exact": "done"}),
            (", streaming", {"status__exact": "streaming"}),
            (", of a pool long unused", {"pool__id__exact": pool_id("old")}),
            (", of that pool, streaming (no hit)", {"pool__id__exact": pool_id("old"), "status__exact": "streaming"}),
        ),
        Page(name="run's page", path=f"/admin/inference/run/{run}/change/"),
        *of(
            "inference/attempt", (", of a run", {"q": str(run)}), (", lost", {"outcome__exact": "lost"}), by_owner=False
        ),
        *of("conversations/chat", (", by id", {"q": str(chat)}), (", of a pool", {"pool": "old"})),
        *of("conversations/chat", (", titles, by a word", {"q": "lighthouses"}), by_owner=False, ways=False)[1:],
        *of("conversations/chat", (", titles, no hit", {"q": "zzz"}), by_owner=False, ways=False)[1:],
        *of("conversations/turn", (", by run", {"q": str(run)})),
        *of("conversations/message", (", by chat", {"q": str(chat)}), (", oldest first", {"o": "7"})),
        *of("conversations/summary", (", by chat", {"q": str(chat)})),
        *of(
            "billing/usageentry",
            (", by run", {"q": str(run)}),
            (", lost", {"reason__exact": "lost"}),
            (", of a pool long unused", {"pool": "old"}),
            (", of the usual pool, lost (or no hit)", {"pool": "default", "reason__exact": "lost"}),
            (", of a pool long unused, interrupted", {"pool": "old", "reason__exact": "interrupted"}),
            (", of a week", {"from": day(filler, 14), "to": day(filler, 8)}),
            (", of a week, failed", {"reason__exact": "failed", "from": day(filler, 14), "to": day(filler, 8)}),
            (", of who has most, of a week", {"q": many, "from": day(filler, 14), "to": day(filler, 8)}),
            (", by the id of who has most", {"q": str(user)}),
            (", oldest first", {"o": "1"}),
        ),
        *of("billing/adjustment", (", of a week", {"from": day(filler, 14), "to": day(filler, 8)})),
        *of("billing/limitoverride"),
        *of("billing/subscription", (", of a plan", {"plan__id__exact": plan_id("pro")})),
        *of("billing/account"),
        *of("account/emailaddress"),
        *of("usersessions/usersession"),
        *of("accounts/apikey", (", by beginning of the key", {"q": f"sk-{middle}"})),
        *of(
            "accounts/user",
            (", by beginning", {"q": "person12"}),
            (", by what all begin with", {"q": "person"}),
            (", by id", {"q": str(user)}),
            (", suspended", {"is_active__exact": "0"}),
            (", staff", {"is_staff__exact": "1"}),
            (", oldest first", {"o": "8"}),
        ),
        Page(name="user's page, who has most", path=f"/admin/accounts/user/{user}/change/"),
        *of(
            "audit/auditentry",
            (", by object", {"q": str(filler.uuid(4, middle))}),
            (", suspend", {"action__exact": "suspend"}),
        ),
    ]


def day(filler: Any, before: int) -> str:
    """The day so many before the last."""
    found: datetime = filler.now - timedelta(days=before)
    return found.date().isoformat()


def plan_id(slug: str) -> str:
    from billing.models import Plan

    return str(Plan.objects.values_list("pk", flat=True).get(slug=slug))


def pool_id(slug: str) -> str:
    from inference.models import ModelPool

    return str(ModelPool.objects.values_list("pk", flat=True).get(slug=slug))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
