"""The short form of `make chaos`: a fixed plan on each database."""

import pytest

from tests.chaos import plan, report, run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_is_lost_doubled_or_left_behind_whatever_is_killed(database: str) -> None:
    made = plan.make(seed=1, turns=20, kills=5, database=database, engine="scripted")
    result = run.perform(made, say=print)
    print("\n".join(report.lines(result.figures)))
    assert [str(violation) for violation in result.violations] == []
    # It did what it is for.
    assert len(result.record.hits) == 5
    assert all(played.finished for played in result.record.played)
