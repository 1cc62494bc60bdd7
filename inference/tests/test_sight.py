"""A lapsed lease counts only where its Redis was there for a lease's time, with the clocks in step."""

from collections.abc import Callable

import pytest

from inference import store
from inference.cell.errors import StoreUnavailable
from inference.cell.sight import BEAT_S, GAP_S, LEASE_S, WATCH_BOUND_S, Sight, watch
from tests.services import Valkey


def look(sight: Sight, *, since: float, until: float, incarnation: str = "i", ahead: float = 0.0) -> bool:
    """Answers at every beat; `ahead` is the wall clock's lead. The last verdict."""
    is_clear, now = False, since
    while now <= until:
        is_clear, now = sight.is_clear(incarnation=incarnation, now=now, wall=1e9 + now + ahead), now + BEAT_S
    return is_clear


def test_redis_is_in_sight_after_a_leases_time_of_answers() -> None:
    sight = Sight()
    assert not look(sight, since=100, until=100 + LEASE_S)
    assert look(sight, since=100 + LEASE_S + BEAT_S, until=100 + LEASE_S + BEAT_S)


@pytest.mark.parametrize(("gap", "is_clear"), [(GAP_S, True), (GAP_S + 0.01, False)])
def test_a_gap_between_two_answers_begins_it_anew(gap: float, is_clear: bool) -> None:
    sight = Sight()
    assert look(sight, since=100, until=110)
    assert look(sight, since=110 + gap, until=110 + gap) == is_clear
    assert look(sight, since=110 + gap + BEAT_S, until=110 + gap + LEASE_S + BEAT_S)


def test_another_incarnation_begins_it_anew() -> None:
    sight = Sight()
    assert look(sight, since=100, until=110)
    assert not look(sight, since=110.25, until=110.25, incarnation="j")


def test_losing_redis_begins_it_anew() -> None:
    sight = Sight()
    assert look(sight, since=100, until=110)
    sight.lose()
    assert not look(sight, since=110.25, until=110.25)


@pytest.mark.parametrize("ahead", [3600.0, 0.5, -0.5, -3600.0])
def test_a_jump_of_the_wall_clock_begins_it_anew_and_ends_nothing(ahead: float) -> None:
    sight = Sight()
    assert look(sight, since=100, until=110)
    assert not look(sight, since=110.25, until=110.25 + LEASE_S, ahead=ahead)
    assert look(sight, since=112.25, until=112.25, ahead=ahead)


class Time:
    """A clock that pauses move; `stalls` more seconds at the pauses with these numbers."""

    def __init__(self, *, stalls: Callable[[int], float] = lambda number: 0.0) -> None:
        self.now = 100.0
        self.pauses = 0
        self._stalls = stalls

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds + self._stalls(self.pauses)


def test_a_watch_lasts_a_leases_time(valkey: Valkey) -> None:
    time = Time()
    assert watch(store.connector().cell(), clock=time.clock, pause=time.pause)
    assert LEASE_S < time.now - 100 <= LEASE_S + BEAT_S


def test_a_stall_during_a_watch_makes_it_longer(valkey: Valkey) -> None:
    time = Time(stalls=lambda number: 1.0 if number == 1 else 0.0)
    assert watch(store.connector().cell(), clock=time.clock, pause=time.pause)
    assert time.now - 100 > BEAT_S + 1.0 + LEASE_S


def test_a_watch_of_a_redis_that_stalls_again_and_again_is_given_up(valkey: Valkey) -> None:
    time = Time(stalls=lambda number: GAP_S)
    assert not watch(store.connector().cell(), clock=time.clock, pause=time.pause)
    assert time.now - 100 <= WATCH_BOUND_S + BEAT_S + GAP_S


def test_a_watch_ends_where_redis_does_not_answer(valkey: Valkey) -> None:
    def die(number: int) -> float:
        if number == 2:
            valkey.kill()
        return 0.0

    time = Time(stalls=die)
    with pytest.raises(StoreUnavailable):
        watch(store.connector().cell(), clock=time.clock, pause=time.pause)
    assert time.pauses == 2
