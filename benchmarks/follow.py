"""Following answers: what a delivered event costs, and what many followers do to one web process.

The baseline is the obvious consumer, a blocking XREAD for each connection, in the same application and server.
"""

import time

from benchmarks import report
from benchmarks.follow_site import End, Site, Web, load, prepared, serving
from tests.waiting import wait_for

COST_FOLLOWERS, COST_RATE = 100, 20.0
MANY_FOLLOWERS, MANY_RATE = 1_000, 5.0
CYCLES, CYCLES_AT_A_TIME = 10_000, 1_000
WARM_UP_S, WINDOW_S = 3.0, 15.0
# The web process looks every two seconds whether a crowd has left.
SETTLING_S = 5.0
WARM_UP_VISITS = 4_000


def cost(site: Site, *, server: str, application: str) -> dict[str, object]:
    """CPU of the web process per event that reached a reader, and how long events were on their way."""
    with (
        serving(site, server=server, application=application) as web,
        load(web, followers=COST_FOLLOWERS, rate=COST_RATE) as (publisher, reader),
    ):
        reader.order("join")
        publisher.order("publish")
        time.sleep(WARM_UP_S)
        reader.order("report")
        cpu = web.cpu_s()
        time.sleep(WINDOW_S)
        received = reader.order("report")
        return {
            "cpu_us_per_event": round((web.cpu_s() - cpu) / received["events"] * 1e6, 1),
            "events_per_second": round(received["events"] / WINDOW_S),
            "delay_ms": received["delay_ms"],
            "lost": received["lost"],
        }


def many(site: Site) -> dict[str, object]:
    """A thousand followers of one process: delay, memory, and what is left once they are gone."""
    with (
        serving(site, server="daphne", application="shipped") as web,
        load(web, followers=MANY_FOLLOWERS, rate=MANY_RATE) as (publisher, reader),
    ):
        # What a process keeps from its first thousands of requests on (statements that its threads prepare, caches)
        # is not the followers'.
        reader.order("come-and-go", str(WARM_UP_VISITS))
        wait_for(lambda: web.channels() == 0, what="the warm-up's followers are gone")
        tasks, before = web.tasks(), web.rss_kb()
        reader.order("join")
        joined = web.rss_kb()
        publisher.order("publish")
        time.sleep(WARM_UP_S)
        reader.order("report")
        cpu = web.cpu_s()
        time.sleep(WINDOW_S)
        received = reader.order("report")
        cpu_share = (web.cpu_s() - cpu) / WINDOW_S
        busy = web.rss_kb()
        subscribed = web.channels()
        publisher.order("pause")
        reader.order("leave")
        wait_for(lambda: web.channels() == 0, what="no subscription is left")
        wait_for(lambda: web.tasks() <= tasks, what="no task is left")
        time.sleep(SETTLING_S)
        return {
            "events_per_second": round(received["events"] / WINDOW_S),
            "delay_ms": received["delay_ms"],
            "lost": received["lost"],
            "cpu_share": round(cpu_share, 2),
            "subscriptions": subscribed,
            "rss_before_kb": round(before),
            "rss_joined_kb": round(joined),
            "rss_busy_kb": round(busy),
            "rss_per_follower_kb": round((busy - before) / MANY_FOLLOWERS, 1),
            "rss_after_kb": round(web.rss_kb()),
            "rss_after_ratio": round(web.rss_kb() / before, 3),
            "tasks_before": tasks,
            "tasks_after": web.tasks(),
            "subscriptions_after": web.channels(),
        }


def cycles(site: Site) -> dict[str, object]:
    """Ten thousand short visits, a thousand at a time: memory after each thousand."""
    with (
        serving(site, server="daphne", application="shipped") as web,
        load(web, followers=MANY_FOLLOWERS, rate=MANY_RATE) as (_, reader),
    ):
        sizes = [come_and_go(web, reader) for _ in range(CYCLES // CYCLES_AT_A_TIME)]
        wait_for(lambda: web.channels() == 0, what="no subscription is left")
        return {
            "cycles": CYCLES,
            "rss_kb": [round(size) for size in sizes],
            "growth_kb_per_cycle": round((sizes[-1] - sizes[1]) / (CYCLES - 2 * CYCLES_AT_A_TIME), 3),
        }


def come_and_go(web: Web, reader: End) -> float:
    reader.order("come-and-go", str(CYCLES_AT_A_TIME))
    return web.rss_kb()


def run() -> dict[str, object]:
    figures: dict[str, object] = {}
    with prepared(runs=MANY_FOLLOWERS) as site:
        costs = {
            (application, server): cost(site, server=server, application=application)
            for server in ("daphne", "uvicorn")
            for application in ("naive", "shipped")
        }
        ratios = {
            server: round(_cpu(costs["shipped", server]) / _cpu(costs["naive", server]), 2)
            for server in ("daphne", "uvicorn")
        }
        report.table(
            f"CPU of the web process per delivered event, {COST_FOLLOWERS} followers × {COST_RATE:.0f} events/s",
            ["", "server", "µs/event", "times naive", "events/s", "delay p50 ms", "p99"],
            [
                [
                    application,
                    server,
                    figure["cpu_us_per_event"],
                    1 if application == "naive" else ratios[server],
                    figure["events_per_second"],
                    figure["delay_ms"]["p50"],  # type: ignore[index]
                    figure["delay_ms"]["p99"],  # type: ignore[index]
                ]
                for (application, server), figure in costs.items()
            ],
        )
        figures["cost"] = {f"{application} under {server}": figure for (application, server), figure in costs.items()}
        figures["ratio"] = ratios
        figures["many"] = crowd = many(site)
        report.table(
            f"{MANY_FOLLOWERS} followers × {MANY_RATE:.0f} events/s of one process",
            ["", ""],
            list(map(list, crowd.items())),
        )
        figures["cycles"] = visits = cycles(site)
        report.table(f"{CYCLES} short visits", ["", ""], list(map(list, visits.items())))
    return figures


def _cpu(figure: dict[str, object]) -> float:
    value = figure["cpu_us_per_event"]
    assert isinstance(value, float)
    return value
