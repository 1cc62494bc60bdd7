"""One run of schemathesis against a served schema, and what came of it, by operation."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.furniture import Furniture

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


@dataclass(slots=True)
class Tally:
    """Of one operation: how often each status and content type was answered, and which checks failed."""

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def answers(self) -> int:
        return self.statuses.total()

    def count(self, first: int) -> int:
        """Of the answers with a status that begins with this digit."""
        return sum(count for status, count in self.statuses.items() if status // 100 == first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run found. `summary` is schemathesis's own account of it, `output` what it printed."""

    exit_code: int
    summary: dict[str, Any]
    operations: dict[str, Tally]
    output: str = field(repr=False)

    @property
    def cases(self) -> int:
        return int(self.summary["test_cases"]["generated"])

    @property
    def failures(self) -> int:
        return int(self.summary["test_cases"]["with_failures"]) + int(self.summary["test_cases"]["errored"])

    def as_json(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "failures": self.failures,
            "exit_code": self.exit_code,
            "seed": self.summary["seed"],
            "operations": {
                name: {
                    "answers": tally.answers,
                    "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
                    "kinds": dict(tally.kinds),
                    "failures": tally.failures,
                }
                for name, tally in sorted(self.operations.items())
            },
            "schemathesis": self.summary,
        }

    def as_text(self) -> str:
        lines = [f"{'operation':60} {'requests':>8} {'failures':>8}  answers"]
        for name, tally in sorted(self.operations.items()):
            answers = "  ".join(f"{status}×{count}" for status, count in sorted(tally.statuses.items()))
            lines.append(f"{name:60} {tally.answers:8} {len(tally.failures):8}  {answers}")
        total = sum(tally.answers for tally in self.operations.values())
        lines.append(f"{self.cases} cases, {total} requests, {self.failures} failures; seed {self.summary['seed']}")
        return "\n".join(lines)


def fuzz(*, url: str, key: str, furniture: Furniture, examples: int, seed: int) -> Outcome:
    """Run every phase, with at most `examples` cases per operation where they are made up at random.

    Raises AssertionError with what was printed when schemathesis could not begin.
    """
    with tempfile.TemporaryDirectory(prefix="chatsite-fuzz-") as name:
        folder = Path(name)
        shutil.copy(CONFIGURATION, folder)
        for words in ("chats", "runs", "stopped"):
            ids = getattr(furniture, words)
            (folder / words).write_text("".join(f'"{one}"\n' for one in ids))
        runs = json.dumps(dict(zip(furniture.chats, furniture.runs, strict=True)))
        report, answers = folder / "report.json", folder / "answers"
        answers.touch()
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(folder / CONFIGURATION.name), "run"),
            *(f"{url}/api/schema", "--max-examples", str(examples), "--seed", str(seed), "--no-color"),
            *("--generation-database", "none", "--report-json-path", str(report)),
        ]
        done = subprocess.run(
            command,
            # It leaves a folder where it is started.
            cwd=folder,
            env={
                **os.environ,
                "FUZZ_API_KEY": key,
                "FUZZ_ANSWERS": str(answers),
                "FUZZ_RUNS": runs,
                "PYTHONPATH": str(ROOT),
            },
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if not report.exists():
            raise AssertionError(f"schemathesis did not run:\n{done.stdout}")
        summary = json.loads(report.read_text())
        return Outcome(
            exit_code=done.returncode,
            summary=summary,
            operations=_tallies(summary, [json.loads(line) for line in answers.read_text().splitlines()]),
            output=done.stdout,
        )


def _tallies(summary: dict[str, Any], answers: list[dict[str, Any]]) -> dict[str, Tally]:
    operations: dict[str, Tally] = {}
    for answer in answers:
        # A method that the schema does not name is a case of the operation's all the same.
        tally = operations.setdefault(answer["operation"], Tally())
        tally.statuses[answer["status"]] += 1
        tally.kinds[answer["kind"]] += 1
    for failure in summary["failures"]:
        for name in failure["operations"]:
            operations.setdefault(name, Tally()).failures.append(failure["title"])
    return operations
