"""Tables on the screen and JSON in benchmarks/results/."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0–1) of the values lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th and 99th percentile and count."""
    return {
        "p50": round(statistics.median(values), 2),
        "p90": round(percentile(values, 0.9), 2),
        "p99": round(percentile(values, 0.99), 2),
        "n": len(values),
    }


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under a header, columns aligned."""
    cells = [list(map(str, row)) for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    print(f"\n{title}")
    for row in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def write(name: str, figures: Mapping[str, object]) -> Path:
    """Store the figures with what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    text = json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **machine, **figures}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
    return path
