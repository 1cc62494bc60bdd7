"""`python -m benchmarks.run [NAME …]`: measure, with the site and its real engine or in a site of their own."""

import os
import sys
from collections.abc import Callable

from benchmarks import affinity, fairness, first_token, follow, longchat, report, scheduler_cost, throughput
from tests.stack import Stack, running

WITH_ENGINE: dict[str, Callable[..., dict[str, object]]] = {
    "throughput": throughput.run,
    "first_token": first_token.run,
}
# These start what they need themselves.
ALONE: dict[str, Callable[[], dict[str, object]]] = {
    "follow": follow.run,
    "fairness": fairness.run,
    "scheduler_cost": scheduler_cost.run,
    "affinity": affinity.run,
}
# Only by name: it takes long.
BY_NAME: dict[str, Callable[[], dict[str, object]]] = {"longchat": longchat.run}


def main(names: list[str]) -> int:
    known = [*WITH_ENGINE, *ALONE, *BY_NAME]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    names = names or [*WITH_ENGINE, *ALONE]
    # The bare engine's core imports this module again, and vLLM looks into every module there is, Celery's too.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
    if served := [name for name in names if name in WITH_ENGINE]:
        print("starting the site and its engine …", flush=True)
        with running(engine="vllm") as stack:
            measure_with_engine(stack, names=served)
    for name in names:
        if alone := (ALONE | BY_NAME).get(name):
            print(f"\nmeasuring {name} …", flush=True)
            print(f"  written to {report.write(name, alone())}")
    return 0


def measure_with_engine(stack: Stack, *, names: list[str]) -> None:
    key = stack.manage("create_api_key", "benchmark@example.com")
    for name in names:
        print(f"\nmeasuring {name} …", flush=True)
        print(f"  written to {report.write(name, WITH_ENGINE[name](stack, key=key))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
