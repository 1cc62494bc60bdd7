"""Carrying publications into a real Redis: at once, then together, and through all ways in which it goes away."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from inference.cell import stream
from inference.cell.errors import StoreUnavailable
from inference.cell.link import AsyncCell, AsyncConnector
from inference.tests.support import ask, hung, restart
from inference.worker.engine import EngineDelta
from inference.worker.flusher import Flusher
from inference.worker.publication import Phase, Publication
from tests.services import Valkey
from tests.waiting import until

AN_HOUR = 3600.0


class Owners:
    """The database, as the flusher asks it: does this epoch still own its run?"""

    def __init__(self) -> None:
        self.asked: list[tuple[UUID, int, str]] = []
        self.mine = True
        self.away = 0

    async def verify(self, run_id: UUID, epoch: int, incarnation: str) -> bool:
        if self.away:
            self.away -= 1
            raise RuntimeError("the database is away")
        self.asked.append((run_id, epoch, incarnation))
        return self.mine


class Bench:
    """A flusher on a real server, and the streams that it writes."""

    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self.owners = Owners()
        self.connector = AsyncConnector(url=lambda: valkey.url, timeout_s=1.5)
        self.flusher = self.with_interval(AN_HOUR)
        self._flushers = [self.flusher]

    def with_interval(self, interval_s: float) -> Flusher:
        return Flusher(connector=self.connector, verify=self.owners.verify, interval_s=interval_s, retry_s=0.02)

    async def publication(self, *, epoch: int = 1, **more: Any) -> Publication:
        cell = await self.connector.cell()
        return Publication(
            run_id=uuid4(),
            epoch=epoch,
            base_epoch=1,
            incarnation=cell.keys.incarnation,
            started={"epoch": epoch},
            **more,
        )

    async def opened(self, **more: Any) -> Publication:
        one = await self.publication(**more)
        await self.flusher.open(one)
        assert one.phase is Phase.OPEN
        return one

    def say(self, one: Publication, text: str, *ids: int) -> None:
        one.add(EngineDelta(text=text, token_ids=ids or (ord(text[-1]),)))
        self.flusher.notice(one)

    def entries(self, one: Publication) -> list[tuple[str, str, dict[str, Any]]]:
        """Id, type and data of the run's entries, in the newest incarnation."""
        [key] = ask(self.valkey, lambda client: client.keys(f"*:stream:{one.run_id}")) or [None]
        if key is None:
            return []
        rows = ask(self.valkey, lambda client: client.xrange(key))
        return [(entry_id, fields["t"], json.loads(fields["d"])) for entry_id, fields in rows]

    def deltas(self, one: Publication) -> list[str]:
        return [data["text"] for _, kind, data in self.entries(one) if kind == "delta"]

    def shown(self, one: Publication) -> str:
        """The text that a page shows."""
        text = ""
        for _, kind, data in self.entries(one):
            if kind == "started" and not data.get("continues"):
                text = ""
            elif kind == "delta":
                text += data["text"]
        return text

    async def until_shown(self, one: Publication, text: str) -> None:
        await until(lambda: self.shown(one) == text and not one.in_flight, what=f"{text!r} is shown")

    async def run_script(self, make: Callable[[AsyncCell], Any]) -> Any:
        cell = await self.connector.cell()
        return await cell.call(make(cell))

    async def close(self) -> None:
        await self.flusher.stop()
        await self.connector.close()


@pytest_asyncio.fixture
async def bench(valkey: Valkey) -> AsyncIterator[Bench]:
    opened = Bench(valkey)
    yield opened
    await opened.close()


