"""PNG plots of simulations, by matplotlib: it is installed with what tests and checks need."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inference.simulation import goals
from inference.simulation.goals import Seen
from inference.simulation.run import Job, Outcome
from inference.simulation.service import left_queue

mpl.use("Agg")
_COLOURS = {"free": "tab:gray", "plus": "tab:blue", "pro": "tab:orange"}
_SMOOTH_S = 10


def service(job: Job, seen: Seen, folder: Path) -> Path:
    """Service over time: of each tier, in cost per second over the last ten; of the users with most, in all."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    tiers, users = figure.subplots(1, 2)
    tier_of = {turn.user_id: turn.tier for turn in seen.record.turns}
    seconds = range(_SMOOTH_S, seen.setting.seconds)
    for tier in seen.by_tier.until:
        rates = [seen.by_tier.between(tier, at - _SMOOTH_S, at) / _SMOOTH_S for at in seconds]
        tiers.plot(seconds, rates, label=str(tier), color=_COLOURS[str(tier)])
    tiers.legend()
    busiest = sorted(seen.by_user.until, key=lambda user: -seen.by_user.until[user][-1])[:24]
    for user in busiest:
        users.plot(
            range(seen.setting.seconds + 1),
            seen.by_user.until[user],
            color=_COLOURS[tier_of[user]],
            linewidth=0.8,
        )
    _name(tiers, title=f"{job}: tiers", x="virtual s", y="cost served per s")
    _name(users, title="the 24 users served most", x="virtual s", y="cost served, in all")
    return _write(figure, folder / f"service-{_file(job)}.png")


def waits(job: Job, seen: Seen, folder: Path) -> Path:
    """The wait foretold on arrival against the one experienced; expired turns have crosses."""
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    end = 1000 * job.size.seconds
    most = 1.0
    for tier, colour in _COLOURS.items():
        for expired, marker in ((False, "."), (True, "x")):
            turns = [
                turn
                for turn in seen.window
                if turn.tier == tier and (turn.expired is not None) == expired and (turn.claimed is not None or expired)
            ]
            foretold = [turn.promised / 1000 for turn in turns]
            experienced = [(left_queue(turn, end_ms=end) - turn.sent) / 1000 for turn in turns]
            axes.plot(foretold, experienced, marker, color=colour, markersize=3, alpha=0.4)
            most = max(most, *foretold, *experienced) if turns else most
        axes.plot([], [], ".", color=colour, label=tier)
    axes.plot([0, most], [0, most], color="black", linewidth=0.5)
    axes.legend()
    _name(axes, title=f"{job}: waits", x="foretold (s)", y="experienced (s)")
    return _write(figure, folder / f"waits-{_file(job)}.png")


def delays(outcomes: Sequence[Outcome], best: float, folder: Path) -> Path:
    """By how long a turn may be kept for its home worker: the hit rate, and paid first tokens at p99."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    at = [outcome.job.delay_ms for outcome in outcomes]
    axes.plot(at, [100 * outcome.hit_rate for outcome in outcomes], "o-", label="hit rate")
    axes.axhline(100 * best, color="tab:green", linestyle=":", label="affinity without bounds")
    axes.axhline(95 * best, color="tab:red", linestyle=":", label="95 % of that")
    late = axes.twinx()
    late.plot(at, [outcome.measured(goals.TTFT).value or math.nan for outcome in outcomes], "s--", color="tab:gray")
    late.set_ylabel("first token, paid short prompts, p99 (ms, dashed)")
    axes.legend(loc="lower right")
    _name(axes, title=f"{outcomes[0].job}", x="delay at most (ms)", y="prompt tokens from the cache (%)")
    return _write(figure, folder / "delays.png")


def _name(axes: Axes, *, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)


def _write(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _file(job: Job) -> str:
    return f"{job.workload}-{job.policy}-{job.load:g}-seed{job.seed}"
