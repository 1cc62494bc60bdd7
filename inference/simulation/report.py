"""What simulations found, as tables on the screen and as JSON."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from inference.simulation import goals
from inference.simulation.goals import Measured
from inference.simulation.run import BACKLOGGED, MIXED, OURS, POLICIES, Outcome, default_policy, setting

_WORKLOADS = {
    MIXED: "many visitors who think between turns, some in bursts, and floods; demand 60 % free, 25 % plus, 15 % pro",
    BACKLOGGED: "six users in each tier who always want more than they get, each tier in proportion to its share",
}


def conditions(outcome: Outcome) -> str:
    """What was measured, and how: the goals mean nothing without it."""
    job, its = outcome.job, setting(outcome.job)
    size, machine, policy = job.size, job.size.machine, default_policy()
    weights = ", ".join(f"{tier} {weight:g}" for tier, weight in its.weights.items())
    bounds = ", ".join(f"{tier} {bound // 1000} s" for tier, bound in its.bounds.items())
    return f"""\
{size.workers} workers × {machine.slots} slots; prefill {machine.prefill_per_s:,.0f} tokens/s of a worker, one prompt
  after another; {machine.token_ms:g} ms per output token; {machine.kv_tokens:,} KV tokens of a worker
virtual time {size.seconds} s, the first {size.warm_up_s} s of it warm-up
weights {weights}; floor of free {100 * its.floor:g} %; waits at most {bounds}
depth {policy.depth}, delay {job.delay_ms} ms, slack {policy.slack}
service: tokens that engines made, uncached prompt × {its.prompt_weight} + output × {its.output_weight}
  shares and Jain's index: the worst window of {goals.SHARE_WINDOW_S} s, {goals.STEP_S} s apart
  Jain's index: where users get {goals.JAIN_TURNS} mean turns' worth each in the window
  at a paid refusal: free's share of the {goals.REFUSAL_WINDOW_S} s before
  compared are users who waited {goals.PAIR_S} s or longer at once
wait errors relative to max(experienced, 1 s), of turns that had to wait
short prompts have {goals.SHORT_PROMPT:,} tokens at most, and wait behind no other turn of their user's
of idle slots one counts for each turn that waits"""


def worst_of(measured: Sequence[Measured]) -> Measured:
    """The seed in which a goal came out worst; one that says nothing counts only when all do."""
    told = [one for one in measured if one.value is not None]
    if not told:
        return measured[0]
    failed = [one for one in told if not one.passed] or told
    sign = 1 if told[0].worse_is_more else -1
    return max(failed, key=lambda one: sign * (one.value or 0.0))


def goals_table(outcomes: Sequence[Outcome], *, workload: str, policy: str) -> str:
    """A row for each goal, a column for each load: the worst of the seeds."""
    grouped = _by_load(outcomes, workload=workload, policy=policy)
    if not grouped:
        return ""
    seeds = sorted({one.job.seed for group in grouped.values() for one in group})
    rows = [["goal", "target", *(f"load {load:g}" for load in grouped)]]
    offered = [f"{_mean(one.offered_load for one in group):.2f}" for group in grouped.values()]
    rows.append(["(offered load, measured)", "", *offered])
    notes = []
    for index, first in enumerate(next(iter(grouped.values()))[0].goals):
        row = [first.goal, first.target]
        for load, group in grouped.items():
            worst = worst_of([one.goals[index] for one in group])
            row.append(verdict(worst))
            if worst.passed is False:
                notes.append(f"  FAIL {worst.goal} at load {load:g}: {worst.note or verdict(worst)}")
        rows.append(row)
    title = f"{policy}, {workload}: {_WORKLOADS[workload]}; worst of seeds {', '.join(map(str, seeds))}"
    return "\n".join([title, _aligned(rows), *notes])


def comparison_table(outcomes: Sequence[Outcome], *, workload: str, load: float) -> str:
    """A row for each goal, a column for each policy, at one load: the worst of the seeds."""
    groups = {
        policy: found
        for policy in POLICIES
        if (found := _by_load(outcomes, workload=workload, policy=policy).get(load)) is not None
    }
    if len(groups) < 2:
        return ""
    rows = [["goal", "target", *groups]]
    for index, first in enumerate(next(iter(groups.values()))[0].goals):
        worst = [worst_of([one.goals[index] for one in group]) for group in groups.values()]
        rows.append([first.goal, first.target, *map(verdict, worst)])
    return f"{workload}, load {load:g}\n{_aligned(rows)}"


def verdict(measured: Measured) -> str:
    """The value with its unit, and whether it is good enough; '-' where it says nothing."""
    if measured.value is None:
        return "-"
    value = "never" if math.isinf(measured.value) else f"{measured.value:.4g}"
    return f"{value} {measured.unit} {'ok' if measured.passed else 'FAIL'}".replace("  ", " ")


def failures(outcomes: Iterable[Outcome]) -> list[str]:
    """Ours' goals that are not met."""
    return [
        f"{outcome.job}: {measured.goal} {verdict(measured)}"
        for outcome in outcomes
        if outcome.job.policy == OURS
        for measured in outcome.goals
        if measured.passed is False
    ]


def as_json(outcomes: Iterable[Outcome]) -> list[dict[str, object]]:
    """All that was measured; what nobody was served in has the value null."""
    return [
        {
            "workload": outcome.job.workload,
            "load": outcome.job.load,
            "seed": outcome.job.seed,
            "policy": outcome.job.policy,
            "offered_load": round(outcome.offered_load, 3),
            "hit_rate": round(outcome.hit_rate, 4),
            "digest": outcome.digest,
            "goals": [
                {
                    "goal": one.goal,
                    "target": one.target,
                    "value": None if one.value is None or math.isinf(one.value) else one.value,
                    "unit": one.unit,
                    "passed": one.passed,
                    "note": one.note,
                }
                for one in outcome.goals
            ],
        }
        for outcome in outcomes
    ]


def write_json(folder: Path, figures: Mapping[str, object]) -> Path:
    """Write everything to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "simulation.json"
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return path


def _by_load(outcomes: Iterable[Outcome], *, workload: str, policy: str) -> dict[float, list[Outcome]]:
    grouped: dict[float, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.job.workload == workload and outcome.job.policy == policy:
            grouped[outcome.job.load].append(outcome)
    return dict(sorted(grouped.items()))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
