"""The scripts of event streams (open, append, seal, close), against a real server."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from inference.cell import queue, stream
from inference.cell.link import Cell
from inference.cell.stream import SETTLED_TTL_MS, STREAM_TTL_MS, TERMINAL_SEQ, Cursor, Entry
from inference.tests.support import everything, look, stream_state
from inference.tests.yard import waiting

END = TERMINAL_SEQ


class River:
    """One run's stream, written to as its owners, the reaper and settlement do."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.keys = cell.keys
        self.run = uuid4()

    def enqueue(self, *, epoch: int = 1, base_epoch: int = 1) -> None:
        self.cell.call(
            queue.enqueue(
                self.keys,
                pool="p",
                policy=None,
                waiting=waiting(self.run, epoch=epoch, base_epoch=base_epoch),
                now_ms=0,
            )
        )

    def open(
        self,
        epoch: int = 1,
        *,
        base_epoch: int = 1,
        seq: int = 1,
        ids: list[int] | None = None,
        text: str = "",
        first_ms: int | None = None,
    ) -> Any:
        call = stream.open_epoch(
            self.keys,
            run_id=self.run,
            epoch=epoch,
            base_epoch=base_epoch,
            seq=seq,
            started={"epoch": epoch, "pool": "p"},
            ids_so_far=ids or [],
            text_so_far=text,
            first_ms=first_ms,
        )
        return self.cell.call(call)

    def append(
        self, seq: int, text: str, ids: list[int] | None = None, *, epoch: int = 1, now_ms: int | None = None
    ) -> Any:
        call = stream.append(
            self.keys,
            run_id=self.run,
            epoch=epoch,
            seq=seq,
            kind="delta",
            data={"text": text},
            ids=ids or [],
            now_ms=now_ms,
        )
        return self.cell.call(call)

    def seal(self, epoch: int = 1, *, base_epoch: int = 1) -> Any:
        return self.cell.call(stream.seal(self.keys, run_id=self.run, epoch=epoch, base_epoch=base_epoch))

    def close(self, text: str, epoch: int = 1, *, base_epoch: int = 1, kind: str = "completed") -> Any:
        call = stream.close(
            self.keys,
            run_id=self.run,
            epoch=epoch,
            base_epoch=base_epoch,
            kind=kind,
            data={"message_id": "m"},
            text=text,
        )
        return self.cell.call(call)

    @property
    def entries(self) -> list[Entry]:
        rows: Any = look(self.cell, lambda client: client.xrange(self.keys.stream(self.run)))
        return [Entry(Cursor.parse(entry_id), fields["t"], fields["d"]) for entry_id, fields in rows]

    @property
    def shown(self) -> list[tuple[str, str, Any]]:
        """Id, type and the telling part of each entry."""
        telling = {"delta": "text", "started": "continues"}
        return [
            (str(entry.id), entry.type, json.loads(entry.data).get(telling.get(entry.type, "last")))
            for entry in self.entries
        ]

    @property
    def state(self) -> dict[str, str]:
        return stream_state(self.cell, self.keys.stream_state(self.run))

    @property
    def ttl_ms(self) -> list[int]:
        names = (self.keys.stream(self.run), self.keys.stream_state(self.run))
        found: list[int] = look(self.cell, lambda client: [client.pttl(name) for name in names])
        return found

    def is_left_open(self) -> bool:
        return self.run in look(self.cell, lambda client: stream.left_open(client, self.keys))


@pytest.fixture
def river(cell: Cell) -> River:
    return River(cell)


def test_the_first_epoch_opens_a_waiting_stream(river: River) -> None:
    river.enqueue()
    assert river.open() == ["ok", 1, 0]
    assert river.shown == [("0-1", "queued", None), ("1-1", "started", None)]
    assert json.loads(river.entries[1].data) == {"epoch": 1, "pool": "p"}
    assert river.state == {"epoch": "1", "mode": "open", "last": "1-1"}
    assert all(0 < ttl <= STREAM_TTL_MS for ttl in river.ttl_ms)


def test_the_first_epoch_opens_a_stream_that_is_absent(river: River) -> None:
    assert river.open() == ["ok", 1, 0]
    assert river.shown == [("1-1", "started", None)]


