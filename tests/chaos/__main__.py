"""`python -m tests.chaos`: one run on each database asked for. Exit status 1 when something does not hold."""

import argparse
import logging
import os
import random
import signal
import sys
import time
from types import FrameType

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.test")
django.setup(set_prefix=False)

from tests.chaos import plan, report, run  # noqa: E402 - the command lines of `serve` need Django to be set up

SHOWN = 40


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--kills", type=int, default=30, help="faults of all kinds")
    parser.add_argument("--seed", type=int, help="repeat the plan of an earlier run")
    parser.add_argument("--db", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--engine", choices=("scripted", "vllm"), default="scripted")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    asked = arguments(words)
    # It tells of every request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # As Ctrl-C: whatever was started is stopped on the way out.
    signal.signal(signal.SIGTERM, _interrupt)
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    names = ("sqlite", "postgres") if asked.db == "both" else (asked.db,)
    sound = [_run(name, seed=seed, asked=asked) for name in names]
    return 0 if all(sound) else 1


def _run(database: str, *, seed: int, asked: argparse.Namespace) -> bool:
    made = plan.make(seed=seed, turns=asked.turns, kills=asked.kills, database=database, engine=asked.engine)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)

    replay = f"make chaos TURNS={asked.turns} KILLS={asked.kills} SEED={seed} DB={database} ENGINE={asked.engine}"
    say(f"{database}, {asked.engine} engine: {replay}")
    try:
        result = run.perform(made, say=say)
    except BaseException:
        say(f"did not come to its end; again with: {replay}")
        print("\n".join(line[:300] for line in made.words() if line.startswith("fault")))
        raise
    print("\n".join(report.lines(result.figures)))
    print(f"  written to {result.path}")
    if result.violations:
        print(f"\n{len(result.violations)} violations:")
        for violation in result.violations[:SHOWN]:
            print(f"  {violation}")
        print(f"\nThe plan's faults (all of it beside the logs, in {result.path.with_suffix('')}):")
        print("\n".join(line for line in made.words() if line.startswith("fault")))
        print(f"\nAgain with: {replay}")
    return not result.violations


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
