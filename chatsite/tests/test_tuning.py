"""When a process gives memory back, and that it can."""

import gc
import weakref

from chatsite import tuning


class Node:
    """Part of a cycle, which only the collector frees."""

    def __init__(self) -> None:
        self.me = self


def test_what_is_left_in_cycles_is_gone_at_once() -> None:
    gc.disable()
    try:
        left = weakref.ref(Node())
        assert left() is not None
        tuning.give_back_memory()
        assert left() is None
    finally:
        gc.enable()


def test_a_crowd_has_left_when_fewer_than_half_are_there_and_only_once() -> None:
    crowd = tuning.Crowd()
    assert [crowd.has_left(present) for present in (10, 150, 400, 210, 200, 190, 120, 100)] == [
        False, False, False, False, True, False, False, True,
    ]  # fmt: skip


def test_a_few_are_no_crowd() -> None:
    crowd = tuning.Crowd()
    assert not any(crowd.has_left(present) for present in (tuning.CROWD - 1, 0, tuning.CROWD - 1, 0))


def test_a_thousand_visits_one_after_another_are_a_crowd_too() -> None:
    crowd = tuning.Crowd()
    left = []
    for number in range(2 * tuning.VISITS):
        crowd.comes()
        if crowd.has_left(0):
            left.append(number + 1)
    assert left == [tuning.VISITS, 2 * tuning.VISITS]


def test_those_who_stay_have_not_left() -> None:
    crowd = tuning.Crowd()
    for _ in range(3 * tuning.VISITS):
        crowd.comes()
    assert not crowd.has_left(2 * tuning.VISITS + 1)
    assert crowd.has_left(2 * tuning.VISITS)
