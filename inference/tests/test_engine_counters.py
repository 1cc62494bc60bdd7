"""What the cores of a data-parallel engine report, taken together."""

import pytest

from inference.worker.engine import EngineStats
from inference.worker.vllm_engine import _Counters

WORKING = EngineStats(running=2, waiting=1, kv_usage=0.25)
RESTING = EngineStats()


@pytest.fixture
def counters() -> _Counters:
    return _Counters()


def report(counters: _Counters, *reports: tuple[int, EngineStats]) -> list[int]:
    """The engine's step count after each report."""
    counts = []
    for core, stats in reports:
        counters.set(core, stats)
        counts.append(counters.total().steps)
    return counts


def test_cores_add_up(counters: _Counters) -> None:
    report(counters, (0, WORKING), (1, EngineStats(running=1, kv_usage=0.5)))
    assert counters.total() == EngineStats(running=3, waiting=1, kv_usage=0.5)


def test_every_step_of_a_single_core_counts(counters: _Counters) -> None:
    assert report(counters, (0, WORKING), (0, WORKING), (0, RESTING)) == [1, 2, 3]


def test_a_step_counts_when_every_core_that_has_work_has_made_one(counters: _Counters) -> None:
    report(counters, (0, WORKING), (1, WORKING), (0, WORKING))
    before = counters.total().steps
    reports = [(0, WORKING), (0, WORKING), (1, WORKING), (1, WORKING), (0, WORKING)]
    assert [count - before for count in report(counters, *reports)] == [0, 0, 1, 1, 2]


def test_a_core_that_hangs_stops_the_count_however_busy_the_others_are(counters: _Counters) -> None:
    report(counters, (0, WORKING), (1, WORKING), (0, WORKING))
    assert len(set(report(counters, *[(0, WORKING)] * 100))) == 1


def test_a_core_at_rest_keeps_nobody_waiting(counters: _Counters) -> None:
    report(counters, (0, WORKING), (1, WORKING), (1, RESTING))
    before = counters.total().steps
    assert report(counters, (0, WORKING), (0, WORKING)) == [before + 1, before + 2]


def test_a_closed_engine_has_nothing_to_report(counters: _Counters) -> None:
    report(counters, (0, WORKING))
    counters.clear()
    assert counters.total() == RESTING
