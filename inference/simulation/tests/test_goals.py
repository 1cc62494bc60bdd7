"""Each goal on inputs whose answer is known."""

import math

import pytest

from inference.simulation import goals
from inference.simulation.service import Service, backlogs, joined
from inference.simulation.tests.builders import seen, served_evenly, setting, turn, user
from inference.simulation.turns import FREE, PLUS, PRO


def test_service_is_counted_when_it_is_made() -> None:
    one = turn(prompt=300, cached=100, first=1_500.0, finished=3_500.0, output=100)
    one.prefill_from = 500.0
    service = Service([one], key=lambda turn: turn.tier, seconds=4, prompt_weight=1, output_weight=2)
    assert service.until[PLUS] == pytest.approx([0, 100, 250, 350, 400])


def test_what_is_made_after_the_end_is_left_out() -> None:
    one = turn(first=0.0, finished=4_000.0, output=100)
    service = Service([one], key=lambda turn: turn.tier, seconds=2, prompt_weight=1, output_weight=1)
    assert service.until[PLUS] == pytest.approx([0, 125, 150])


def test_a_backlog_lasts_while_any_turn_waits() -> None:
    turns = [
        turn(sent=0, claimed=10),
        turn(sent=5, expired=20),
        turn(sent=30, claimed=40),
        turn(sent=50),
        turn(sent=0, refused=True),
    ]
    found = backlogs(turns, key=lambda turn: turn.user_id, end_ms=100)
    assert found == {user(1): [(0, 20), (30, 40), (50, 100)]}


def test_intervals_that_touch_are_one() -> None:
    assert joined([(5, 6), (0, 2), (2, 4)]) == [(0, 4), (5, 6)]


