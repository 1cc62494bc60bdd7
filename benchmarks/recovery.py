"""`python -m benchmarks.recovery`: how long answers stand still when their worker is killed or told to stop.

Two workers with the real engine; one streams eight answers, the other is idle. Measured at the client, from the signal
to the next text of each answer. The baseline is the time without which nobody can know: how long a killed worker's
lease still lasts. A worker that is told to stop needs none.
"""

import os
import signal
import statistics
import sys
import time

from benchmarks import report
from inference.cell.workers import HEARTBEAT_MS, LEASE_MS
from tests.client import Api
from tests.recovery import Readers, all_on_one_worker, wait_for_workers
from tests.stack import Stack, running

ROUNDS = 3
STREAMS = 8
OUTPUT_TOKENS = 200
SIGNALS = (signal.SIGKILL, signal.SIGTERM)


def pauses_ms(stack: Stack, *, key: str, number: signal.Signals, base: int) -> list[float]:
    """Of one round's answers. Raises AssertionError when one is not finished by the other worker."""
    readers = Readers(url=stack.url, key=key)
    try:
        with Api(url=stack.url, key=key) as api:
            wait_for_workers(api, 2, seconds=300)
            questions = [f"Write a long story about {base + i} ships." for i in range(STREAMS)]
            pid, answers = all_on_one_worker(stack, api, readers, questions, max_output_tokens=OUTPUT_TOKENS)
            os.kill(pid, number)
            at = time.monotonic()
            readers.finish()
    finally:
        readers.close()
    assert all(answer.events[-1].type == "completed" and len(answer.epochs) == 2 for answer in answers)
    return [answer.pause_s(since=at) * 1000 for answer in answers]


def measure(stack: Stack) -> dict[str, object]:
    key = stack.manage("create_api_key", "benchmark@example.com")
    figures: dict[str, object] = {"streams": STREAMS, "rounds": ROUNDS, "lease_ms": LEASE_MS}
    rows: list[list[object]] = [["what is left of a lease", LEASE_MS - HEARTBEAT_MS // 2, "", "", LEASE_MS, ""]]
    for number in SIGNALS:
        taken: list[float] = []
        for i in range(ROUNDS):
            taken += pauses_ms(stack, key=key, number=number, base=1000 * int(number) + 100 * i)
            print(f"  {number.name}: median so far {statistics.median(taken):.0f} ms", flush=True)
        spread = report.spread(taken)
        figures[number.name] = {**spread, "max": round(max(taken), 1)}
        shares = [round(spread[name]) for name in ("p50", "p90", "p99")]
        rows.append([number.name, *shares, round(max(taken)), len(taken)])
    title = f"Pause of {STREAMS} streaming answers whose worker ends (ms)"
    report.table(title, ["", "p50", "p90", "p99", "max", "n"], rows)
    return figures


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
    print("starting the site and two engines …", flush=True)
    with running(engine=os.environ.get("ENGINE") or "vllm", environment={"WORKERS": "2"}) as stack:
        print(f"  written to {report.write('recovery', measure(stack))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
