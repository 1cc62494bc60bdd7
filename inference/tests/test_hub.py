"""Following runs over a real server: replay, live, without a gap or a repeat, whatever breaks."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from inference.cell import hub as hub_module
from inference.cell import queue, stream
from inference.cell.hub import BUFFER_ENTRIES, Quiet, RunState, StreamHub
from inference.cell.link import AsyncConnector, Connector
from inference.cell.stream import START, TERMINAL_SEQ, Cursor, Entry
from inference.tests.support import ask, connections, hung, restart
from inference.tests.yard import waiting
from tests.services import Valkey
from tests.waiting import until

END = TERMINAL_SEQ
MESSAGE = UUID(int=7)


class Writer:
    """Writes one run's stream as its owners do, and is what the database says of the run."""

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.run = uuid4()
        self.epoch = 1
        self.base = 1
        self.seq = 0
        self.text = ""
        self.ids: list[int] = []
        self.status = "streaming"
        self.gone = False

    def reconnect(self) -> None:
        """Notice that the server is another one."""
        self.connector.close()

    def call(self, call: Any) -> Any:
        return self.connector.cell().call(call)

    @property
    def keys(self) -> Any:
        return self.connector.cell().keys

    @property
    def state(self) -> RunState:
        over = self.status not in ("queued", "streaming")
        return RunState(status=self.status, epoch=self.epoch, is_terminal=over, message_id=MESSAGE if over else None)

    async def ask(self) -> RunState | None:
        return None if self.gone else self.state

    def enqueue(self) -> None:
        self.call(
            queue.enqueue(
                self.keys,
                pool="p",
                policy=None,
                waiting=waiting(self.run, epoch=self.epoch, base_epoch=self.base),
                now_ms=0,
            )
        )

    def open(self) -> None:
        reply = self.call(
            stream.open_epoch(
                self.keys,
                run_id=self.run,
                epoch=self.epoch,
                base_epoch=self.base,
                seq=self.seq + 1,
                started={"epoch": self.epoch},
                ids_so_far=self.ids,
                text_so_far=self.text,
            )
        )
        assert reply[0] == "ok"
        self.seq = reply[1]

    def write(self, text: str) -> None:
        self.seq += 1
        self.text += text
        self.ids.append(len(self.ids))
        reply = self.call(
            stream.append(
                self.keys,
                run_id=self.run,
                epoch=self.epoch,
                seq=self.seq,
                kind="delta",
                data={"text": text},
                ids=self.ids[-1:],
            )
        )
        assert reply == "ok"

    def write_many(self, count: int) -> None:
        for _ in range(count):
            self.write(f"{len(self.ids)} ")

    def lose_worker(self, *, carry: int | None = None) -> None:
        """The reaper seals the epoch; the next one goes on from the first `carry` tokens, all of them by default."""
        self.call(stream.seal(self.keys, run_id=self.run, epoch=self.epoch, base_epoch=self.base))
        if carry is not None:
            self.ids = self.ids[:carry]
            self.text = "".join(f"{i} " for i in self.ids)
        self.epoch += 1
        self.seq = 0

    def retry(self) -> None:
        self.epoch += 1
        self.base = self.epoch
        self.seq, self.text, self.ids, self.status = 0, "", [], "queued"
        self.enqueue()

    def commit(self, status: str = "done") -> None:
        self.status = status

    def close(self, kind: str = "completed") -> None:
        self.call(
            stream.close(
                self.keys,
                run_id=self.run,
                epoch=self.epoch,
                base_epoch=self.base,
                kind=kind,
                data={"message_id": str(MESSAGE)},
                text=self.text,
            )
        )

    def finish(self) -> None:
        self.commit()
        self.close()

    def recorded(self) -> list[Entry]:
        """What the stream holds."""
        cell = self.connector.cell()
        rows: Any = cell.run(lambda client: client.xrange(cell.keys.stream(self.run)))
        return [Entry(Cursor.parse(entry_id), fields["t"], fields["d"]) for entry_id, fields in rows]

    def tamper(self, command: Any) -> None:
        """Do something to the stream that no script does."""
        cell = self.connector.cell()
        cell.run(lambda client: command(client, cell.keys.stream(self.run)))


