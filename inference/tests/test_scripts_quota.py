"""The token budget and the message window in the scripts of admission, against a real server."""

from typing import Any
from uuid import uuid4

import pytest

from inference.cell import admission
from inference.cell.admission import MESSAGES_WINDOW_MS, Admitted, LiveReservation, Refused
from inference.cell.link import Cell
from inference.tests.desk import NOW, Desk
from inference.tests.support import look

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def desk(cell: Cell) -> Desk:
    return Desk(cell)


@pytest.fixture(autouse=True)
def _a_worker_for_hours(desk: Desk) -> None:
    desk.beat(at=NOW + 10 * HOUR)


def test_an_answer_gets_what_the_budget_has_left_where_that_is_less(desk: Desk) -> None:
    desk.open_account()
    verdict = desk.admit("t1", prompt=40, output=60, budget=75, refill=3600)
    assert isinstance(verdict, Admitted)
    assert verdict.tokens == 75
    assert desk.held == {str(verdict.admission_id): f"t1|1|75|0|{NOW}"}


def test_what_is_held_is_not_given_out_again(desk: Desk) -> None:
    desk.open_account()
    assert desk.admit("t1", budget=150, refill=3600) == Admitted(
        admission_id=desk.admitted("t1"), generation=1, tokens=100
    )
    verdict = desk.admit("t2", budget=150, refill=3600)
    assert isinstance(verdict, Admitted)
    assert verdict.tokens == 50


@pytest.mark.parametrize(("floor", "admitted"), [(35, True), (36, False)])
def test_no_answer_is_shorter_than_the_floor(desk: Desk, floor: int, admitted: bool) -> None:
    desk.open_account()
    before = desk.everything()
    verdict = desk.admit("t1", prompt=40, output=60, floor=floor, budget=75, refill=3600)
    if admitted:
        assert isinstance(verdict, Admitted)
    else:
        # A full budget is too small: no refill helps.
        assert verdict == Refused(limit="token_budget", maximum=75, remaining=75, wait_ms=None)
        assert desk.everything() == before


def test_a_charge_is_owed_until_it_is_refilled(desk: Desk) -> None:
    desk.open_account(refill_per_hour=3600)
    held = desk.admitted("t1", budget=100, refill=3600)
    desk.settle(held, tokens=90, now_ms=NOW + MINUTE)
    assert (desk.account["debt"], desk.account["used"]) == ("90.000000", "90")
    # A token a second: 40 come back in 40 s, and 50 of the 100 suffice for prompt and floor.
    refused = desk.admit("t2", budget=100, refill=3600, now_ms=NOW + MINUTE)
    assert refused == Refused(limit="token_budget", maximum=100, remaining=10, wait_ms=40_000)
    assert isinstance(desk.admit("t2", budget=100, refill=3600, now_ms=NOW + MINUTE + 39_999), Refused)
    verdict = desk.admit("t2", budget=100, refill=3600, now_ms=NOW + MINUTE + 40_000)
    assert isinstance(verdict, Admitted)
    assert verdict.tokens == 50


def test_a_charge_is_added_to_what_is_left_of_the_debt_by_then(desk: Desk) -> None:
    desk.open_account(debt=50, refill_per_hour=3600)
    first, second = desk.admitted("t1", budget=1000, refill=3600), desk.admitted("t2", budget=1000, refill=3600)
    desk.settle(first, tokens=30, now_ms=NOW + 20_000)
    assert (desk.account["debt"], desk.account["debt_at"]) == ("60.000000", str(NOW + 20_000))
    desk.settle(second, tokens=5, now_ms=NOW + HOUR)
    assert (desk.account["debt"], desk.account["debt_at"]) == ("5.000000", str(NOW + HOUR))


def test_a_budget_is_never_fuller_than_full(desk: Desk) -> None:
    desk.open_account(debt=50, refill_per_hour=3600)
    verdict = desk.admit("t1", prompt=40, output=1000, budget=100, refill=3600, now_ms=NOW + 9 * HOUR)
    assert isinstance(verdict, Admitted)
    assert verdict.tokens == 100