async def test_the_first_text_goes_out_at_once(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    assert one.first_published_at is not None


async def test_notices_come_before_the_text_and_are_said_once(bench: Bench) -> None:
    notice = {"code": "context_trimmed", "text": "The oldest messages were left out."}
    one = await bench.opened(notices=[notice])
    bench.say(one, "Hello")
    await until(lambda: not one.has_pending and not one.in_flight, what="the text is published")
    kinds = [kind for _, kind, _ in bench.entries(one)]
    assert kinds == ["started", "notice", "delta"]
    assert bench.entries(one)[1][2] == notice
    restart(bench.valkey)
    bench.say(one, ", world")
    await bench.flusher.drain(one)
    assert [kind for _, kind, _ in bench.entries(one)] == ["started", "delta"]


async def test_the_first_text_does_not_wait_for_the_interval_of_others(bench: Bench) -> None:
    early = await bench.opened()
    bench.say(early, "a")
    await bench.until_shown(early, "a")
    bench.say(early, "b")
    late = await bench.opened()
    bench.say(late, "x")
    await bench.until_shown(late, "x")


async def test_later_text_waits_for_the_interval_and_goes_out_together(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    for text in "bcd":
        bench.say(one, text)
    other = await bench.opened()
    assert bench.deltas(one) == ["a"]
    # Another run's first text ends the interval, and takes along what waits.
    bench.say(other, "x")
    await bench.until_shown(one, "abcd")
    assert bench.deltas(one) == ["a", "bcd"]


async def test_text_goes_out_when_the_interval_is_over(bench: Bench) -> None:
    bench.flusher = bench.with_interval(0.01)
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    bench.say(one, "b")
    await bench.until_shown(one, "ab")


async def test_a_flush_is_one_round_trip_for_all_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [await bench.opened() for _ in range(20)]
    trips: list[int] = []
    call_many = AsyncCell.call_many

    async def counted(cell: AsyncCell, calls: Any) -> Any:
        trips.append(len(calls))
        return await call_many(cell, calls)

    monkeypatch.setattr(AsyncCell, "call_many", counted)
    for one in runs:
        bench.say(one, "a")
    for one in runs:
        await bench.until_shown(one, "a")
    assert trips == [20]


async def test_the_token_loop_never_waits_even_for_a_hung_server(bench: Bench) -> None:
    one = await bench.opened()
    with hung(bench.valkey):
        # Neither `add` nor `notice` can wait: they are no coroutines. What they leave behind stays whole.
        for i in range(1000):
            bench.say(one, f"{i} ")
        await until(lambda: one.phase is Phase.ADRIFT, what="the outage was noticed")
        for i in range(1000, 2000):
            bench.say(one, f"{i} ")
    await bench.flusher.drain(one)
    assert bench.shown(one) == "".join(f"{i} " for i in range(2000))


async def test_an_outage_of_the_same_server_shows_everything_once(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "before ")
    await bench.until_shown(one, "before ")
    with hung(bench.valkey):
        bench.say(one, "during ")
        assert not await _drained(bench, one, seconds=1.0)
        await until(lambda: one.phase is Phase.ADRIFT, what="the outage was noticed")
    bench.say(one, "after")
    await bench.flusher.drain(one)
    await bench.until_shown(one, "before during after")
    incarnation = (await bench.connector.cell()).keys.incarnation
    assert set(bench.owners.asked) == {(one.run_id, 1, incarnation)}


async def _drained(bench: Bench, one: Publication, *, seconds: float) -> bool:
    """Whether everything is in the stream within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await bench.flusher.drain(one)
    except TimeoutError:
        return False
    return True


async def test_a_restart_of_the_server_shows_everything_once_in_the_new_one(bench: Bench) -> None:
    one = await bench.opened(carry_ids=[1, 2], carry_text="carried ")
    bench.say(one, "before ")
    await bench.until_shown(one, "carried before ")
    restart(bench.valkey)
    bench.say(one, "after")
    await bench.flusher.drain(one)
    assert bench.shown(one) == "carried before after"
    [started, whole] = bench.entries(one)
    assert (started[1], whole[1]) == ("started", "delta")
    assert one.incarnation == (await bench.connector.cell()).keys.incarnation
    assert bench.owners.asked == [(one.run_id, 1, one.incarnation)]


async def test_a_server_that_stays_away_is_waited_for(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    bench.valkey.kill()
    bench.say(one, "b")
    assert not await _drained(bench, one, seconds=0.3)
    bench.say(one, "c")
    bench.valkey.start()
    await bench.flusher.drain(one)
    assert bench.shown(one) == "abc"


async def test_a_stream_that_cannot_be_opened_yet_is_opened_as_soon_as_it_can(bench: Bench) -> None:
    one = await bench.publication()
    with hung(bench.valkey):
        await bench.flusher.open(one)
        assert one.phase is Phase.ADRIFT
        bench.say(one, "a")
    await bench.flusher.drain(one)
    assert bench.shown(one) == "a"


async def test_an_epoch_that_lost_its_run_publishes_nothing_in_a_new_incarnation(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    bench.owners.mine = False
    restart(bench.valkey)
    bench.say(one, "b")
    await bench.flusher.drain(one)
    assert one.phase is Phase.FENCED
    assert bench.entries(one) == []


async def test_nothing_is_published_before_ownership_is_verified_again(bench: Bench) -> None:
    one = await bench.opened()
    restart(bench.valkey)
    bench.owners.away = 3
    bench.say(one, "a")
    await until(lambda: bench.owners.away == 0, what="the database was asked three times")
    assert bench.entries(one) == []
    await bench.flusher.drain(one)
    assert bench.shown(one) == "a"


async def test_a_server_that_restarts_between_the_check_and_the_opening_is_checked_again(bench: Bench) -> None:
    one = await bench.opened()
    verify = bench.owners.verify

    async def verify_then_restart(run_id: UUID, epoch: int, incarnation: str) -> bool:
        mine = await verify(run_id, epoch, incarnation)
        if len(bench.owners.asked) == 1:
            restart(bench.valkey)
        return mine

    bench.flusher._verify = verify_then_restart
    restart(bench.valkey)
    bench.say(one, "a")
    await bench.flusher.drain(one)
    incarnations = [incarnation for _, _, incarnation in bench.owners.asked]
    assert len(set(incarnations)) == 2
    assert one.incarnation == incarnations[-1]
    assert bench.shown(one) == "a"


async def test_a_sealed_epoch_is_fenced(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    await bench.run_script(lambda cell: stream.seal(cell.keys, run_id=one.run_id, epoch=1, base_epoch=1))
    bench.say(one, "b")
    await bench.flusher.drain(one)
    assert one.phase is Phase.FENCED
    assert bench.deltas(one) == ["a"]


async def test_an_epoch_that_comes_too_late_to_open_is_fenced(bench: Bench) -> None:
    one = await bench.publication()
    await bench.run_script(lambda cell: stream.seal(cell.keys, run_id=one.run_id, epoch=1, base_epoch=1))
    await bench.flusher.open(one)
    assert one.phase is Phase.FENCED
    assert bench.entries(one) == []


async def test_a_stream_that_vanished_is_opened_again_with_everything(bench: Bench) -> None:
    one = await bench.opened()
    bench.say(one, "a")
    await bench.until_shown(one, "a")
    ask(bench.valkey, lambda client: client.flushall())
    bench.say(one, "b")
    await bench.flusher.drain(one)
    assert bench.shown(one) == "ab"
    assert len(bench.owners.asked) == 1


async def test_a_fault_in_one_stream_spoils_no_other(bench: Bench) -> None:
    odd, even = await bench.opened(), await bench.opened()
    # Somebody wrote a number that the publication is still to use.
    keys = (await bench.connector.cell()).keys
    ask(bench.valkey, lambda client: client.xadd(keys.stream(odd.run_id), {"t": "notice", "d": "{}"}, id="1-2"))
    bench.say(odd, "a")
    bench.say(even, "x")
    await bench.flusher.drain(even)
    await bench.flusher.drain(odd)
    assert (bench.shown(odd), bench.shown(even)) == ("a", "x")
    assert [run_id for run_id, _, _ in bench.owners.asked] == [odd.run_id]


async def test_a_continuing_epoch_shows_only_what_is_new(bench: Bench) -> None:
    first = await bench.opened()
    bench.say(first, "ab", 1, 2)
    await bench.until_shown(first, "ab")
    await bench.run_script(lambda cell: stream.seal(cell.keys, run_id=first.run_id, epoch=1, base_epoch=1))
    second = await bench.publication(epoch=2, carry_ids=[1, 2], carry_text="ab")
    second.run_id = first.run_id
    await bench.flusher.open(second)
    bench.say(second, "c", 3)
    await bench.flusher.drain(second)
    assert bench.shown(second) == "abc"
    assert bench.deltas(second) == ["ab", "c"]
    assert second.first_published_at is not None


async def test_draining_waits_until_the_server_has_the_last_text(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await bench.opened()
    gate = asyncio.Event()
    under_way = asyncio.Event()
    call_many = AsyncCell.call_many

    async def slow(cell: AsyncCell, calls: Any) -> Any:
        under_way.set()
        await gate.wait()
        return await call_many(cell, calls)

    monkeypatch.setattr(AsyncCell, "call_many", slow)
    bench.say(one, "a")
    await under_way.wait()
    assert not one.has_pending
    draining = asyncio.create_task(bench.flusher.drain(one))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not draining.done()
    gate.set()
    await draining
    assert bench.shown(one) == "a"
    assert one.first_published_at is not None


async def test_an_unforeseen_error_does_not_end_the_flushing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await bench.opened()
    call_many = AsyncCell.call_many

    async def broken(cell: AsyncCell, calls: Any) -> Any:
        monkeypatch.setattr(AsyncCell, "call_many", call_many)
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(AsyncCell, "call_many", broken)
    bench.say(one, "a")
    await bench.flusher.drain(one)
    assert bench.shown(one) == "a"
    bench.say(one, "b")
    await bench.flusher.drain(one)
    assert bench.shown(one) == "ab"


async def test_a_closed_publication_is_flushed_no_more_and_leaves_no_task(bench: Bench) -> None:
    one = await bench.opened()
    before = asyncio.all_tasks()
    bench.valkey.kill()
    bench.say(one, "a")
    await until(lambda: one.phase is Phase.ADRIFT, what="the outage was noticed")
    bench.flusher.close(one)
    await until(lambda: asyncio.all_tasks() <= before, what="nobody tries to open it again")
    bench.valkey.start()


async def test_stopping_leaves_no_task(valkey: Valkey) -> None:
    before = asyncio.all_tasks()
    bench = Bench(valkey)
    one = await bench.opened()
    valkey.kill()
    bench.say(one, "a")
    await until(lambda: one.phase is Phase.ADRIFT, what="the outage was noticed")
    with pytest.raises(StoreUnavailable):
        await bench.connector.cell()
    await bench.close()
    assert asyncio.all_tasks() == before