class Reader:
    """One follower, in a task, and the page that it would show."""

    def __init__(self, hub: StreamHub, writer: Writer, *, after: Cursor = START, quiet_s: float = 60.0) -> None:
        self.entries: list[Entry] = []
        self.quiet = 0
        self._hold = asyncio.Event()
        self._hold.set()
        self._following = hub.follow(
            run_id=writer.run, after=after, known=writer.state, state=writer.ask, quiet_s=quiet_s
        )
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async with contextlib.aclosing(self._following) as items:
            async for item in items:
                if isinstance(item, Quiet):
                    self.quiet += 1
                else:
                    self.entries.append(item)
                await self._hold.wait()

    def hold(self) -> None:
        """Take nothing more: a client that does not read."""
        self._hold.clear()

    def go_on(self) -> None:
        self._hold.set()

    async def end(self) -> list[Entry]:
        async with asyncio.timeout(20):
            await self.task
        return self.entries

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def shown(self) -> str:
        """The text that a page shows after these entries."""
        text = ""
        for entry in self.entries:
            data = json.loads(entry.data)
            if entry.type == "started" and not data.get("continues"):
                text = ""
            elif entry.type == "delta":
                text += data["text"]
        return text

    async def until_shown(self, text: str) -> None:
        await until(lambda: self.shown == text, what=f"{text!r} is shown, and not {self.shown!r}")


@pytest.fixture
def connector(valkey: Valkey) -> Iterator[Connector]:
    opened = Connector(url=lambda: valkey.url)
    yield opened
    opened.close()


@pytest.fixture
def writer(connector: Connector) -> Writer:
    return Writer(connector)


@pytest_asyncio.fixture
async def hub(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StreamHub]:
    monkeypatch.setattr(hub_module, "RECONNECT_S", 0.02)
    opened = StreamHub(connector=AsyncConnector(url=lambda: valkey.url, timeout_s=0.5))
    yield opened
    await opened.close()


def kinds(entries: list[Entry]) -> list[str]:
    return [entry.type for entry in entries]


async def subscribed(hub: StreamHub, *, channels: int = 1) -> None:
    await until(lambda: hub.subscriber.channel_count == channels, what=f"{channels} channels are followed")


async def test_a_finished_run_is_replayed_as_it_was_recorded(hub: StreamHub, writer: Writer) -> None:
    writer.enqueue()
    writer.open()
    writer.write_many(5)
    writer.finish()
    assert await Reader(hub, writer).end() == writer.recorded()


async def test_a_replay_of_several_batches_is_whole(
    hub: StreamHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "REPLAY_BATCH", 10)
    writer.open()
    writer.write_many(49)
    writer.finish()
    assert await Reader(hub, writer).end() == writer.recorded()
    assert len(writer.recorded()) == 51


async def test_a_follower_of_a_running_answer_gets_what_was_and_what_comes(hub: StreamHub, writer: Writer) -> None:
    writer.enqueue()
    writer.open()
    writer.write_many(3)
    reader = Reader(hub, writer)
    await reader.until_shown(writer.text)
    writer.write_many(3)
    await reader.until_shown(writer.text)
    writer.finish()
    assert await reader.end() == writer.recorded()


async def test_a_follower_who_comes_before_anything_is_there_gets_it_all(hub: StreamHub, writer: Writer) -> None:
    reader = Reader(hub, writer)
    await subscribed(hub)
    writer.enqueue()
    writer.open()
    writer.write_many(3)
    writer.finish()
    assert await reader.end() == writer.recorded()