def test_a_clock_that_goes_back_refills_nothing_twice(desk: Desk) -> None:
    desk.open_account(debt=60, refill_per_hour=3600)
    held = desk.admitted("t1", budget=200, refill=3600, now_ms=NOW + 10_000)
    assert (desk.account["debt"], desk.account["debt_at"]) == ("50.000000", str(NOW + 10_000))
    desk.settle(held, tokens=10, now_ms=NOW - 10_000)
    assert (desk.account["debt"], desk.account["debt_at"]) == ("60.000000", str(NOW + 10_000))
    assert desk.admit("t2", prompt=110, budget=160, refill=3600, now_ms=NOW) == Refused(
        limit="token_budget", maximum=160, remaining=100, wait_ms=20_000
    )


def test_where_answers_under_way_hold_the_rest_nobody_knows_when_there_is_room(desk: Desk) -> None:
    desk.open_account(debt=5, refill_per_hour=3600)
    desk.admitted("t1", budget=105, refill=3600)
    assert desk.admit("t2", budget=105, refill=3600) == Refused(
        limit="token_budget", maximum=105, remaining=0, wait_ms=None
    )


def test_another_refill_counts_from_the_next_admission_on_and_helps_a_refused_one_at_once(desk: Desk) -> None:
    desk.open_account(debt=100, refill_per_hour=60)
    assert isinstance(desk.admit("t1", budget=100, refill=60, now_ms=NOW + MINUTE), Refused)
    held = desk.admitted("t1", budget=100, refill=3600, now_ms=NOW + MINUTE)
    assert (desk.account["debt"], desk.account["rate"]) == ("40.000000", "3600")
    desk.settle(held, tokens=60, now_ms=NOW + MINUTE + 10_000)
    assert desk.account["debt"] == "90.000000"


def test_what_a_faster_refill_brought_back_is_not_owed_anew_at_a_slower_one(desk: Desk) -> None:
    desk.open_account(debt=100, refill_per_hour=3600)
    held = desk.admitted("t1", budget=200, refill=60, now_ms=NOW + MINUTE)
    assert (desk.account["debt"], desk.account["rate"]) == ("40.000000", "60")
    desk.settle(held, tokens=60, now_ms=NOW + 2 * MINUTE)
    assert desk.account["debt"] == "99.000000"


def test_without_a_budget_nothing_is_owed_and_a_later_one_begins_full(desk: Desk) -> None:
    desk.open_account(debt=100, refill_per_hour=3600)
    held = desk.admitted("t1")
    assert (desk.account["debt"], desk.account["rate"]) == ("0.000000", "")
    desk.settle(held, tokens=1000)
    assert (desk.account["debt"], desk.account["used"]) == ("0.000000", "1000")
    assert isinstance(desk.admit("t2", budget=100, refill=3600), Admitted)


