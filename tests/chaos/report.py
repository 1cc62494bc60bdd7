"""What a run comes to: counts, pauses and violations, on the screen and as JSON in `results/`."""

import itertools
import json
import os
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.plan import Plan
from tests.chaos.records import Hit, Record, View
from tests.chaos.violations import Violation

RESULTS = Path(__file__).parent / "results"


def counts(record: Record, *, violations: int) -> dict[str, object]:
    """How much of everything there was."""
    views = [view for played in record.played for view in played.views]
    statuses = Counter(run.status for run in record.truth.runs)
    return {
        "turns": len(record.played),
        "kills": dict(sorted(Counter(f"{hit.fault.kind} {_target(hit)}" for hit in record.hits).items())),
        "readers": len(views),
        "events": sum(len(view.seen) for view in views),
        "resumes": sum(max(0, view.connections - 1) for view in views),
        "broken_connections": sum(len(view.breaks) for view in views),
        "resets": sum(seen.event.type == "reset_required" for view in views for seen in view.seen),
        "duplicates": sum(played.repeats for played in record.played),
        "cancels": sum(played.cancelled for played in record.played),
        "retries": sum(played.retried for played in record.played),
        "continuations": len(
            {
                (view.run_id, seen.event.id)
                for view in views
                for seen in view.seen
                if seen.event.type == "started" and seen.event.data.get("continues")
            }
        ),
        "epochs_lost": sum(attempt.outcome == "lost" for attempt in record.truth.attempts),
        "epochs_handed_over": sum(attempt.outcome == "drained" for attempt in record.truth.attempts),
        "statuses": dict(sorted(statuses.items())),
        "longest_run_s": round(max((run.total_s or 0.0 for run in record.truth.runs), default=0.0), 1),
        "violations": violations,
    }


def pauses(record: Record) -> dict[str, dict[str, float]]:
    """Seconds from a fault to the next event, for readers of answers under way that the fault touched.

    A worker touches the runs whose attempt it had, a web its own connections, a store everybody.
    """
    owners = {(attempt.run_id, attempt.epoch): attempt.worker for attempt in record.truth.attempts}
    found: dict[str, list[float]] = defaultdict(list)
    for hit in record.hits:
        for view in (view for played in record.played for view in played.views if view.after is None):
            before = [seen for seen in view.seen if seen.at <= hit.at]
            # Before the first token there is no pause, only a wait; after the end there is nothing to wait for.
            if not before or before[-1].event.type not in ("started", "delta", "notice"):
                continue
            epoch = int((before[-1].event.id or "0-0").partition("-")[0])
            if _touches(hit, owner=owners.get((view.run_id, epoch), ""), web=_web_at(view.connected, hit.at)):
                found[f"{hit.fault.kind} {_target(hit)}"].append(_pause(view, hit.at))
    return {name: _spread(values) for name, values in sorted(found.items())}


def _pause(view: View, at: float) -> float:
    """The longest wait for an event that began by half a second after `at`: some were on their way then."""
    times = [at, *(seen.at for seen in view.seen if seen.at > at)]
    return max((later - earlier for earlier, later in itertools.pairwise(times) if earlier <= at + 0.5), default=0.0)


def _touches(hit: Hit, *, owner: str, web: int | None) -> bool:
    target = hit.fault.target
    if target in ("valkey", "database"):
        return True
    if target.startswith("web-"):
        return web is not None and target == f"web-{web % 2 + 1}"
    # A boot id is <host>-<pid>-<uuid>.
    return target.startswith(("worker-", "engine-")) and f"-{hit.pid}-" in owner


def _web_at(connected: Sequence[tuple[float, int]], at: float) -> int | None:
    return next((web for since, web in reversed(connected) if since <= at), None)


def _target(hit: Hit) -> str:
    return hit.fault.target.rstrip("-12")


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "n": len(ordered),
        "p50": round(statistics.median(ordered), 2),
        "p90": round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 2),
        "max": round(ordered[-1], 2),
    }


def stops(record: Record) -> dict[str, dict[str, float]]:
    """Seconds from SIGTERM to the end of the process."""
    found: dict[str, list[float]] = defaultdict(list)
    for hit in record.hits:
        if hit.stop_s is not None:
            found[_target(hit)].append(hit.stop_s)
    return {name: _spread(values) for name, values in sorted(found.items())}


def write(
    *, plan: Plan, record: Record, violations: Sequence[Violation], seconds: float
) -> tuple[Path, dict[str, object]]:
    """Store the figures with what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    figures: dict[str, object] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "seed": plan.seed,
        "database": plan.database,
        "engine": plan.engine,
        "faults": len(plan.faults),
        "seconds": round(seconds, 1),
        **counts(record, violations=len(violations)),
        "pause_s": pauses(record),
        "stop_s": stops(record),
        "found": [str(violation) for violation in violations],
    }
    path = RESULTS / f"{plan.engine}-{plan.database}-{len(plan.asks)}-{plan.seed}.json"
    path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path, figures


def lines(figures: Mapping[str, object]) -> list[str]:
    """The figures for the screen."""
    found = []
    for name, value in figures.items():
        if isinstance(value, dict):
            found += [f"  {name}: {key} {_words(one)}" for key, one in value.items()]
        elif name != "found":
            found.append(f"  {name}: {value}")
    return found


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    return str(value)
