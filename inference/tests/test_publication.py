"""What an epoch may publish: whole characters with their tokens, each counted once."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from inference.worker.engine import EngineDelta
from inference.worker.publication import Batch, Phase, Publication

THEN = datetime(2026, 3, 1, tzinfo=UTC)


def publication(**more: Any) -> Publication:
    return Publication(run_id=uuid4(), epoch=1, base_epoch=1, incarnation="i", started={}, **more)


def delta(text: str, *ids: int) -> EngineDelta:
    return EngineDelta(text=text, token_ids=ids)


async def test_text_and_ids_leave_together_and_are_numbered() -> None:
    one = publication()
    one.add(delta("a", 1))
    one.add(delta("b", 2, 3))
    assert one.take() == Batch(seq=1, text="ab", ids=(1, 2, 3))
    one.add(delta("c", 4))
    assert one.take() == Batch(seq=2, text="c", ids=(4,))
    assert not one.has_pending
    assert one.text == "abc"


async def test_tokens_of_an_incomplete_character_wait_for_its_text() -> None:
    one = publication()
    one.add(delta("a", 1))
    one.add(delta("", 2))
    one.add(delta("", 3))
    assert one.take() == Batch(seq=1, text="a", ids=(1,))
    assert not one.has_pending
    one.add(delta("é", 4))
    assert one.take() == Batch(seq=2, text="é", ids=(2, 3, 4))


async def test_a_token_without_text_is_used_though_never_published() -> None:
    one = publication()
    one.add(delta("a", 1))
    one.add(delta("", 2))
    one.take()
    assert (one.own_tokens, one.total_tokens, one.settled_ids) == (2, 2, (1,))


async def test_what_was_carried_over_counts_for_the_answer_and_not_for_the_epoch() -> None:
    one = publication(carry_ids=[8, 9], carry_text="so far ")
    one.add(delta("on", 1))
    one.take()
    one.add(delta("!", 2))
    assert one.text == "so far on!"
    assert one.settled_ids == (8, 9, 1, 2)
    assert (one.own_tokens, one.total_tokens) == (2, 4)


async def test_folding_counts_pending_text_as_shown() -> None:
    one = publication()
    one.add(delta("a", 1))
    one.fold_pending()
    assert not one.has_pending
    assert (one.text, one.settled_ids, one.seq) == ("a", (1,), 0)


async def test_it_is_flushed_when_the_reply_is_there_and_not_when_the_batch_is_sent() -> None:
    one = publication()
    steps: list[Callable[[], object]] = [
        lambda: one.opened(seq=1),
        lambda: one.add(delta("a", 1)),
        one.take,
        lambda: one.note_published(THEN),
    ]
    flushed = [one.is_flushed]
    for step in steps:
        step()
        flushed.append(one.is_flushed)
    assert flushed == [False, True, False, False, True]


async def test_the_first_publication_stays_the_first() -> None:
    one = publication()
    one.note_published(THEN)
    one.note_published(THEN.replace(year=2027))
    assert one.first_published_at == THEN


async def test_an_opened_stream_numbers_on_from_its_last_entry() -> None:
    one = publication()
    one.opened(seq=7)
    one.add(delta("a", 1))
    assert one.take().seq == 8


async def test_a_fenced_epoch_stays_fenced_and_says_so_once() -> None:
    fenced: list[str] = []
    one = publication(on_fenced=lambda: fenced.append("now"))
    one.fence()
    one.adrift()
    assert one.phase is Phase.FENCED
    assert fenced == ["now"]


async def test_every_change_wakes_who_waits_for_one() -> None:
    one = publication()
    changes: list[Callable[[], None]] = [
        lambda: one.opened(seq=1),
        one.adrift,
        lambda: one.note_published(THEN),
        one.fence,
    ]
    for change in changes:
        one.changed.clear()
        change()
        assert one.changed.is_set()


async def test_what_no_database_stores_is_replaced_before_anybody_sees_it() -> None:
    one = publication()
    one.add(delta("a\0b", 1))
    assert one.take().text == one.text == "a\N{REPLACEMENT CHARACTER}b"
