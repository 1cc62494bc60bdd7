"""Telling those who wait: how much of the queue one pass looks at, and that nobody is left out."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from inference import telling
from inference.cell import queue
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.cell.workers import NO_BOUND
from inference.models import ModelPool
from inference.tasks import tell
from inference.telling import CHUNK, FIRST, OTHERS, Teller
from inference.tests.yard import waiting
from tests.services import Valkey

pytestmark = pytest.mark.django_db


@pytest.fixture
def crowd(cell: Cell, pool: ModelPool) -> Callable[[int], None]:
    """Has so many users wait, in the order of their ids."""

    def wait(users: int) -> None:
        for number in range(users):
            one = waiting(uuid4(), since_ms=number)
            cell.call(queue.enqueue(cell.keys, pool=pool.slug, policy=None, waiting=one, now_ms=number))

    return wait


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ranks from which on the queue was looked at."""
    found: list[int] = []
    real = queue.tell

    def noted(*args: Any, first: int, **more: Any) -> Any:
        found.append(first)
        return real(*args, first=first, **more)

    monkeypatch.setattr(queue, "tell", noted)
    return found


def test_a_pass_looks_at_the_first_in_line_and_at_some_of_the_others_in_turn(
    crowd: Callable[[int], None], looks: list[int]
) -> None:
    crowd(2000)
    teller = Teller()
    for _ in range(3):
        teller.tell()
        assert len(looks) == (FIRST + OTHERS) // CHUNK
        assert looks[: FIRST // CHUNK] == list(range(0, FIRST, CHUNK))
        del looks[: FIRST // CHUNK]
        looks.clear()


def test_after_a_few_passes_everybody_has_been_looked_at(crowd: Callable[[int], None], looks: list[int]) -> None:
    crowd(1230)
    teller = Teller()
    for _ in range(2):
        teller.tell()
    assert set(looks) == set(range(0, 1230, CHUNK))


def test_where_few_wait_all_of_them_are_told(
    crowd: Callable[[int], None], looks: list[int], cell: Cell, pool: ModelPool
) -> None:
    crowd(3)
    cell.call(queue.claim(cell.keys, pool=pool.slug, boot_id="w", room_tokens=NO_BOUND, now_ms=3))
    assert Teller().tell() == 2
    assert looks == [0]


def test_where_nobody_waits_nothing_is_looked_at(pool: ModelPool, cell: Cell, looks: list[int]) -> None:
    assert (Teller().tell(), looks) == (0, [])


def test_without_redis_nobody_is_told_and_the_task_ends(pool: ModelPool, valkey: Valkey) -> None:
    valkey.kill()
    with pytest.raises(StoreUnavailable):
        telling.tell()
    tell()
