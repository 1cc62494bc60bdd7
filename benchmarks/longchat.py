"""A chat of 200 turns on the bundled model with a window of 2,048 tokens: what it remembers, and what that costs.

The baseline is the beginning of the same chat: sending must not get dearer as it grows. What the small model's own
summaries keep of the first turn is reported, and proves nothing either way.
"""

import os
import statistics
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import report
from tests import longchat
from tests.longchat import Turn
from tests.stack import running

TURNS = int(os.environ.get("TURNS") or 200)
# Between two lines that say how far it is.
TOLD = 20


def run() -> dict[str, object]:
    print(f"  {TURNS} turns, a few minutes …", flush=True)
    with running(engine="vllm") as stack:
        chat, turns = longchat.talk(stack, turns=TURNS, told=_tell)
        said = longchat.summaries_of(stack, chat)
        title = longchat.title_of(stack, chat)
    steady = longchat.between_updates(turns)
    updates = sum(one.summary_version != other.summary_version for one, other in pairwise(turns))
    early, late = longchat.median_cost(turns[9:29]), longchat.median_cost(turns[-20:])
    kept = [longchat.WORD in text for text in said]
    failed = [turn.number for turn in turns if turn.status != "done"]
    share, least = longchat.cached_share(steady), min(turn.cached / turn.prompt for turn in steady)
    most = longchat.SETTINGS["context_window"] - longchat.SETTINGS["max_output_tokens"]
    longest = max(turn.prompt for turn in turns)
    rows: list[list[object]] = [
        ["turns that succeeded", f"{len(turns) - len(failed)} of {len(turns)}", "all", _met(not failed)],
        ["longest prompt (tokens)", longest, f"at most {most:,}", _met(longest <= most)],
        ["cached between updates", f"{share:.1%}", "at least 80 %", _met(share >= 0.8)],
        ["  of a single turn, least", f"{least:.1%}", "", ""],
        ["summaries", f"{len(said)}, {updates} used", "", ""],
        ["turns that something was left out of", sum(turn.trimmed for turn in turns), "", ""],
        ["CPU of a send, turns 10-29 (ms)", f"{early[0]:.1f}", "", ""],
        ["CPU of a send, last 20 turns (ms)", f"{late[0]:.1f}", "flat", _met(late[0] <= 1.25 * early[0])],
        ["queries of a send, early and late", f"{early[1]:.0f}, {late[1]:.0f}", "flat", _met(late[1] <= early[1] + 2)],
        ["first token, median of all turns (ms)", f"{_median_ttft(turns):.0f}", "", ""],
        ["first token, median of turns after an update (ms)", f"{_median_ttft(_after_updates(turns)):.0f}", "", ""],
        [f"summaries that still say {longchat.WORD!r}", f"{sum(kept)} of {len(kept)}", "", ""],
        ["title", title, "", ""],
    ]
    _draw(turns, report.RESULTS / "longchat.svg")
    report.table(f"One chat of {len(turns)} turns, window 2,048", ["", "measured", "goal", ""], rows)
    return {
        "turns": len(turns),
        "failed": failed,
        "longest_prompt": longest,
        "cached_share": round(share, 4),
        "least_cached": round(least, 4),
        "summaries": len(said),
        "trimmed": sum(turn.trimmed for turn in turns),
        "cpu_ms": {"early": round(early[0], 2), "late": round(late[0], 2)},
        "queries": {"early": early[1], "late": late[1]},
        "summaries_that_keep_the_fact": sum(kept),
        "title": title,
        "prompts": [[turn.prompt, turn.cached, turn.summary_version] for turn in turns],
    }


def _met(holds: bool) -> str:
    return "met" if holds else "MISSED"


def _median_ttft(turns: list[Turn]) -> float:
    return statistics.median([turn.ttft_ms for turn in turns if turn.ttft_ms is not None] or [0])


def _after_updates(turns: list[Turn]) -> list[Turn]:
    return [turn for last, turn in pairwise(turns) if last.summary_version != turn.summary_version]


def _draw(turns: list[Turn], path: Path) -> None:
    """Each turn's prompt, what of it the engine had cached, and where a summary came in."""
    mpl.rcParams.update({"svg.hashsalt": "longchat", "svg.fonttype": "none"})
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    numbers = [turn.number for turn in turns]
    # Areas in place of bars, and text as text: a small part of the file.
    for values, color, label in (
        ([turn.prompt for turn in turns], "#d97706", "computed"),
        ([turn.cached for turn in turns], "#94a3b8", "cached"),
    ):
        axes.fill_between(numbers, values, step="mid", color=color, lw=0, label=label)
    for number, turn in enumerate(_after_updates(turns)):
        axes.axvline(turn.number - 0.5, color="#0f172a", lw=0.6, ls=":", label="" if number else "a summary comes in")
    axes.axhline(longchat.SETTINGS["context_window"], color="#b91c1c", lw=0.8, label="window")
    axes.set(xlabel="turn", ylabel="tokens of the prompt", xlim=(0.5, len(turns) + 0.5))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    print(f"  drawn in {path}")


def _tell(turn: Turn) -> None:
    if turn.number % TOLD == 0:
        print(f"  turn {turn.number}: prompt {turn.prompt}, cached {turn.cached}", flush=True)
