"""`make fuzz`: schemathesis against a whole running site. Prints cases, answers and failures by operation.

    python -m tests.fuzz --cases 2000 --seed 1 --report var/fuzz/report.json

Exits with a status other than 0 when a check fails, when there were fewer cases than asked for, or when an operation
was never answered with a success.
"""

import argparse
import json
import sys
from pathlib import Path

from tests.client import Api
from tests.fuzz.furniture import furnish
from tests.fuzz.run import Outcome, fuzz
from tests.stack import running

# Of the phases that make cases up at random, per operation and phase; the rest are as many as the schema gives.
CASES_PER_EXAMPLE = 14
# A fuzzer makes more requests a minute than anybody may.
GENEROUS = (
    "from billing.models import Plan; "
    "Plan.objects.update(concurrent_runs=1000, messages_per_hour=None, budget_tokens=None, refill_per_hour=None)"
)
UNLIMITED = {"API_REQUESTS_PER_MINUTE": "0", "API_REQUESTS_PER_MINUTE_PER_ADDRESS": "0", "LOG_LEVEL": "WARNING"}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000, help="at least so many (default 2000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, default=Path("var/fuzz/report.json"), help="where the JSON goes")
    asked = parser.parse_args(arguments)
    outcome = run(examples=max(1, asked.cases // CASES_PER_EXAMPLE), chats=40, seed=asked.seed)
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(json.dumps(outcome.as_json(), indent=2) + "\n")
    if outcome.exit_code:
        print(outcome.output)
    print(outcome.as_text())
    wrong = complaints(outcome, at_least=asked.cases)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def run(*, examples: int, chats: int, seed: int) -> Outcome:
    """Fuzz a site of its own: scripted answers, no limits, real HTTP."""
    with running(engine="scripted", environment=UNLIMITED) as site:
        key = site.manage("create_api_key", "fuzz@example.org")
        site.manage("shell", "--no-imports", "--command", GENEROUS)
        with Api(url=site.url, key=key) as api:
            furniture = furnish(api, chats=chats)
        return fuzz(url=site.url, key=key, furniture=furniture, examples=examples, seed=seed)


def complaints(outcome: Outcome, *, at_least: int) -> list[str]:
    """What keeps the outcome from being a success."""
    wrong = []
    if outcome.exit_code:
        wrong.append(f"schemathesis ended with status {outcome.exit_code}")
    if outcome.cases < at_least:
        wrong.append(f"only {outcome.cases} cases; {at_least} were asked for")
    for name, tally in outcome.operations.items():
        if not tally.count(2):
            wrong.append(f"{name} was never answered with a success: its cases reach nothing")
        if tally.count(5):
            wrong.append(f"{name} was answered with {tally.count(5)} server errors")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
