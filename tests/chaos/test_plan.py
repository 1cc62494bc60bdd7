"""The plan follows from its seed alone."""

from collections import Counter

from tests.chaos import plan
from tests.chaos.plan import Kind


def made(
    *, seed: int = 7, turns: int = 300, kills: int = 30, database: str = "postgres", engine: str = "scripted"
) -> plan.Plan:
    return plan.make(seed=seed, turns=turns, kills=kills, database=database, engine=engine)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert made() == made()


def test_another_seed_gives_another_plan() -> None:
    assert made().asks != made(seed=8).asks
    assert made().faults != made(seed=8).faults


def test_more_turns_change_none_of_the_first() -> None:
    assert made(turns=301).asks[:300] == made().asks


def test_the_clients_do_the_same_on_every_database() -> None:
    assert made(database="sqlite").asks == made().asks


def test_a_short_plan_hits_every_kind_of_process_that_holds_state() -> None:
    hit = {(fault.target.rstrip("-12"), fault.kind) for fault in made(turns=40, kills=5).faults}
    assert hit == {
        ("worker", Kind.KILL),
        ("worker", Kind.FREEZE),
        ("web", Kind.KILL),
        ("valkey", Kind.KILL),
        ("database", Kind.KILL),
    }


def test_a_long_plan_hits_everything() -> None:
    targets = Counter(fault.target for fault in made(kills=60).faults)
    assert targets.keys() >= {*plan.WEBS, *plan.WORKERS, "jobs", "beat", "valkey", "database"}


def test_the_real_engines_core_is_hit_and_the_scripted_one_has_none() -> None:
    assert any(fault.target.startswith("engine-") for fault in made(kills=6, engine="vllm").faults)
    assert not any(fault.target.startswith("engine-") for fault in made(kills=60).faults)


def test_an_embedded_database_has_no_process_to_kill() -> None:
    kinds = {fault.kind for fault in made(database="sqlite", kills=60).faults if fault.target == "database"}
    assert kinds == {Kind.FREEZE}


def test_faults_come_while_turns_are_played() -> None:
    assert all(1 <= fault.after_turns <= 300 for fault in made().faults)


def test_clients_do_everything_that_is_to_be_survived() -> None:
    asks = made().asks
    assert any(ask.streamed for ask in asks)
    assert any(ask.cancel for ask in asks)
    assert any(ask.retries for ask in asks)
    assert any(ask.fail_after is not None for ask in asks)
    assert any(repeat.drop_s is not None for ask in asks for repeat in ask.repeats)
    assert any(repeat.web != ask.web for ask in asks for repeat in ask.repeats)
    assert any(reading.cuts for ask in asks for reading in ask.readings)