async def test_what_is_both_replayed_and_told_is_given_once(
    hub: StreamHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries written between the subscription and the replay come twice."""
    writer.open()
    read_after = hub._read_after

    async def write_first(*args: Any) -> list[Entry]:
        monkeypatch.setattr(hub, "_read_after", read_after)
        writer.write_many(20)
        return await read_after(*args)

    monkeypatch.setattr(hub, "_read_after", write_first)
    reader = Reader(hub, writer)
    await until(lambda: len(reader.entries) == 21, what="all is shown")
    writer.finish()
    assert await reader.end() == writer.recorded()


async def test_reconnecting_at_every_cut_yields_exactly_the_rest(hub: StreamHub, writer: Writer) -> None:
    writer.enqueue()
    writer.open()
    writer.write_many(100)
    writer.lose_worker()
    writer.open()
    writer.write_many(60)
    writer.lose_worker(carry=150)
    writer.open()
    writer.write_many(60)
    writer.finish()
    recorded = writer.recorded()
    assert len(recorded) >= 200
    assert [json.loads(e.data).get("continues") for e in recorded if e.type == "started"] == [None, True, False]
    whole = await Reader(hub, writer).end()
    assert whole == recorded
    for cut, entry in enumerate(recorded[:-1]):
        rest = await Reader(hub, writer, after=entry.id).end()
        assert rest == recorded[cut + 1 :], f"after {entry.id}"


async def test_followers_who_drop_and_resume_at_random_while_it_is_written_miss_nothing(
    hub: StreamHub, writer: Writer
) -> None:
    chance = random.Random(4)
    writer.enqueue()
    writer.open()
    reader = Reader(hub, writer)
    seen: list[Entry] = []
    for _ in range(40):
        writer.write_many(chance.randint(0, 9))
        if chance.random() < 0.2:
            writer.lose_worker()
            writer.open()
        for _ in range(chance.randint(0, 30)):
            await asyncio.sleep(0)
        await reader.leave()
        seen += reader.entries
        reader = Reader(hub, writer, after=seen[-1].id if seen else START)
    writer.finish()
    seen += await reader.end()
    assert seen == writer.recorded()


async def test_a_notification_that_got_lost_is_read_from_the_stream(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(2)
    reader = Reader(hub, writer)
    await reader.until_shown(writer.text)
    # An entry that followers are not told of.
    writer.seq += 1
    writer.text += "unheard "
    writer.tamper(
        lambda client, key: client.xadd(key, {"t": "delta", "d": '{"text":"unheard "}', "i": "9"}, id=f"1-{writer.seq}")
    )
    writer.write("heard ")
    await reader.until_shown(writer.text)
    writer.finish()
    assert await reader.end() == writer.recorded()


async def test_the_last_notifications_before_the_end_may_get_lost_too(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    reader = Reader(hub, writer)
    await until(lambda: kinds(reader.entries) == ["started"], what="it follows")
    writer.seq += 1
    writer.text += "unheard"
    writer.tamper(lambda client, key: client.xadd(key, {"t": "delta", "d": '{"text":"unheard"}', "i": "9"}, id="1-2"))
    writer.finish()
    assert kinds(await reader.end()) == ["started", "delta", "completed"]
    assert reader.shown == writer.text


async def test_an_entry_that_is_lost_for_good_makes_the_reader_refetch(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(5)
    writer.tamper(lambda client, key: client.xdel(key, "1-3"))
    writer.finish()
    entries = await Reader(hub, writer).end()
    assert kinds(entries) == ["started", "delta", "delta", "delta", "delta", "reset_required"]
    assert entries[-1].id == Cursor(1, END)
    assert json.loads(entries[-1].data) == {"status": "done", "message_id": str(MESSAGE)}


async def test_a_stream_that_lacks_text_ends_in_a_refetch(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(2)
    reader = Reader(hub, writer)
    await reader.until_shown(writer.text)
    writer.text += "settled without Redis"
    writer.finish()
    assert kinds(await reader.end())[-1] == "reset_required"


async def test_a_slow_reader_costs_a_bounded_buffer_and_misses_nothing(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    reader = Reader(hub, writer)
    await until(lambda: kinds(reader.entries) == ["started"], what="it follows")
    [session] = [hub.subscriber._session]
    assert session is not None
    [[buffer]] = session.listeners.values()
    reader.hold()
    writer.write_many(1)
    most = 0
    for _ in range(3 * BUFFER_ENTRIES // 50):
        writer.write_many(50)
        await asyncio.sleep(0)
        most = max(most, len(buffer.entries))  # type: ignore[attr-defined]
    await until(lambda: buffer.overflowed, what="the buffer overflowed")  # type: ignore[attr-defined]
    assert most <= BUFFER_ENTRIES
    reader.go_on()
    await reader.until_shown(writer.text)
    writer.finish()
    assert await reader.end() == writer.recorded()


async def test_a_continued_epoch_goes_on_and_a_fresh_one_begins_anew(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(4)
    reader = Reader(hub, writer)
    await reader.until_shown("0 1 2 3 ")
    writer.lose_worker()
    writer.open()
    writer.write_many(1)
    await reader.until_shown("0 1 2 3 4 ")
    writer.lose_worker(carry=2)
    writer.open()
    await reader.until_shown("0 1 ")
    writer.finish()
    assert await reader.end() == writer.recorded()


async def test_a_terminal_event_of_an_older_epoch_does_not_end_the_following(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(1)
    writer.commit("interrupted")
    writer.close("interrupted")
    # Accepted in the database, not yet queued: the old stream is still there.
    writer.epoch, writer.base, writer.status = 2, 2, "queued"
    reader = Reader(hub, writer)
    await until(lambda: kinds(reader.entries) == ["started", "delta", "interrupted"], what="the old end is passed")
    writer.epoch = 1
    writer.retry()
    writer.status = "streaming"
    writer.open()
    writer.write("anew")
    writer.finish()
    assert kinds(await reader.end())[3:] == ["started", "delta", "completed"]
    assert reader.shown == "anew"


async def test_a_cursor_at_the_end_of_a_superseded_epoch_goes_on_with_the_retry(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.commit("failed")
    writer.close("failed")
    writer.retry()
    writer.status = "streaming"
    writer.open()
    writer.write("anew")
    reader = Reader(hub, writer, after=Cursor(1, END))
    await reader.until_shown("anew")
    writer.finish()
    assert kinds(await reader.end()) == ["started", "delta", "completed"]


async def test_a_run_cancelled_while_it_waited_just_ends(hub: StreamHub, writer: Writer) -> None:
    writer.status = "queued"
    writer.enqueue()
    reader = Reader(hub, writer)
    await until(lambda: kinds(reader.entries) == ["queued"], what="it waits")
    writer.commit("cancelled")
    writer.close("cancelled")
    assert kinds(await reader.end()) == ["queued", "cancelled"]


async def test_an_expired_stream_makes_the_reader_refetch_once(
    hub: StreamHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "CLOSE_GRACE_S", 0.05)
    writer.commit()
    assert kinds(await Reader(hub, writer, after=Cursor(1, 5)).end()) == ["reset_required"]


async def test_a_terminal_event_that_is_on_its_way_is_waited_for(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write("text")
    writer.commit()
    reader = Reader(hub, writer)
    await reader.until_shown("text")
    writer.close()
    assert kinds(await reader.end()) == ["started", "delta", "completed"]


async def test_quiet_followers_ask_the_database_and_find_a_lost_end(
    hub: StreamHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "CLOSE_GRACE_S", 0.05)
    writer.open()
    reader = Reader(hub, writer, quiet_s=0.05)
    await until(lambda: reader.quiet >= 3, what="the connection is kept alive")
    writer.commit("failed")
    assert kinds(await reader.end()) == ["started", "reset_required"]


async def test_quiet_followers_find_an_end_whose_notification_was_lost(
    hub: StreamHub, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "CLOSE_GRACE_S", 0.05)
    writer.open()
    reader = Reader(hub, writer, quiet_s=0.05)
    await until(lambda: reader.quiet >= 1, what="it follows")
    data = json.dumps({"last": "1-1"})
    writer.tamper(lambda client, key: client.xadd(key, {"t": "completed", "d": data}, id=f"1-{END}"))
    writer.commit()
    assert kinds(await reader.end()) == ["started", "completed"]


async def test_a_run_that_is_gone_ends_in_silence(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    reader = Reader(hub, writer, quiet_s=0.05)
    await until(lambda: reader.quiet >= 1, what="it follows")
    writer.gone = True
    assert kinds(await reader.end()) == ["started"]


async def test_a_restart_of_redis_is_survived_and_the_reopened_stream_shown_whole(
    valkey: Valkey, hub: StreamHub, writer: Writer
) -> None:
    writer.open()
    writer.write_many(5)
    readers = [Reader(hub, writer) for _ in range(5)]
    for reader in readers:
        await reader.until_shown(writer.text)
    restart(valkey)
    writer.reconnect()
    # The owner verified itself in the database and opens again, at its own next number.
    writer.open()
    writer.write_many(5)
    for reader in readers:
        await reader.until_shown(writer.text)
    writer.finish()
    for reader in readers:
        entries = await reader.end()
        assert reader.shown == writer.text
        assert kinds(entries)[-1] == "completed"
        assert len({entry.id for entry in entries}) == len(entries)


async def test_a_restart_of_redis_after_the_end_makes_the_reader_refetch(
    valkey: Valkey, hub: StreamHub, writer: Writer
) -> None:
    writer.open()
    writer.write_many(5)
    reader = Reader(hub, writer)
    await reader.until_shown(writer.text)
    writer.commit()
    restart(valkey)
    assert kinds(await reader.end())[-1] == "reset_required"


async def test_without_redis_the_connection_is_kept_alive_until_it_is_back(
    valkey: Valkey, hub: StreamHub, writer: Writer
) -> None:
    writer.open()
    valkey.kill()
    reader = Reader(hub, writer)
    await until(lambda: reader.quiet >= 3, what="the reader is told that it lives")
    valkey.start()
    writer.reconnect()
    writer.seq = 0
    writer.open()
    writer.write("here")
    await reader.until_shown("here")
    await reader.leave()


async def test_a_redis_that_hung_for_a_while_costs_nothing(valkey: Valkey, hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(3)
    reader = Reader(hub, writer)
    await reader.until_shown(writer.text)
    with hung(valkey):
        late = Reader(hub, writer)
        await until(lambda: late.quiet >= 1, what="the late reader is told that it lives")
    writer.write_many(3)
    for one in (reader, late):
        await one.until_shown(writer.text)
    writer.finish()
    for one in (reader, late):
        assert await one.end() == writer.recorded()


async def test_many_followers_share_one_subscriber_connection(
    valkey: Valkey, hub: StreamHub, connector: Connector
) -> None:
    writers = [Writer(connector) for _ in range(20)]
    for writer in writers:
        writer.open()
    readers = [Reader(hub, writer) for writer in writers for _ in range(10)]
    await subscribed(hub, channels=20)
    await until(lambda: all(reader.entries for reader in readers), what="all follow")
    clients = ask(valkey, lambda client: client.client_list())
    assert len([client for client in clients if client["sub"] != "0"]) == 1
    for writer in writers:
        writer.finish()
    for reader in readers:
        await reader.end()
    assert hub.subscriber.channel_count == 0


async def test_followers_who_leave_leave_nothing_behind(valkey: Valkey, hub: StreamHub, writer: Writer) -> None:
    writer.open()
    first = Reader(hub, writer)
    await until(lambda: bool(first.entries), what="it follows")
    before = len(asyncio.all_tasks())
    readers = [Reader(hub, writer) for _ in range(100)]
    await until(lambda: all(reader.entries for reader in readers), what="all follow")
    for reader in readers:
        await reader.leave()
    assert len(asyncio.all_tasks()) == before
    writer.write("still")
    await first.until_shown("still")
    await first.leave()
    assert hub.subscriber.channel_count == 0
    await until(lambda: ask(valkey, lambda client: client.pubsub_channels()) == [], what="nothing is subscribed")


async def test_followers_who_leave_at_any_moment_leave_nothing_behind(hub: StreamHub, writer: Writer) -> None:
    writer.open()
    writer.write_many(3)
    steady = Reader(hub, writer)
    await steady.until_shown(writer.text)
    before = len(asyncio.all_tasks())
    for moments in range(60):
        reader = Reader(hub, writer)
        for _ in range(moments):
            await asyncio.sleep(0)
        await reader.leave()
    assert hub.subscriber.channel_count == 1
    assert len(asyncio.all_tasks()) == before
    writer.write("still")
    await steady.until_shown(writer.text)
    await steady.leave()


async def test_closing_the_hub_leaves_no_task_and_no_connection(valkey: Valkey, writer: Writer) -> None:
    writer.open()
    before, connected = asyncio.all_tasks(), connections(valkey)
    hub = StreamHub(connector=AsyncConnector(url=lambda: valkey.url))
    reader = Reader(hub, writer)
    await until(lambda: bool(reader.entries), what="it follows")
    await reader.leave()
    await hub.close()
    assert asyncio.all_tasks() == before
    await until(lambda: connections(valkey) <= connected, what="the connections are closed")
