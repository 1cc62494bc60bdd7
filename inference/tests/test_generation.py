"""One epoch, from its opening to its outcome: finished, stopped, refused, broken, or somebody else's."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from inference.cell import stream
from inference.cell.link import AsyncConnector
from inference.cell.stream import Cursor, Entry
from inference.testing import tiny_tokenizer
from inference.tests.engines import Puppet
from inference.tests.support import ask
from inference.tokenization import ChatTurn
from inference.worker import generation as generation_module
from inference.worker.engine import Engine, EngineDead, EngineDelta, EngineRefused, EngineStats, Sampling
from inference.worker.flusher import Flusher
from inference.worker.generation import Assignment, Generation, Outcome, Result
from inference.worker.scripted_answers import Script
from inference.worker.scripted_engine import ScriptedEngine
from tests.services import Valkey
from tests.waiting import until

TOKENIZER = tiny_tokenizer()


class Room:
    """A flusher on a real server, and generations in it."""

    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self.connector = AsyncConnector(url=lambda: valkey.url, timeout_s=1.5)
        self.flusher = Flusher(connector=self.connector, verify=self._verify, interval_s=0.001, retry_s=0.02)
        self.mine = True

    async def _verify(self, run_id: UUID, epoch: int, incarnation: str) -> bool:
        return self.mine

    async def assignment(self, question: str = "Hello", **more: Any) -> Assignment:
        cell = await self.connector.cell()
        given: dict[str, Any] = {
            "epoch": 1,
            "base_epoch": 1,
            "prompt_ids": TOKENIZER.encode_chat([ChatTurn("user", question)]),
            "carry_ids": (),
            "carry_text": "",
            "max_output_tokens": 1000,
            "sampling": Sampling(),
            "cache_salt": "ada",
            "time_left_s": 3600.0,
            **more,
        }
        return Assignment(run_id=uuid4(), incarnation=cell.keys.incarnation, started={"epoch": 1}, **given)

    async def generation(self, engine: Engine, assignment: Assignment | None = None, **more: Any) -> Generation:
        return Generation(assignment=assignment or await self.assignment(), engine=engine, flusher=self.flusher, **more)

    def entries(self, one: Generation) -> list[Entry]:
        [key] = ask(self.valkey, lambda client: client.keys(f"*:stream:{one.assignment.run_id}"))
        rows = ask(self.valkey, lambda client: client.xrange(key))
        return [Entry(Cursor.parse(entry_id), fields["t"], fields["d"]) for entry_id, fields in rows]

    async def published(self, one: Generation) -> str:
        """The text in the run's stream, as its successor would be given it."""
        cell = await self.connector.cell()
        seal = stream.seal(cell.keys, run_id=one.assignment.run_id, epoch=one.assignment.epoch, base_epoch=1)
        reply = await cell.call(seal)
        return str(reply[2])

    async def close(self) -> None:
        await self.flusher.stop()
        await self.connector.close()


@pytest_asyncio.fixture
async def room(valkey: Valkey) -> AsyncIterator[Room]:
    opened = Room(valkey)
    yield opened
    await opened.close()


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


def scripted(**script: Any) -> ScriptedEngine:
    return ScriptedEngine(tokenizer=TOKENIZER, script=Script(**{"tps": 10_000, "prefill_ms": 0, **script}))


async def ended(task: "asyncio.Future[Outcome]") -> Outcome:
    async with asyncio.timeout(20):
        return await task


async def test_a_finished_answer_is_done_and_its_stream_holds_every_word(room: Room) -> None:
    one = await room.generation(scripted(tokens=200))
    outcome = await one.run()
    assert (outcome.result, outcome.finish_reason, outcome.error_code) == (Result.DONE, "stop", "")
    assert (outcome.own_tokens, outcome.total_tokens) == (200, 200)
    assert outcome.first_published_at is not None
    assert outcome.released_at is None
    assert await room.published(one) == outcome.text
    assert "é" in outcome.text


async def test_an_answer_at_its_limit_is_done_by_length(room: Room) -> None:
    one = await room.generation(scripted(tokens=200), await room.assignment(max_output_tokens=7))
    outcome = await one.run()
    assert (outcome.result, outcome.finish_reason, outcome.own_tokens) == (Result.DONE, "length", 7)


