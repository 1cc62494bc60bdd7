"""`manage.py simulate`: is the scheduler fair, honest and quick? Its real scripts in virtual time."""

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from inference.simulation import cells, goals, report
from inference.simulation.run import (
    BACKLOGGED,
    MIXED,
    OURS,
    POLICIES,
    QUICK,
    Job,
    Outcome,
    Size,
    best_hit_rate,
    jobs,
    play,
)

LOADS, SEEDS = (0.7, 0.95, 1.3, 3.0), (1, 2, 3)
QUICK_LOADS = (0.95, 3.0)
DELAYS_MS = (0, 125, 250, 500, 1_000, 2_000, 4_000)
GOALS, DELAYS, CELLS = "goals", "delays", "cells"


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        try:
            found = tuple(kind(word) for word in text.split(","))
        except ValueError as error:
            raise ArgumentTypeError(f"not numbers between commas: {text!r}") from error
        if any(number <= 0 for number in found):
            raise ArgumentTypeError("numbers above 0")
        return found

    return parse


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(POLICIES)):
        raise ArgumentTypeError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    return names


class Command(BaseCommand):
    help = "Drive the scheduler's scripts with made-up users and engines; ends with status 1 when a goal is not met."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--loads", type=_numbers(float), help="slot time wanted ÷ there (default: 0.7,0.95,1.3,3)")
        parser.add_argument("--seeds", type=_numbers(int), help="default: 1,2,3")
        parser.add_argument("--policies", type=_policies, default=POLICIES, help="default: fifo,strict,ours")
        parser.add_argument("--seconds", type=int, help="virtual seconds, the first third of them warm-up")
        parser.add_argument("--quick", action="store_true", help="a small pool for a short time: no verdict, a look")
        parser.add_argument("--scenario", choices=(GOALS, DELAYS, CELLS), help="only this one")
        parser.add_argument("--out", type=Path, help="folder for plots and JSON (default: var/simulation)")

    def handle(self, *args: Any, scenario: str | None, **options: Any) -> None:
        loads = options["loads"] or (QUICK_LOADS if options["quick"] else LOADS)
        seeds = options["seeds"] or (SEEDS[:1] if options["quick"] else SEEDS)
        size = _size(quick=options["quick"], seconds=options["seconds"])
        out = options["out"] or settings.BASE_DIR / "var" / "simulation"
        figures: dict[str, object] = {}
        failed: list[str] = []
        if scenario in (None, GOALS):
            outcomes = self._goals(jobs(loads=loads, seeds=seeds, policies=options["policies"], size=size), out)
            figures["goals"] = report.as_json(outcomes)
            failed = report.failures(outcomes)
        if scenario == DELAYS or (scenario is None and not options["quick"]):
            figures["delays"] = self._delays(size, seed=seeds[0], out=out)
        if scenario == CELLS or (scenario is None and not options["quick"]):
            figures["cells"] = self._cells(quick=options["quick"], seed=seeds[0])
        self.stdout.write(f"\nwritten: {report.write_json(out, figures)}, and plots beside it")
        if failed:
            self.stdout.write("\nnot met:\n" + "\n".join(f"  {line}" for line in failed))
            sys.exit(1)

    def _goals(self, wanted: Sequence[Job], out: Path) -> list[Outcome]:
        from inference.simulation import plots

        outcomes = []
        for number, job in enumerate(wanted, start=1):
            began = time.monotonic()
            outcome, seen = play(job, progress=self._progress(f"{number} of {len(wanted)}: {job}"))
            outcomes.append(outcome)
            self._tell(f"{number} of {len(wanted)}: {job}: {time.monotonic() - began:.0f} s, {outcome.digest}")
            if job.seed == wanted[0].seed and job.load == max(one.load for one in wanted):
                plots.service(job, seen, out)
            if job.seed == wanted[0].seed and job.policy == OURS:
                plots.waits(job, seen, out)
        self.stdout.write("\n" + report.conditions(outcomes[0]))
        for workload in (MIXED, BACKLOGGED):
            if table := report.goals_table(outcomes, workload=workload, policy=OURS):
                self.stdout.write("\n" + table)
        self.stdout.write("\ncompared, the worst of the seeds")
        for workload in (MIXED, BACKLOGGED):
            for load in sorted({job.load for job in wanted}):
                if table := report.comparison_table(outcomes, workload=workload, load=load):
                    self.stdout.write("\n" + table)
        return outcomes

    def _delays(self, size: Size, *, seed: int, out: Path) -> list[dict[str, object]]:
        from inference.simulation import plots

        outcomes = []
        for delay in DELAYS_MS:
            job = Job(workload=MIXED, load=0.95, seed=seed, size=size, delay_ms=delay)
            outcome, _ = play(job, progress=self._progress(f"{job}, delay {delay} ms"))
            outcomes.append(outcome)
        best = best_hit_rate(outcomes[0].job)
        plots.delays(outcomes, best, out)
        self.stdout.write(f"\nby delay, {outcomes[0].job}; affinity without bounds: {100 * best:.1f} %")
        for outcome in outcomes:
            hits, late = 100 * outcome.hit_rate, report.verdict(outcome.measured(goals.TTFT))
            self.stdout.write(f"  {outcome.job.delay_ms:5} ms  hits {hits:.1f} %  {goals.TTFT}: {late}")
        return [
            {
                "delay_ms": one.job.delay_ms,
                "hit_rate": one.hit_rate,
                "unbounded": best,
                "first_token_p99_ms": one.measured(goals.TTFT).value,
            }
            for one in outcomes
        ]

    def _cells(self, *, quick: bool, seed: int) -> dict[str, object]:
        needs = cells.measure(
            seed=seed, progress=self._tell, **({"prompts_per_s": 500, "cells": 2, "seconds": 4} if quick else {})
        )
        self.stdout.write("\n" + cells.table(needs))
        return cells.as_json(needs)

    def _progress(self, what: str) -> Callable[[int], None]:
        return lambda now: self._tell(f"{what}: {now // 1000} virtual s")

    def _tell(self, text: str) -> None:
        self.stderr.write(text, style_func=str)


def _size(*, quick: bool, seconds: int | None) -> Size:
    size = QUICK if quick else Size()
    if seconds is None:
        return size
    return Size(workers=size.workers, machine=size.machine, seconds=seconds, warm_up_s=seconds // 3)
