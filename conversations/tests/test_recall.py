"""Which older turns are quoted for a message: near ones, the nearest first, within the budget."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversations import recall
from conversations.context import Recalled

Floats = npt.NDArray[np.float32]
ASKED = np.array([1, 0, 0, 0], dtype=np.float32)


def at(cosine: float) -> Floats:
    """A vector of length 1 that is so near to what is asked."""
    return np.array([cosine, (1 - cosine**2) ** 0.5, 0, 0], dtype=np.float32)


def stored(*cosines: float) -> bytes:
    return recall.packed([at(cosine) for cosine in cosines])


def quote(seq: int, *, tokens: int = 10, score: float = 0.5) -> Recalled:
    return Recalled(seqs=(seq, seq + 1), text=f"turn {seq}", tokens=tokens, score=score)


def test_a_turn_is_as_near_as_the_nearest_of_its_messages() -> None:
    near = recall.nearest(ASKED, [(1, stored(0.1, 0.9)), (3, stored(0.5)), (5, stored(0.2, 0.25))])
    assert [one.seq for one in near] == [1, 3]
    assert [one.score for one in near] == pytest.approx([0.9, 0.5], abs=1e-3)


def test_of_equally_near_turns_the_newer_comes_first() -> None:
    assert [one.seq for one in recall.nearest(ASKED, [(1, stored(0.5)), (7, stored(0.5)), (3, stored(0.5))])] == [
        7,
        3,
        1,
    ]


def test_only_the_nearest_are_looked_at() -> None:
    turns = [(2 * number + 1, stored(0.31 + number / 100)) for number in range(30)]
    assert [one.seq for one in recall.nearest(ASKED, turns)] == [59, 57, 55, 53, 51, 49, 47, 45]


def test_nothing_is_near_to_a_message_that_means_nothing() -> None:
    assert recall.nearest(np.zeros(4, dtype=np.float32), [(1, stored(0.9))]) == []


def test_vectors_of_another_size_are_passed_over() -> None:
    turns = [(1, b"\0" * 6), (3, b""), (5, stored(0.8))]
    assert [one.seq for one in recall.nearest(ASKED, turns)] == [5]
    assert recall.nearest(ASKED, turns[:2]) == []
    assert recall.nearest(ASKED, []) == []


cosines = st.floats(-1, 1, width=16)
turns_near = st.lists(st.lists(cosines, min_size=1, max_size=2), max_size=40)


@given(turns_near)
def test_whatever_is_stored_the_near_ones_are_found_nearest_first(scores: list[list[float]]) -> None:
    turns = [(2 * number + 1, stored(*of_turn)) for number, of_turn in enumerate(scores)]
    near = recall.nearest(ASKED, turns)
    best = {seq: max(of_turn) for (seq, _), of_turn in zip(turns, scores, strict=True)}
    assert len(near) <= recall.MOST_LOOKED_AT
    assert len({one.seq for one in near}) == len(near)
    for one in near:
        assert one.score >= recall.NEAR
        assert one.score == pytest.approx(best[one.seq], abs=2e-3)
    assert [one.score for one in near] == sorted((one.score for one in near), reverse=True)
    left_out = [score for seq, score in best.items() if seq not in {one.seq for one in near}]
    if len(near) < recall.MOST_LOOKED_AT:
        assert all(score < recall.NEAR + 2e-3 for score in left_out)
    else:
        assert all(score <= near[-1].score + 2e-3 for score in left_out)


quotes = st.lists(
    st.builds(quote, st.integers(1, 500), tokens=st.integers(1, 300), score=st.floats(0.3, 1)),
    max_size=12,
    unique_by=lambda one: one.seqs[0],
)


@given(quotes, st.integers(0, 600))
def test_the_chosen_fit_the_budget_and_nothing_nearer_that_fits_is_left_out(given: list[Recalled], budget: int) -> None:
    chosen = recall.choose(given, budget=budget)
    assert sum(one.tokens for one in chosen) <= budget
    assert len(chosen) <= recall.MOST_TURNS
    assert [one.seqs for one in chosen] == sorted(one.seqs for one in chosen)
    assert all(one in given for one in chosen)
    assert chosen == recall.choose(given[::-1], budget=budget)
    if len(chosen) < recall.MOST_TURNS:
        for one in given:
            nearer = [other for other in chosen if other.score >= one.score]
            assert one in chosen or sum(other.tokens for other in nearer) + one.tokens > budget


def test_a_turn_that_is_too_long_gives_way_to_a_shorter_one() -> None:
    long, short = quote(1, tokens=200, score=0.9), quote(3, tokens=50, score=0.4)
    assert recall.choose([long, short], budget=100) == [short]
    assert recall.choose([long, short], budget=250) == [long, short]
    assert recall.choose([long, short], budget=0) == []