def test_a_turn_gets_its_hold_again_whatever_the_limits_say_now_and_counts_once(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1")
    again = desk.admit("t1", prompt=1, output=1, messages=1, budget=5, refill=1, concurrent_runs=1)
    assert again == Admitted(admission_id=first, generation=1, tokens=100)
    assert list(desk.messages) == [str(first)]


def test_so_many_messages_and_no_more_within_an_hour(desk: Desk) -> None:
    desk.open_account()
    for number, minute in enumerate((0, 10, 20)):
        held = desk.admitted(f"t{number}", messages=3, now_ms=NOW + minute * MINUTE)
        desk.settle(held, tokens=1)
    before = desk.everything()
    refused = desk.admit("t3", messages=3, now_ms=NOW + 59 * MINUTE)
    assert refused == Refused(limit="messages_per_hour", maximum=3, remaining=0, wait_ms=MINUTE)
    assert isinstance(desk.admit("t3", messages=3, now_ms=NOW + HOUR - 1), Refused)
    assert desk.everything() == before
    assert isinstance(desk.admit("t3", messages=3, now_ms=NOW + HOUR), Admitted)
    assert isinstance(desk.admit("t4", messages=3, now_ms=NOW + HOUR), Refused)
    assert sorted(desk.messages.values()) == [NOW + minute * MINUTE for minute in (10, 20, 60)]


def test_where_fewer_messages_are_allowed_than_were_sent_more_than_the_oldest_must_go(desk: Desk) -> None:
    desk.open_account()
    for number in range(4):
        desk.admitted(f"t{number}", concurrent_runs=9, now_ms=NOW + number * MINUTE)
    refused = desk.admit("t4", messages=2, concurrent_runs=9, now_ms=NOW + 3 * MINUTE)
    assert refused == Refused(limit="messages_per_hour", maximum=2, remaining=0, wait_ms=HOUR - MINUTE)


def test_a_message_that_was_not_accepted_is_taken_out_and_a_settled_one_stays(desk: Desk) -> None:
    desk.open_account()
    first, second = desk.admitted("t1", messages=2), desk.admitted("t2", messages=2)
    desk.release(second)
    desk.settle(first, tokens=0)
    assert list(desk.messages) == [str(first)]
    assert isinstance(desk.admit("t3", messages=2), Admitted)


def test_messages_are_noted_without_such_a_limit_too_and_forgotten_in_the_end(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1")
    assert isinstance(desk.admit("t2", messages=1), Refused)
    left_ms = look(desk.cell, lambda client: client.pttl(desk.cell.keys.messages(desk.user)))
    assert MESSAGES_WINDOW_MS < left_ms <= 2 * MESSAGES_WINDOW_MS
    desk.admitted("t2", now_ms=NOW + HOUR)
    assert str(first) not in desk.messages


def test_the_first_limit_that_is_met_is_named(desk: Desk) -> None:
    desk.open_account()
    desk.admitted("t1")
    tight: dict[str, Any] = {"messages": 1, "budget": 1, "refill": 1}
    named = [desk.admit("t2", concurrent_runs=1, **tight), desk.admit("t2", **tight)]
    assert [verdict.limit for verdict in named if isinstance(verdict, Refused)] == [
        "concurrent_runs",
        "messages_per_hour",
    ]


def test_a_load_brings_debt_and_messages_in_place_of_what_there_was(desk: Desk) -> None:
    desk.open_account(generation=1)
    desk.admitted("gone")
    kept, live = uuid4(), LiveReservation(admission_id=uuid4(), turn="live", base_epoch=1, tokens=20)
    desk.open_account(
        generation=2, debt=12.5, debt_at_ms=NOW - 1000, refill_per_hour=3600, live=[live],
        messages={kept: NOW - MINUTE, live.admission_id: NOW},
    )  # fmt: skip
    assert (desk.account["debt"], desk.account["debt_at"], desk.account["rate"]) == (
        "12.500000",
        str(NOW - 1000),
        "3600",
    )
    assert desk.messages == {str(kept): NOW - MINUTE, str(live.admission_id): NOW}
    # 100 less the 20 that are held and the 11.5 that are still owed.
    assert desk.admit("t", budget=100, refill=3600, prompt=60, floor=9) == Refused(
        limit="token_budget", maximum=100, remaining=68, wait_ms=500
    )


def test_what_an_account_counts_can_be_read(desk: Desk) -> None:
    def counted(at: int) -> admission.Counters | None:
        found: admission.Counters | None = look(
            desk.cell, lambda client: admission.counters(client, desk.cell.keys, user_id=desk.user, now_ms=at)
        )
        return found

    assert counted(NOW) is None
    desk.open_account(debt=10, refill_per_hour=3600)
    assert counted(NOW) == admission.Counters(
        debt=10, debt_at_ms=NOW, refill_per_hour=3600, held=0, messages=0, oldest_ms=None
    )
    desk.admitted("t1", budget=1000, refill=3600, now_ms=NOW + 5000)
    desk.admitted("t2", budget=1000, refill=3600, now_ms=NOW + 6000)
    assert counted(NOW + 6000) == admission.Counters(
        debt=4, debt_at_ms=NOW + 6000, refill_per_hour=3600, held=200, messages=2, oldest_ms=NOW + 5000
    )
    assert counted(NOW + 5000 + HOUR) == admission.Counters(
        debt=4, debt_at_ms=NOW + 6000, refill_per_hour=3600, held=200, messages=1, oldest_ms=NOW + 6000
    )
