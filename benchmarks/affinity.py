"""How much of each turn's prompt its worker remembers: chats side by side on two workers, with affinity and without.

The pool's model has two layers of random weights: what prefix caches hold depends on token ids alone, and ids that
nobody would spell a text with show whether prompts are built of the answers' own. The baseline is the same site with
`affinity_delay_ms` 0, so that turns go to whichever worker has more room.
"""

import statistics

from benchmarks import report
from tests import affinity
from tests.client import Api
from tests.recovery import wait_for_workers
from tests.stack import running

DELAY_MS = 2000


def run() -> dict[str, object]:
    with running(engine="vllm", environment=affinity.ENVIRONMENT) as stack:
        key = stack.manage("create_api_key", "benchmark@example.com")
        with Api(url=stack.url, key=key) as api:
            wait_for_workers(api, 2, seconds=300)
        rows: list[list[object]] = []
        figures: dict[str, object] = {"chats": affinity.CHATS, "turns": affinity.TURNS, "block": affinity.BLOCK}
        for name, delay_ms in (("on", DELAY_MS), ("off", 0)):
            affinity.set_delay(stack, ms=delay_ms)
            turns = affinity.measure(stack, key=key)
            of_turn = {str(number): round(hit, 3) for number, hit in affinity.by_number(turns).items()}
            share = affinity.share(turns)
            least = min(turn.hit for turn in turns)
            whole = sum(turn.cached >= turn.shared for turn in turns) / len(turns)
            prompts = statistics.mean(turn.prompt for turn in turns)
            figures[name] = {
                "share": round(share, 4),
                "least": round(least, 4),
                "whole": round(whole, 4),
                "by_turn": of_turn,
                "mean_prompt": round(prompts),
            }
            rows.append([name, f"{100 * share:.1f}", f"{100 * least:.1f}", f"{100 * whole:.1f}", len(turns)])
        report.table(
            f"Shared prefix blocks cached from turn 2 on, {affinity.CHATS} chats of {affinity.TURNS} turns at once (%)",
            ["affinity", "of all blocks", "worst turn", "turns with all of them", "n"],
            rows,
        )
    return figures
