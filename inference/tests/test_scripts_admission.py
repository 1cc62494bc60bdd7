"""The scripts of admission (admit, load, settle, release), against a real server."""

from uuid import uuid4

import pytest

from inference.cell import admission
from inference.cell.admission import AccountAbsent, AccountStale, Admitted, LiveReservation, NoWorker, Refused
from inference.cell.link import Cell
from inference.cell.workers import WORKER_TTL_MS
from inference.tests.desk import NOW, Desk


@pytest.fixture
def desk(cell: Cell) -> Desk:
    return Desk(cell)


def test_an_admission_holds_unconfirmed_tokens_and_names_its_generation(desk: Desk) -> None:
    desk.open_account(generation=7)
    wanted = uuid4()
    verdict = desk.admit("t1", admission_id=wanted)
    assert verdict == Admitted(admission_id=wanted, generation=7, tokens=100)
    assert desk.held == {str(wanted): f"t1|1|100|0|{NOW}"}
    assert desk.is_holder


def test_an_unknown_account_must_be_rebuilt_first(desk: Desk) -> None:
    before = desk.everything()
    assert desk.admit("t1") == AccountAbsent()
    assert desk.everything() == before


def test_an_account_older_than_the_generation_asked_for_is_stale(desk: Desk) -> None:
    desk.open_account(generation=2)
    before = desk.everything()
    assert desk.admit("t1", min_generation=3) == AccountStale()
    assert desk.everything() == before
    assert isinstance(desk.admit("t1", min_generation=2), Admitted)


def test_admitting_one_turn_twice_holds_once(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1")
    assert desk.admitted("t1") == first
    assert len(desk.held) == 1


def test_a_turn_gets_its_hold_again_even_at_the_limit_and_without_a_worker(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1", concurrent_runs=1)
    assert desk.admitted("t1", concurrent_runs=1, now_ms=NOW + 10 * WORKER_TTL_MS) == first


def test_a_retry_is_another_admission_of_the_same_turn(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1", base_epoch=1)
    assert desk.admitted("t1", base_epoch=2) != first
    assert len(desk.held) == 2


def test_a_turn_whose_name_begins_like_another_is_another(desk: Desk) -> None:
    desk.open_account()
    assert desk.admitted("t1") != desk.admitted("t")
    assert len(desk.held) == 2


def test_at_the_concurrency_limit_nothing_more_is_held(desk: Desk) -> None:
    desk.open_account()
    desk.admitted("t1")
    desk.admitted("t2")
    before = desk.everything()
    assert desk.admit("t3") == Refused(limit="concurrent_runs", maximum=2, remaining=0, wait_ms=None)
    assert desk.everything() == before


def test_a_settled_hold_makes_room(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1", concurrent_runs=1)
    assert isinstance(desk.admit("t2", concurrent_runs=1), Refused)
    desk.settle(first, tokens=10)
    assert isinstance(desk.admit("t2", concurrent_runs=1), Admitted)


@pytest.mark.parametrize(("late_ms", "alive"), [(WORKER_TTL_MS, True), (WORKER_TTL_MS + 1, False)])
def test_without_a_live_worker_nothing_is_held(desk: Desk, late_ms: int, alive: bool) -> None:
    desk.open_account()
    verdict = desk.admit("t1", now_ms=NOW + late_ms)
    assert isinstance(verdict, Admitted if alive else NoWorker)
    assert bool(desk.held) == alive


def test_settling_counts_the_tokens_once(desk: Desk) -> None:
    desk.open_account(used=1000)
    held = desk.admitted("t1")
    assert desk.settle(held, tokens=30) == 1
    assert desk.settle(held, tokens=30) == 0
    assert desk.account["used"] == "1030"
    assert desk.held == {}


def test_settling_an_unknown_hold_changes_nothing(desk: Desk) -> None:
    desk.open_account(used=5)
    desk.admitted("t1")
    before = desk.everything()
    assert desk.settle(uuid4(), tokens=30) == 0
    assert desk.everything() == before


def test_settling_without_an_account_does_not_invent_one(desk: Desk) -> None:
    assert desk.settle(uuid4(), tokens=30) == 0
    assert desk.account == {}


def test_releasing_gives_back_and_counts_nothing(desk: Desk) -> None:
    desk.open_account(used=5)
    assert desk.release(desk.admitted("t1")) == 1
    assert (desk.account["used"], desk.held) == ("5", {})
    assert not desk.is_holder


def test_a_hold_that_a_duplicate_got_too_is_not_released_from_under_it(desk: Desk) -> None:
    desk.open_account()
    shared = desk.admitted("t1")
    assert desk.admitted("t1") == shared
    assert desk.release(shared) == 0
    assert list(desk.held) == [str(shared)]
    assert desk.is_holder


def test_a_hold_that_was_released_is_not_given_out_again(desk: Desk) -> None:
    desk.open_account()
    first = desk.admitted("t1")
    desk.release(first)
    assert desk.admitted("t1") != first


def test_a_confirmed_hold_is_not_released(desk: Desk) -> None:
    live = LiveReservation(admission_id=uuid4(), turn="t1", base_epoch=1, tokens=7)
    desk.open_account(live=[live])
    assert desk.release(live.admission_id) == 0
    assert desk.admitted("t1") == live.admission_id
    assert admission.states(desk.cell.client, desk.cell.keys, user_ids=[desk.user])[0].reservations[0].is_confirmed


def test_a_user_is_a_holder_until_the_last_hold_is_settled(desk: Desk) -> None:
    desk.open_account()
    first, second = desk.admitted("t1"), desk.admitted("t2")
    desk.settle(first, tokens=0)
    assert desk.is_holder
    desk.settle(second, tokens=0)
    assert not desk.is_holder


def test_a_load_replaces_what_an_older_generation_held(desk: Desk) -> None:
    desk.open_account(generation=1, used=1)
    desk.admitted("gone")
    live = LiveReservation(admission_id=uuid4(), turn="kept", base_epoch=3, tokens=70)
    assert desk.open_account(generation=2, used=50, live=[live]) == 1
    assert (desk.account["gen"], desk.account["used"]) == ("2", "50")
    assert desk.held == {str(live.admission_id): f"kept|3|70|1|{NOW}"}
    assert desk.is_holder
    assert desk.admitted("kept", base_epoch=3) == live.admission_id


@pytest.mark.parametrize("generation", [1, 2])
def test_a_late_load_of_no_newer_generation_changes_nothing(desk: Desk, generation: int) -> None:
    desk.open_account(generation=2, used=50)
    desk.admitted("t1")
    before = desk.everything()
    assert desk.open_account(generation=generation, used=0) == 0
    assert desk.everything() == before


def test_a_load_without_holds_leaves_no_holder(desk: Desk) -> None:
    desk.open_account(generation=1)
    desk.admitted("t1")
    desk.open_account(generation=2)
    assert (desk.held, desk.is_holder) == ({}, False)


def test_a_reply_that_admission_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="perhaps"):
        admission.read_verdict(["perhaps"])