def test_deltas_carry_text_and_ids(river: River) -> None:
    river.open()
    assert river.append(2, "Hé", [7, 8]) == "ok"
    [row] = look(river.cell, lambda client: client.xrange(river.keys.stream(river.run), min="1-2"))
    assert row == ("1-2", {"t": "delta", "d": '{"text":"Hé"}', "i": "7,8"})
    assert river.state["last"] == "1-2"


def test_an_absent_stream_takes_no_delta(river: River) -> None:
    before = everything(river.cell)
    assert river.append(2, "x") == "absent"
    assert everything(river.cell) == before


def test_a_waiting_stream_takes_no_delta(river: River) -> None:
    river.enqueue()
    before = everything(river.cell)
    assert river.append(2, "x") == "absent"
    assert everything(river.cell) == before


@pytest.mark.parametrize("epoch", [1, 3])
def test_only_the_open_epoch_appends(river: River, epoch: int) -> None:
    river.open(2)
    before = everything(river.cell)
    assert river.append(9, "x", epoch=epoch) == "stop"
    assert everything(river.cell) == before


@pytest.mark.parametrize("ending", ["sealed", "closed"])
def test_a_sealed_or_closed_epoch_appends_nothing(river: River, ending: str) -> None:
    river.open()
    river.append(2, "a")
    river.seal() if ending == "sealed" else river.close("a")
    assert river.state["mode"] == ending
    before = everything(river.cell)
    assert river.append(3, "b") == "stop"
    assert everything(river.cell) == before


def test_a_number_that_the_stream_has_passed_is_an_error_and_changes_nothing(river: River) -> None:
    river.open()
    river.append(5, "a")
    before = everything(river.cell)
    with pytest.raises(redis.ResponseError, match="equal or smaller"):
        river.append(5, "b")
    assert everything(river.cell) == before


def test_an_older_epoch_cannot_open(river: River) -> None:
    river.open(3)
    before = everything(river.cell)
    assert river.open(2) == ["refused"]
    assert everything(river.cell) == before


def test_an_epoch_opens_its_own_open_stream_again_only_at_a_higher_number(river: River) -> None:
    river.open()
    river.append(2, "a", [1])
    before = everything(river.cell)
    assert river.open(seq=2, ids=[1], text="a") == ["refused"]
    assert everything(river.cell) == before
    assert river.open(seq=3, ids=[1, 2], text="ab") == ["ok", 4, 0]
    assert river.shown[2:] == [("1-3", "started", False), ("1-4", "delta", "ab")]
    assert river.append(5, "c") == "ok"


@pytest.mark.parametrize("ending", ["sealed", "closed"])
def test_an_epoch_cannot_open_its_sealed_or_closed_stream(river: River, ending: str) -> None:
    river.open()
    river.seal() if ending == "sealed" else river.close("")
    before = everything(river.cell)
    assert river.open(seq=9) == ["refused"]
    assert everything(river.cell) == before


def test_the_next_epoch_continues_where_the_stream_holds_just_its_carry(river: River) -> None:
    river.open()
    river.append(2, "a", [1])
    river.append(3, "b", [2, 3])
    river.seal()
    assert river.open(2, ids=[1, 2, 3], text="ab") == ["ok", 1, 1]
    started = json.loads(river.entries[-1].data)
    assert (started["continues"], started["last"]) == (True, "1-3")


@pytest.mark.parametrize(("ids", "text"), [([1], "a"), ([1, 2, 9], "abx"), ([], "")])
def test_the_next_epoch_begins_anew_where_the_stream_holds_something_else(
    river: River, ids: list[int], text: str
) -> None:
    river.open()
    river.append(2, "ab", [1, 2])
    river.seal()
    opened = river.open(2, ids=ids, text=text)
    assert river.shown[2] == ("2-1", "started", False)
    shown_again = [("2-2", "delta", text)] if text else []
    assert (opened, river.shown[3:]) == (["ok", 1 + len(shown_again), 0], shown_again)


def test_the_next_epoch_of_a_lost_stream_shows_its_carry(river: River) -> None:
    assert river.open(2, ids=[1], text="a") == ["ok", 2, 0]
    assert river.shown == [("2-1", "started", False), ("2-2", "delta", "a")]


def test_a_continued_epoch_is_continued_in_turn(river: River) -> None:
    river.open()
    river.append(2, "a", [1])
    river.seal()
    river.open(2, ids=[1], text="a")
    river.append(2, "b", [2], epoch=2)
    assert river.seal(2) == ["ok", "1,2", "ab", ""]
    assert river.open(3, ids=[1, 2], text="ab") == ["ok", 1, 1]