def test_jain_of_equals_is_one_and_of_one_with_everything_one_by_n() -> None:
    assert goals.jain([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert goals.jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_equal_users_pass_jain_and_unequal_ones_do_not() -> None:
    even = [turn for who in (1, 2, 3) for turn in served_evenly(who, PLUS, per_s=10)]
    uneven = even + served_evenly(4, PLUS, per_s=20)
    assert goals.jain_index(seen(even)).passed
    found = goals.jain_index(seen(uneven))
    assert found.passed is False
    assert found.value == pytest.approx(50**2 / (4 * 700))


def test_jain_says_nothing_of_users_who_did_not_wait_all_along() -> None:
    rested = [turn(who, sent=0, claimed=1_000, first=1_000.0, finished=2_000.0) for who in (1, 2, 3)]
    assert goals.jain_index(seen(rested)).value is None


def test_two_users_apart_by_more_than_the_bound_fail() -> None:
    # 120 s at 10 tokens a second more: 1,200 apart; dearest turn 20, slack 50: the bound is 140.
    turns = served_evenly(1, PLUS, per_s=10) + served_evenly(2, PLUS, per_s=20)
    found = goals.same_tier_difference(seen(turns))
    assert found.value == pytest.approx(1_200 / 140)
    assert found.passed is False


def test_misjudged_turns_under_way_widen_the_bound() -> None:
    turns = served_evenly(1, PLUS, per_s=10) + served_evenly(2, PLUS, per_s=20)
    turns.append(turn(1, claimed=1, first=1.0, finished=130_000.0, output=0, charged=1_060))
    # Under way at the end of the measuring time, not at its beginning.
    assert goals.same_tier_difference(seen(turns)).value == pytest.approx(1_200 / (140 + 1_060))


def test_users_of_different_tiers_are_not_compared() -> None:
    turns = served_evenly(1, PLUS, per_s=10) + served_evenly(2, PRO, per_s=20)
    assert goals.same_tier_difference(seen(turns)).value is None


@pytest.mark.parametrize(("free", "passed"), [(10, True), (9, False)])
def test_free_share_is_held_against_the_floor(free: int, passed: bool) -> None:
    turns = served_evenly(1, FREE, per_s=free) + served_evenly(2, PRO, per_s=100)
    found = goals.free_share(seen(turns))
    assert found.value == pytest.approx(100 * free / (100 + free))
    assert found.passed is passed


def test_free_share_says_nothing_when_nobody_waits() -> None:
    assert goals.free_share(seen([turn(tier=FREE, sent=0, claimed=0, first=0.0, finished=10.0)])).value is None


@pytest.mark.parametrize(("free", "wrong"), [(10, 0), (15, 1)])
def test_a_paid_refusal_is_wrong_while_free_has_more_than_its_floor(free: int, wrong: int) -> None:
    turns = served_evenly(1, FREE, per_s=free) + served_evenly(2, PRO, per_s=100 - free)
    turns += [turn(3, PLUS, sent=50_000, refused=True), turn(4, FREE, sent=50_000, refused=True)]
    found = goals.paid_refusals(seen(turns))
    assert (found.value, found.passed) == (wrong, wrong == 0)


def test_expired_turns_are_counted_of_those_whose_bound_has_passed() -> None:
    turns = [turn(sent=0, claimed=1)] * 98 + [turn(sent=0, expired=20_000)] * 2
    turns += [turn(sent=110_000)] * 50 + [turn(refused=True)] * 50
    found = goals.expired(seen(turns))
    assert found.value == pytest.approx(2.0)
    assert found.passed is False


def test_a_wait_estimate_is_relative_to_the_wait_or_a_second() -> None:
    exact = [turn(sent=0, claimed=10_000, promised=10_000)] * 85
    short = [turn(sent=0, claimed=100, promised=500)] * 10  # 0.4 s of 1 s
    far = [turn(sent=0, claimed=10_000, promised=20_000)] * 5
    assert goals.wait_estimate(seen(exact + short + far)).value == pytest.approx(40.0)


def test_turns_that_had_no_wait_say_nothing_about_estimates() -> None:
    assert goals.wait_estimate(seen([turn(sent=0, claimed=2)] * 500)).value is None


@pytest.mark.parametrize(("load", "cached", "passed"), [(0.95, 96, True), (0.95, 90, False), (1.3, 96, None)])
def test_prefix_hits_are_held_against_unbounded_affinity(load: float, cached: int, passed: bool | None) -> None:
    turns = [turn(claimed=0, prompt=200, cached=cached)]
    assert goals.prefix_hits(seen(turns, setting(load=load), best=0.5)).passed is passed


def test_a_slot_is_idle_for_each_turn_that_could_have_had_it() -> None:
    # 4 slots, 120 s: half the time one turn waits beside two free slots, then two beside one.
    found = goals.idle_slots(seen([], levels=[(0, 1, 2), (60_000, 2, 1)]))
    assert found.value == pytest.approx(25.0)
    assert found.passed is False


def test_the_schedulers_part_is_what_a_free_worker_left_lying() -> None:
    turns = [turn(claimed=0, idle=2)] * 90 + [turn(claimed=0, idle=100)] * 10
    found = goals.own_delay(seen(turns))
    assert (found.value, found.passed) == (100, False)


def test_first_tokens_of_paid_short_prompts_count_at_moderate_loads() -> None:
    quick = [turn(claimed=0, first=100.0)] * 98
    others = [turn(tier=FREE, claimed=0, first=9_000.0), turn(claimed=0, first=9_000.0, prompt=5_000)]
    late = [turn(claimed=0, first=800.0)] * 2
    moderate = setting(load=0.95)
    assert goals.first_token(seen(quick + others, moderate)).passed
    assert goals.first_token(seen(quick + others + late, moderate)).value == 800.0
    assert goals.first_token(seen(quick + [turn(expired=20_000)] * 2, moderate)).value == math.inf
    assert goals.first_token(seen(late, setting(load=1.3))).value is None


def test_tier_shares_are_held_against_weights_and_floor() -> None:
    # Of 1,000: the floor's 100, then 4 and 10 fourteenths of the rest.
    due = served_evenly(1, FREE, per_s=100) + served_evenly(2, PLUS, per_s=257) + served_evenly(3, PRO, per_s=643)
    off = served_evenly(1, FREE, per_s=100) + served_evenly(2, PLUS, per_s=300) + served_evenly(3, PRO, per_s=600)
    assert goals.tier_shares(seen(due)).value == pytest.approx(0, abs=0.05)
    found = goals.tier_shares(seen(off))
    assert found.value == pytest.approx(4.3, abs=0.05)
    assert found.passed is False
