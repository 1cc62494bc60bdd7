"""Whole simulations, small ones: repeatable, and able to tell a bad scheduler."""

import contextlib
import json
from pathlib import Path

import pytest
from django.core.management import call_command

from inference.simulation import report
from inference.simulation.engines import Engine, Machine
from inference.simulation.run import BACKLOGGED, FIFO, MIXED, OURS, STRICT, Job, Outcome, Size, play
from inference.simulation.tests.builders import turn, user
from inference.simulation.turns import FREE
from inference.simulation.workload import mixed

TINY = Size(workers=2, machine=Machine(slots=8), seconds=20, warm_up_s=5)
# Long enough for a window of a minute, large enough for many turns of each user in it.
LONG = Size(workers=2, machine=Machine(slots=32), seconds=100, warm_up_s=30)


def _goals(outcome: Outcome) -> dict[str, bool | None]:
    return {one.goal: one.passed for one in outcome.goals}


@pytest.mark.parametrize("policy", [OURS, STRICT])
def test_the_same_seed_gives_the_same_simulation(policy: str) -> None:
    job = Job(workload=MIXED, load=1.3, seed=7, policy=policy, size=TINY)
    first, _ = play(job)
    second, _ = play(job)
    assert first.digest == second.digest
    # What the scripts took is the machine's.
    assert [one for one in first.goals if one.unit != "ms"] == [one for one in second.goals if one.unit != "ms"]


def test_another_seed_gives_another_simulation() -> None:
    digests = {play(Job(workload=MIXED, load=1.3, seed=seed, policy=FIFO, size=TINY))[0].digest for seed in (1, 2)}
    assert len(digests) == 2


def test_strict_priority_starves_the_free_tier_and_the_goals_say_so() -> None:
    outcome, _ = play(Job(workload=BACKLOGGED, load=3.0, seed=1, policy=STRICT, size=LONG))
    found = _goals(outcome)
    assert found["free share while backlogged"] is False
    assert found["tiers' shares off their weights"] is False
    assert found["admitted, then expired"] is False


def test_first_come_first_served_is_unfair_and_cold_and_the_goals_say_so() -> None:
    crowded, _ = play(Job(workload=BACKLOGGED, load=3.0, seed=1, policy=FIFO, size=LONG))
    assert _goals(crowded)["Jain's index over 60 s"] is False
    assert _goals(crowded)["tiers' shares off their weights"] is False
    calm, _ = play(Job(workload=MIXED, load=0.95, seed=1, policy=FIFO, size=LONG))
    assert _goals(calm)["prefix hits, of unbounded affinity's"] is False


def test_the_real_scripts_keep_the_floor_and_the_shares_under_a_flood() -> None:
    outcome, _ = play(Job(workload=BACKLOGGED, load=3.0, seed=1, size=LONG))
    found = _goals(outcome)
    assert found["free share while backlogged"]
    assert found["same-tier service difference"]
    assert found["slots idle while turns wait"]


def test_a_workload_wants_what_its_load_says() -> None:
    machine = Machine()
    wanted = 0.0
    for seed in range(5):
        chats = mixed(load=0.8, seconds=400).chats(
            seed=seed, slots=100, prefill_ms=machine.prefill_ms, token_ms=machine.token_ms
        )
        # Of chats that begin in the simulation: as many go on after its end as were begun before it.
        wanted += sum(answer for chat in chats for _, answer, _ in chat.plan) * machine.token_ms
    assert wanted / (5 * 400_000 * 100) == pytest.approx(0.8, abs=0.12)


def test_an_engine_reads_one_prompt_after_another_and_remembers_chats() -> None:
    engine = Engine(number=0, machine=Machine(slots=2, prefill_per_s=1_000.0, token_ms=10.0))
    first, second = turn(prompt=100, output=11), turn(prompt=50, output=1)
    engine.start(first, now=0)
    engine.start(second, now=0)
    assert (first.first_token, first.finished) == (100.0, 200.0)
    assert (second.prefill_from, second.first_token) == (100.0, 150.0)
    assert engine.free_slots == 0
    engine.end(first, now=200)
    following = turn(prompt=130, output=5, sent=150)
    following.known = 111
    engine.start(following, now=210)
    assert following.cached == 96  # whole blocks of 111
    assert following.idle == 10  # it was sent before the slot was free


def test_an_engine_forgets_the_chat_that_was_used_least_recently() -> None:
    engine = Engine(number=0, machine=Machine(slots=2, kv_tokens=3_000))
    turns = [turn(whose, FREE, prompt=800, output=100) for whose in range(3)]
    for number, one in enumerate(turns):
        one.chat.chat_id = user(number)
        engine.start(one, now=number)
        engine.end(one, now=number)
    assert [engine.holds(one.chat.chat_id) for one in turns] == [0, 900, 900]


def test_the_worst_seed_is_what_the_table_shows() -> None:
    outcomes = [play(Job(workload=MIXED, load=3.0, seed=seed, policy=STRICT, size=TINY))[0] for seed in (1, 2)]
    for index in range(len(outcomes[0].goals)):
        both = [one.goals[index] for one in outcomes]
        worst = report.worst_of(both)
        if any(one.passed is False for one in both):
            assert worst.passed is False


def test_the_command_prints_goals_and_a_comparison_and_writes_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A goal may not be met in so short a time: status 1.
    with contextlib.suppress(SystemExit):
        call_command("simulate", quick=True, scenario="goals", out=tmp_path, loads=(3.0,), seconds=24)
    printed = capsys.readouterr().out
    assert "free share while backlogged" in printed
    assert "compared, the worst of the seeds" in printed
    found = json.loads((tmp_path / "simulation.json").read_text(encoding="utf-8"))
    assert {one["policy"] for one in found["goals"]} == {FIFO, STRICT, OURS}
    assert {path.name for path in tmp_path.glob("waits-*.png")} == {
        "waits-mixed-ours-3-seed1.png",
        "waits-backlogged-ours-3-seed1.png",
    }