def test_after_a_fresh_beginning_only_what_follows_counts(river: River) -> None:
    river.open()
    river.append(2, "old", [9])
    river.open(2)
    river.append(2, "new", [1], epoch=2)
    assert river.seal(2) == ["ok", "1", "new", ""]


def test_entries_before_the_present_admission_do_not_count(river: River) -> None:
    river.open()
    river.append(2, "old", [9])
    river.close("old", kind="cancelled")
    assert river.open(2, base_epoch=2) == ["ok", 1, 0]
    river.append(2, "new", [1], epoch=2)
    assert river.seal(2, base_epoch=2) == ["ok", "1", "new", ""]


def test_a_closed_stream_is_never_continued(river: River) -> None:
    river.open()
    river.append(2, "a", [1])
    river.close("a", kind="interrupted")
    assert river.open(2, ids=[1], text="a") == ["ok", 2, 0]
    assert river.shown[-2:] == [("2-1", "started", False), ("2-2", "delta", "a")]


def test_sealing_returns_what_was_published_and_fences_the_epoch(river: River) -> None:
    river.open()
    river.append(2, "Hé", [7, 8])
    river.append(3, '\n"!', [9])
    assert river.seal() == ["ok", "7,8,9", 'Hé\n"!', ""]
    assert river.state["mode"] == "sealed"


def test_sealing_twice_says_the_same(river: River) -> None:
    river.open()
    river.append(2, "a", [1])
    assert river.seal() == river.seal() == ["ok", "1", "a", ""]


def test_sealing_a_lost_stream_fences_the_epoch_all_the_same(river: River) -> None:
    assert river.seal(2) == ["lost"]
    assert river.append(3, "x", epoch=2) == "stop"
    assert river.open(2, seq=4) == ["refused"]
    assert river.open(3) == ["ok", 1, 0]


def test_sealing_a_stream_that_only_waits_says_lost(river: River) -> None:
    river.enqueue()
    assert river.seal() == ["lost"]
    assert river.state["mode"] == "sealed"


def test_a_late_seal_does_not_fence_a_newer_epoch(river: River) -> None:
    river.open(2)
    assert river.seal(1)[0] == "ok"
    assert river.state["mode"] == "open"
    assert river.append(2, "x", epoch=2) == "ok"


def test_a_seal_does_not_reopen_what_is_closed(river: River) -> None:
    river.open()
    river.close("")
    river.seal()
    assert river.state["mode"] == "closed"


def test_closing_appends_the_terminal_event_with_the_last_content(river: River) -> None:
    river.open()
    river.append(2, "Hé", [1])
    assert river.close("Hé") == 1
    assert river.shown[-1] == (f"1-{END}", "completed", "1-2")
    assert json.loads(river.entries[-1].data) == {"message_id": "m", "last": "1-2"}
    assert river.state == {"epoch": "1", "mode": "closed", "last": f"1-{END}"}
    assert all(0 < ttl <= SETTLED_TTL_MS for ttl in river.ttl_ms)


def test_closing_says_so_when_the_stream_lacks_text(river: River) -> None:
    river.open()
    river.append(2, "a", [1])
    assert river.close("ab") == 1
    assert river.shown[-1] == (f"1-{END}", "completed", None)


def test_closing_a_run_that_showed_nothing_names_the_beginning(river: River) -> None:
    river.enqueue()
    river.close("", kind="cancelled")
    assert river.shown[-1] == (f"1-{END}", "cancelled", "0-0")


def test_closing_twice_closes_once(river: River) -> None:
    river.open()
    river.close("", kind="cancelled")
    before = everything(river.cell)
    assert river.close("", kind="completed") == 0
    assert everything(river.cell) == before


def test_a_late_close_does_not_end_a_newer_epoch(river: River) -> None:
    river.open(2)
    before = everything(river.cell)
    assert river.close("", 1) == 0
    assert everything(river.cell) == before


def test_closing_a_lost_stream_leaves_the_terminal_event(river: River) -> None:
    river.close("text that is lost", 2)
    assert river.shown == [(f"2-{END}", "completed", None)]


