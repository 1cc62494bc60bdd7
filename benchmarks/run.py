"""`python -m benchmarks.run [NAME …]`: start the site with the real engine, measure, stop it."""

import os
import sys
from collections.abc import Callable

from benchmarks import first_token, report, throughput
from tests.stack import Stack, running

BENCHMARKS: dict[str, Callable[..., dict[str, object]]] = {
    "throughput": throughput.run,
    "first_token": first_token.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    # The bare engine's core imports this module again, and vLLM looks into every module there is, Celery's too.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
    print("starting the site and its engine …", flush=True)
    with running(engine="vllm") as stack:
        return measure(stack, names=names or list(BENCHMARKS))


def measure(stack: Stack, *, names: list[str]) -> int:
    key = stack.manage("create_api_key", "benchmark@example.com")
    for name in names:
        print(f"\nmeasuring {name} …", flush=True)
        print(f"  written to {report.write(name, BENCHMARKS[name](stack, key=key))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