async def test_the_engine_is_asked_in_the_name_of_run_and_epoch(room: Room, puppet: Puppet) -> None:
    assignment = await room.assignment(epoch=3, carry_ids=(7, 8), carry_text="so far ", max_output_tokens=10)
    one = await room.generation(puppet, assignment)
    puppet.say("on", 9, finish="stop")
    outcome = await one.run()
    [request] = puppet.requests
    assert request.request_id == f"{assignment.run_id}:3"
    assert request.prompt_ids == [*assignment.prompt_ids, 7, 8]
    assert (request.max_output_tokens, request.cache_salt) == (8, "ada")
    assert (outcome.text, outcome.own_tokens, outcome.total_tokens) == ("so far on", 1, 3)


async def test_a_carry_that_fills_the_output_is_done_without_the_engine(room: Room, puppet: Puppet) -> None:
    assignment = await room.assignment(epoch=2, carry_ids=(7, 8), carry_text="all of it", max_output_tokens=2)
    outcome = await (await room.generation(puppet, assignment)).run()
    assert (outcome.result, outcome.finish_reason, outcome.text) == (Result.DONE, "length", "all of it")
    assert (outcome.own_tokens, outcome.total_tokens, puppet.requests) == (0, 2, [])


async def test_a_cancel_before_the_start_never_reaches_the_engine(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    one.cancel()
    outcome = await one.run()
    assert (outcome.result, outcome.error_code, outcome.text) == (Result.CANCELLED, "cancelled", "")
    assert puppet.requests == []
    assert outcome.released_at is not None
    assert [entry.type for entry in room.entries(one)] == ["started"]


async def test_a_cancel_during_the_prefill_frees_the_engine(room: Room) -> None:
    engine = scripted(prefill_ms=3_600_000)
    one = await room.generation(engine)
    running = asyncio.ensure_future(one.run())
    await until(lambda: engine.stats().running == 1, what="it prefills")
    one.cancel()
    outcome = await ended(running)
    assert (outcome.result, outcome.text, outcome.own_tokens) == (Result.CANCELLED, "", 0)
    assert engine.stats() == EngineStats()


async def test_a_cancel_of_a_sequence_that_waits_in_the_engine_frees_its_place(room: Room) -> None:
    engine = ScriptedEngine(tokenizer=TOKENIZER, script=Script(prefill_ms=3_600_000), max_running=1)
    busy, waiting = await room.generation(engine), await room.generation(engine)
    first = asyncio.ensure_future(busy.run())
    await until(lambda: engine.stats().running == 1, what="the first runs")
    second = asyncio.ensure_future(waiting.run())
    await until(lambda: engine.stats().waiting == 1, what="the second waits")
    waiting.cancel()
    assert (await ended(second)).result is Result.CANCELLED
    assert (engine.stats().running, engine.stats().waiting) == (1, 0)
    busy.cancel()
    await ended(first)


async def test_a_cancel_during_the_answer_keeps_what_was_said(room: Room) -> None:
    engine = scripted(tokens=5_000, tps=200)
    one = await room.generation(engine, await room.assignment(max_output_tokens=5_000))
    running = asyncio.ensure_future(one.run())
    await until(lambda: one._publication.own_tokens >= 30, what="it has said something")
    one.cancel()
    one.cancel()
    outcome = await ended(running)
    assert outcome.result is Result.CANCELLED
    assert 30 <= outcome.own_tokens < 5_000
    assert outcome.released_at is not None
    assert outcome.text
    assert await room.published(one) == outcome.text
    assert engine.stats() == EngineStats()


async def test_a_cancel_that_the_engine_did_not_hear_is_repeated(room: Room, puppet: Puppet) -> None:
    puppet.deaf_aborts = 2
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine is asked")
    one.cancel()
    assert (await ended(running)).result is Result.CANCELLED
    assert puppet.aborts == 3


async def test_a_hung_engine_does_not_hold_up_a_cancel(
    room: Room, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_module, "RELEASE_BOUND_S", 0.1)
    puppet.answers_aborts = False
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    puppet.say("some")
    await until(lambda: one._publication.own_tokens == 1, what="it has said something")
    one.cancel()
    outcome = await ended(running)
    assert (outcome.result, outcome.text) == (Result.CANCELLED, "some")
    assert puppet.dropped == [str(one.assignment)]


async def test_an_answer_that_finishes_before_the_cancel_is_seen_is_done(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine is asked")
    puppet.say("whole", finish="stop")
    one.cancel()
    outcome = await ended(running)
    assert (outcome.result, outcome.text, outcome.released_at) == (Result.DONE, "whole", None)


async def test_a_cancel_after_the_finish_changes_nothing(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    puppet.say("whole", finish="stop")
    outcome = await one.run()
    one.cancel()
    assert outcome.result is Result.DONE


@pytest.mark.parametrize(
    ("trouble", "result", "code"),
    [
        (EngineRefused("too long"), Result.FAILED, "engine_refused"),
        (EngineDead("gone"), Result.GIVEN_UP, "worker_lost"),
        (RuntimeError("a bug"), Result.FAILED, "engine_error"),
        (None, Result.FAILED, "engine_stopped"),
    ],
)
async def test_an_engine_in_trouble_ends_the_answer_with_what_was_said(
    room: Room, puppet: Puppet, trouble: Exception | None, result: Result, code: str
) -> None:
    one = await room.generation(puppet)
    puppet.feed(EngineDelta(text="some", token_ids=(1, 2)), trouble)
    outcome = await one.run()
    assert (outcome.result, outcome.error_code, outcome.text) == (result, code, "some")
    assert (outcome.own_tokens, outcome.finish_reason) == (2, "")
    assert await room.published(one) == "some"


async def test_a_scripted_failure_and_a_scripted_death_are_told_apart(room: Room) -> None:
    failing = await room.generation(scripted(), await room.assignment("[[fail_after=40]]"))
    outcome = await failing.run()
    assert (outcome.result, outcome.own_tokens) == (Result.FAILED, 40)
    engine = scripted(prefill_ms=3_600_000)
    running = asyncio.ensure_future((await room.generation(engine)).run())
    await until(lambda: engine.stats().running == 1, what="it prefills")
    engine.die()
    assert (await ended(running)).result is Result.GIVEN_UP


async def test_an_epoch_that_lost_its_run_stops_at_once_and_settles_nothing(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    puppet.say("mine ")
    await until(lambda: one._publication.is_flushed and one._publication.own_tokens == 1, what="it is published")
    cell = await room.connector.cell()
    await cell.call(stream.seal(cell.keys, run_id=one.assignment.run_id, epoch=1, base_epoch=1))
    puppet.say("not mine")
    outcome = await ended(running)
    assert outcome.result is Result.FENCED
    # No delta came after the refusal: the engine was told, not asked.
    assert puppet.aborts == 1
    assert await room.published(one) == "mine "


async def test_an_epoch_that_is_too_late_to_open_never_reaches_the_engine(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    cell = await room.connector.cell()
    await cell.call(stream.seal(cell.keys, run_id=one.assignment.run_id, epoch=1, base_epoch=1))
    assert (await one.run()).result is Result.FENCED
    assert puppet.requests == []


async def test_past_the_outage_bound_an_answer_is_settled_without_its_stream(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet, outage_bound_s=0.2)
    room.valkey.kill()
    puppet.say("whole ", 1)
    puppet.say("answer", 2, finish="stop")
    outcome = await ended(asyncio.ensure_future(one.run()))
    assert (outcome.result, outcome.text, outcome.own_tokens) == (Result.DONE, "whole answer", 2)


async def test_within_the_outage_bound_an_answer_waits_for_its_stream(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine is asked")
    room.valkey.kill()
    puppet.say("whole", finish="stop")
    await until(lambda: bool(puppet.dropped), what="the engine is done")
    assert not running.done()
    room.valkey.start()
    assert (await ended(running)).result is Result.DONE
    assert await room.published(one) == "whole"


async def test_an_answer_that_is_given_up_is_published_first_and_the_engine_rid_of_it(
    room: Room, puppet: Puppet
) -> None:
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    puppet.say("some")
    await until(lambda: one._publication.own_tokens == 1, what="it has said something")
    one.give_up("drained")
    outcome = await ended(running)
    assert (outcome.result, outcome.error_code, outcome.text) == (Result.GIVEN_UP, "drained", "some")
    assert outcome.released_at is None
    assert await room.published(one) == "some"
    assert puppet.dropped == [puppet.requests[0].request_id]


async def test_a_hung_engine_does_not_hold_up_a_worker_that_goes(room: Room, puppet: Puppet) -> None:
    puppet.answers_aborts = False
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine is asked")
    assert one.is_generating
    one.give_up("worker_lost")
    outcome = await ended(running)
    assert (outcome.result, outcome.error_code) == (Result.GIVEN_UP, "worker_lost")
    assert (puppet.aborts, one.is_generating) == (0, False)


@pytest.mark.parametrize(("said", "result"), [("some", Result.INTERRUPTED), ("", Result.FAILED)])
async def test_at_its_deadline_an_answer_ends_with_what_was_said(
    room: Room, puppet: Puppet, said: str, result: Result
) -> None:
    one = await room.generation(puppet, await room.assignment(time_left_s=0.2))
    if said:
        puppet.say(said)
    outcome = await ended(asyncio.ensure_future(one.run()))
    assert (outcome.result, outcome.error_code, outcome.text) == (result, "deadline", said)
    assert puppet.aborts == 1


async def test_an_answer_without_time_left_never_reaches_the_engine(room: Room, puppet: Puppet) -> None:
    carried = await room.assignment(carry_ids=(1,), carry_text="so far", time_left_s=-1.0, epoch=2)
    one = await room.generation(puppet, carried)
    outcome = await ended(asyncio.ensure_future(one.run()))
    assert (outcome.result, outcome.error_code, outcome.text) == (Result.INTERRUPTED, "deadline", "so far")
    assert puppet.requests == []


async def test_giving_up_shortens_the_wait_for_redis(
    room: Room, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_module, "LEAVING_BOUND_S", 0.1)
    one = await room.generation(puppet, outage_bound_s=3600)
    running = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine is asked")
    room.valkey.kill()
    puppet.say("whole", finish="stop")
    await until(lambda: one._patience is not None, what="it waits for Redis")
    one.give_up("drained")
    assert (await ended(running)).result is Result.DONE


async def test_the_first_order_to_stop_counts(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet)
    running = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine is asked")
    one.cancel()
    one.give_up("drained")
    assert (await ended(running)).result is Result.CANCELLED


async def test_a_generation_leaves_no_task_behind(room: Room, puppet: Puppet) -> None:
    before = asyncio.all_tasks()
    for order in (Generation.cancel, lambda one: one.give_up("drained"), None):
        one = await room.generation(puppet)
        running = asyncio.ensure_future(one.run())
        asked = len(puppet.requests)
        await until(lambda asked=asked: len(puppet.requests) > asked, what="the engine is asked")  # type: ignore[misc]
        if order is None:
            puppet.say("whole", finish="stop")
        else:
            order(one)
        await ended(running)
    assert asyncio.all_tasks() == before


async def test_giving_up_again_waits_no_longer(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet, outage_bound_s=3600)
    held = asyncio.Event()
    task = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine has it")
    room.flusher.drain = lambda publication: held.wait()  # type: ignore[assignment, method-assign, return-value]
    one.give_up("drained")
    await until(lambda: one._patience is not None, what="it waits for Redis")
    patience = one._patience
    assert patience is not None
    end = patience.when()
    later = asyncio.get_running_loop().time() + 0.05
    await until(lambda: asyncio.get_running_loop().time() > later, what="some time passes")
    one.give_up("drained")
    assert patience.when() == end
    held.set()
    assert (await ended(task)).result is Result.GIVEN_UP


async def test_giving_up_at_the_very_end_of_the_wait_is_heard(room: Room, puppet: Puppet) -> None:
    one = await room.generation(puppet, outage_bound_s=0.05)
    expired, go_on = asyncio.Event(), asyncio.Event()

    async def drain(publication: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            expired.set()
            await go_on.wait()

    room.flusher.drain = drain  # type: ignore[method-assign]
    task = asyncio.ensure_future(one.run())
    await until(lambda: bool(puppet.requests), what="the engine has it")
    one.cancel()
    await until(expired.is_set, what="the wait ends")
    one.give_up("drained")
    go_on.set()
    assert (await ended(task)).result is Result.CANCELLED