def test_closing_an_older_stream_ends_the_epoch_that_never_opened(river: River) -> None:
    river.open(1)
    river.append(2, "a", [1])
    river.seal(1)
    assert river.close("a", 2, kind="cancelled") == 1
    assert river.shown[-1] == (f"2-{END}", "cancelled", "1-2")


@pytest.mark.parametrize(
    "text",
    ["\u0001\u001f", "\u2028 \u2029", "🙂 日本", '"\\/', "\N{REPLACEMENT CHARACTER}", "{}[],:", "%s %d"],
)
def test_any_text_comes_back_as_it_was_published(river: River, text: str) -> None:
    river.open()
    river.append(2, text, [1])
    assert river.seal() == ["ok", "1", text, ""]
    assert "\n" not in river.entries[-1].data
    river.open(2, ids=[], text=text)
    river.close(text, 2)
    assert river.shown[-1][2] == "2-2"


def test_every_entry_is_told_to_followers_in_the_words_of_the_stream(river: River) -> None:
    client: Any = river.cell.client
    listener = client.pubsub()
    try:
        listener.subscribe(river.keys.events_channel(river.run))
        river.enqueue()
        river.open()
        river.append(2, "a\nb", [1])
        river.open(seq=3, ids=[1], text="a\nb")
        river.close("a\nb")
        heard: list[Entry] = []
        while len(heard) < len(river.entries):
            message = listener.get_message(timeout=5)
            assert message is not None
            if message["type"] == "message":
                heard.append(stream.read_notification(message["data"]))
    finally:
        listener.close()
    assert heard == river.entries
    assert [entry.type for entry in heard] == ["queued", "started", "delta", "started", "delta", "completed"]


@pytest.mark.parametrize(
    "text", ["", "1", "1-", "-1", "a-1", "1-a", "1-1-1", " 1-1", "1-+1", "٣-1", f"{2**32}-1", f"1-{2**32}"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        Cursor.parse(text)


def test_cursors_are_ordered_as_streams_are() -> None:
    texts = ["0-1", "1-2", "1-10", f"1-{END}", "2-1", "10-1"]
    assert [str(cursor) for cursor in sorted(map(Cursor.parse, reversed(texts)))] == texts


def test_runs_do_not_share_streams(river: River, cell: Cell) -> None:
    other = River(cell)
    river.open()
    river.append(2, "mine", [1])
    other.open()
    assert isinstance(other.run, UUID)
    assert [entry.type for entry in other.entries] == ["started"]


def test_a_stream_counts_as_left_open_until_its_terminal_event(river: River) -> None:
    river.enqueue()
    assert river.is_left_open()
    river.open()
    river.close("")
    assert not river.is_left_open()
    # A retry.
    river.enqueue(epoch=2, base_epoch=2)
    assert river.is_left_open()


@pytest.mark.parametrize("begin", [River.open, River.seal])
def test_a_stream_that_redis_lost_and_somebody_makes_anew_counts_as_left_open(
    river: River, begin: Callable[[River], Any]
) -> None:
    begin(river)
    assert river.is_left_open()


def test_a_seal_tells_when_the_first_text_was_shown_whichever_epoch_showed_it(river: River) -> None:
    river.open()
    river.append(2, "a", [1], now_ms=1000)
    river.append(3, "b", [2], now_ms=2000)
    river.seal()
    river.open(2, ids=[1, 2], text="ab")
    river.append(2, "c", [3], epoch=2, now_ms=3000)
    sealed = stream.read_seal(river.seal(2))
    assert sealed == stream.Sealed(ids=[1, 2, 3], text="abc", first_ms=1000)


def test_an_owner_that_opens_anew_tells_when_its_first_text_was_shown(river: River) -> None:
    river.open(seq=5, ids=[1], text="a", first_ms=1000)
    river.append(7, "b", [2], now_ms=3000)
    sealed = stream.read_seal(river.seal())
    assert sealed is not None
    assert sealed.first_ms == 1000


def test_a_retry_forgets_when_the_first_text_was_shown(river: River) -> None:
    river.open()
    river.append(2, "a", [1], now_ms=1000)
    river.close("a")
    river.enqueue(epoch=2, base_epoch=2)
    river.open(2, base_epoch=2)
    river.append(2, "b", [2], epoch=2, now_ms=5000)
    sealed = stream.read_seal(river.seal(2, base_epoch=2))
    assert sealed is not None
    assert sealed.first_ms == 5000
