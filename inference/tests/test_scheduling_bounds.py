"""Bounds that hold when much comes together: several free plans, no claims, large runs, odd orders of calls."""

import threading
from typing import Any
from uuid import uuid4

import pytest
from uuid_utils.compat import uuid7

from inference.cell import admission, queue
from inference.cell.admission import Admitted, Bounds, Full
from inference.cell.link import Cell
from inference.cell.policy import Policy, TierPolicy
from inference.cell.queue import Later, Ticketed
from inference.serving import _Later
from inference.tests.support import look
from inference.tests.yard import Yard


def policy(**changes: Any) -> Policy:
    tiers = {
        "a": TierPolicy(weight=1, is_free=True, wait_ms=60_000),
        "b": TierPolicy(weight=3, is_free=True, wait_ms=60_000),
        "pro": TierPolicy(weight=10, wait_ms=2_000),
    }
    given: dict[str, Any] = {"tiers": tiers, "floor": 0.2, "delay_ms": 0, "slack": 0, **changes}
    return Policy(**given)


@pytest.fixture
def yard(cell: Cell) -> Yard:
    return Yard(cell, policy=policy())


def test_free_plans_share_their_floor_by_their_weights_while_others_are_pressed(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    for tier, runs in (("a", 80), ("b", 120), ("pro", 400)):
        yard.line_up(uuid4(), runs, tier=tier)
    assert isinstance(yard.admit(tier="pro"), Full)  # which presses
    served = yard.served(400, by="tier")
    free = served["a"] + served["b"]
    assert free == pytest.approx(80, abs=8)
    assert served["b"] == pytest.approx(3 * served["a"], abs=6)


def test_without_claims_no_more_paid_turns_are_let_in_than_twice_the_depth(yard: Yard) -> None:
    yard.policy = policy(depth=10, tiers={**policy().tiers, "pro": TierPolicy(weight=10, wait_ms=10**9)})
    yard.beat(slots=1, room=1)
    yard.line_up(uuid4(), 6, tier="a")
    for _ in range(5):
        yard.serve()
    yard.beat(slots=1, room=0)
    verdicts = []
    for number in range(40):
        verdicts.append(yard.admit(tier="pro", turn=str(number)))
        if isinstance(verdicts[-1], Admitted):
            yard.put(tier="pro", user_id=uuid4(), admission_id=verdicts[-1].admission_id)
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 20


def test_a_wait_beyond_the_bound_is_refused_to_paid_plans_too(yard: Yard) -> None:
    yard.beat(slots=1, room=1)
    yard.line_up(uuid4(), 6, tier="a")
    for _ in range(5):
        yard.serve()
    yard.beat(slots=1, room=0)
    yard.line_up(uuid4(), 30, tier="pro")
    assert isinstance(yard.admit(tier="pro"), Full)


def test_a_hold_counts_in_the_pool_that_has_its_place_and_in_no_other(yard: Yard) -> None:
    user = uuid4()
    yard.beat()
    first = yard.admit(user_id=user)
    assert isinstance(first, Admitted)

    def ask(pool: str) -> admission.Verdict:
        call = admission.admit(
            yard.keys,
            user_id=user,
            pool=pool,
            turn="t",
            base_epoch=1,
            admission_id=uuid7(),
            min_generation=0,
            prompt_tokens=100,
            output_tokens=100,
            output_floor=1,
            bounds=Bounds(concurrent_runs=1000),
            tier="a",
            policy=policy(mode="drain" if pool == "big" else "normal"),
            now_ms=yard.now,
        )
        return admission.read_verdict(yard.cell.call(call))

    assert isinstance(ask("big"), Full)
    again = ask("p")
    assert isinstance(again, Admitted)
    assert again.admission_id == first.admission_id


def begun(yard: Yard, *, prompt_tokens: int) -> Ticketed:
    """A run that was begun and lost its worker."""
    run_id = uuid7()
    yard.put(run_id, tier="pro", prompt_tokens=prompt_tokens)
    run = yard.take()
    assert yard.abort(run, shown=3) == 1
    again = Ticketed(run_id=run_id, epoch=2)
    yard.put(run_id, run=again, tier="pro", prompt_tokens=prompt_tokens)
    return again


def test_others_may_pass_what_does_not_fit_for_a_while_and_then_wait_with_it(yard: Yard) -> None:
    yard.beat(kv_tokens=20_000)
    large = begun(yard, prompt_tokens=9_000)
    small, other = yard.line_up(uuid4(), 2, tier="pro")
    assert yard.take(room_tokens=5_000) == small
    yard.now += 2_500
    assert yard.ask(room_tokens=5_000) == Later(250)
    assert yard.take(room_tokens=10_000) == large
    assert yard.take(room_tokens=5_000) == other


def test_what_no_memory_of_a_worker_is_large_enough_for_keeps_it_from_nothing(yard: Yard) -> None:
    yard.beat(kv_tokens=8_000)
    begun(yard, prompt_tokens=9_000)
    yard.line_up(uuid4(), 1, tier="pro", prompt_tokens=8_500)
    names = yard.line_up(uuid4(), 2, tier="a")
    yard.now += 60_000
    assert [yard.take(room_tokens=8_000) for _ in names] == names


def test_what_a_dead_worker_left_is_never_sent_to_it(yard: Yard) -> None:
    """The more of its runs others take over, the more room it would seem to have."""
    yard.beat(boot_id="dead", slots=32)
    runs = yard.line_up(uuid4(), 8, tier="pro")
    assert [yard.take(boot_id="dead") for _ in runs] == runs
    yard.beat(boot_id="other", slots=28)
    sent = []
    for run in runs:
        assert yard.abort(run, boot_id=None, shown=3) == 1
        again = Ticketed(run_id=run.run_id, epoch=2)
        sent.append(yard.put(run.run_id, run=again, tier="pro").boot_id)
    assert sent == ["other"] * 8
    yard.beat(boot_id="dead", slots=32)  # it had only stood still
    assert yard.room("dead") == 32


def test_a_claim_brings_no_erased_account_back(yard: Yard) -> None:
    user = uuid4()
    yard.line_up(user, 1, tier="a")
    look(yard.cell, lambda client: client.delete(yard.keys.account(user)))
    yard.take()
    assert look(yard.cell, lambda client: client.exists(yard.keys.account(user))) == 0


def test_a_record_that_counts_runs_which_are_not_there_mends_itself(yard: Yard) -> None:
    [run] = yard.line_up(uuid4(), 1, tier="a")
    key = f"{yard.keys.queue('p')}"
    yard.put(uuid7(), run=Ticketed(run_id=uuid7(), epoch=2), tier="a")
    look(yard.cell, lambda client: client.delete(f"{key}:begun", f"{key}:b"))
    assert yard.take() == run
    assert yard.ask() is None
    assert yard.state.waiting == 0


def test_a_look_that_is_asked_for_while_the_last_one_knocks_is_not_lost() -> None:
    knocks: list[int] = []
    twice = threading.Event()

    def knock() -> None:
        knocks.append(1)
        if len(knocks) == 1:
            later.look(after_s=0.001)
        else:
            twice.set()

    later = _Later(knock)
    later.look(after_s=0.001)
    assert twice.wait(timeout=30)


def expected_after_ten_tokens(yard: Yard, *, is_whole: bool) -> float:
    """What is expected of the yard's user after an answer of 10 tokens."""
    yard.put(tier="a", max_output_tokens=1000)
    run = yard.take()
    one = yard.known[run]
    served = queue.Served(computed_tokens=100, cached_tokens=0, output_tokens=10, held_ms=5, is_whole=is_whole)
    call = queue.finish(
        yard.keys,
        pool="p",
        run=run,
        boot_id="w",
        chat_id=one.chat_id,
        served=served,
    )
    assert yard.cell.call(call) == 1
    account = yard.keys.account(one.user_id)
    found: Any = look(yard.cell, lambda client: client.hget(account, "out:p"))
    look(yard.cell, lambda client: client.hdel(account, "out:p"))
    return float(found)


def test_estimates_learn_from_whole_answers_alone(yard: Yard) -> None:
    assert expected_after_ten_tokens(yard, is_whole=False) == 200
    assert expected_after_ten_tokens(yard, is_whole=True) == 10
