"""The scripted engine keeps the seam's promises, on a virtual clock."""

import asyncio
import itertools
from collections.abc import Iterable

import pytest

from inference.testing import VirtualTime, tiny_tokenizer
from inference.tokenization import ChatTurn
from inference.worker.engine import EngineDead, EngineDelta, EngineRefused, EngineStats, GenerationRequest
from inference.worker.scripted_answers import Script
from inference.worker.scripted_engine import ScriptedEngine

TOKENIZER = tiny_tokenizer()


class Bench:
    """One engine on a virtual clock, with when each delta arrived."""

    def __init__(self, *, script: Script | None = None, max_running: int = 32) -> None:
        self.time = VirtualTime()
        self.engine = ScriptedEngine(
            tokenizer=TOKENIZER,
            script=script or Script(tps=20, tokens=40, prefill_ms=50),
            max_running=max_running,
            clock=self.time.clock,
            sleep=self.time.sleep,
        )
        self.arrivals: dict[str, list[float]] = {}

    async def read(self, request: GenerationRequest) -> list[EngineDelta]:
        """Every delta of one answer; arrival times (ms) go to `arrivals`."""
        times = self.arrivals.setdefault(request.request_id, [])
        deltas = []
        async for delta in self.engine.generate(request):
            times.append(self.time.clock() / 1e6)
            deltas.append(delta)
        return deltas


def prompt(content: str, *earlier: str) -> list[int]:
    roles = ("user", "assistant")
    turns = [ChatTurn(roles[i % 2], text) for i, text in enumerate((*earlier, content))]
    return TOKENIZER.encode_chat([ChatTurn("system", "Be brief."), *turns])


def request(
    name: str = "r1",
    content: str = "Hello",
    *,
    prompt_ids: list[int] | None = None,
    max_output_tokens: int = 1000,
    cache_salt: str | None = None,
    priority: int = 0,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=prompt(content) if prompt_ids is None else prompt_ids,
        max_output_tokens=max_output_tokens,
        cache_salt=cache_salt,
        priority=priority,
    )


def text(deltas: Iterable[EngineDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids(deltas: Iterable[EngineDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


async def test_an_answer_is_prefill_then_tokens_at_the_set_rate() -> None:
    bench = Bench()
    deltas = await bench.time.run(bench.read(request()))
    assert bench.arrivals["r1"] == [50 + 50 * i for i in range(40)]
    assert [delta.finish_reason for delta in deltas] == [None] * 39 + ["stop"]
    assert len(ids(deltas)) == 40


async def test_the_text_is_what_the_ids_decode_to_and_characters_span_tokens() -> None:
    bench = Bench(script=Script(tokens=100))
    deltas = await bench.time.run(bench.read(request()))
    assert text(deltas) == TOKENIZER.decode(ids(deltas))
    assert "é" in text(deltas)
    assert any(delta.text == "" for delta in deltas)


@pytest.mark.parametrize("tokens", range(60, 140))
async def test_no_answer_ends_inside_a_character(tokens: int) -> None:
    bench = Bench(script=Script(tokens=tokens))
    deltas = await bench.time.run(bench.read(request()))
    assert len(ids(deltas)) == tokens
    assert "\N{REPLACEMENT CHARACTER}" not in text(deltas)
    assert text(deltas) == TOKENIZER.decode(ids(deltas))


async def test_the_answer_depends_on_the_last_message_only() -> None:
    bench = Bench()
    first = await bench.time.run(bench.read(request("a", "Hello")))
    again = await bench.time.run(bench.read(request("b", prompt_ids=prompt("Hello", "Who?", "Me."))))
    other = await bench.time.run(bench.read(request("c", "Hello!")))
    assert text(first) == text(again) != text(other)


async def test_directives_in_the_last_message_set_the_pace() -> None:
    bench = Bench()
    await bench.time.run(bench.read(request(content="Go [[tps=10 tokens=3 prefill_ms=500]]")))
    assert bench.arrivals["r1"] == [500, 600, 700]


async def test_directives_in_earlier_messages_do_nothing() -> None:
    bench = Bench()
    history = prompt("Go", "[[tokens=3]]", "[[tokens=4]]")
    assert len(await bench.time.run(bench.read(request(prompt_ids=history)))) == 40


@pytest.mark.parametrize("directive", ["[[tempo=3]]", "[[tps]]", "[[clock=1]]", "[[tokens=0]]", "[[tps=nan]]"])
async def test_a_bad_directive_is_refused(directive: str) -> None:
    bench = Bench()
    with pytest.raises(EngineRefused):
        await bench.time.run(bench.read(request(content=directive)))
    assert bench.engine.stats() == EngineStats()


async def test_with_clock_each_token_is_the_time_it_was_due() -> None:
    bench = Bench()
    deltas = await bench.time.run(bench.read(request(content="[[clock tps=20 tokens=3 prefill_ms=50]]")))
    assert [delta.text for delta in deltas] == ["@50000000;", "@100000000;", "@150000000;"]
    assert [len(delta.token_ids) for delta in deltas] == [1, 1, 1]


async def test_a_failing_answer_gives_its_tokens_and_then_fails_alone() -> None:
    bench = Bench()
    got = []

    async def failing() -> None:
        async for delta in bench.engine.generate(request("bad", "[[fail_after=5]]")):
            got.append(delta)  # noqa: PERF401  (what came before the failure counts)

    async def both() -> list[EngineDelta]:
        with pytest.raises(EngineRefused):
            await asyncio.gather(failing())
        return await bench.read(request("good"))

    assert len(await bench.time.run(both())) == 40
    assert len(got) == 5


async def test_the_output_limit_ends_an_answer_with_length() -> None:
    bench = Bench()
    deltas = await bench.time.run(bench.read(request(max_output_tokens=7)))
    assert len(ids(deltas)) == 7
    assert deltas[-1].finish_reason == "length"


async def test_an_output_limit_of_the_whole_answer_still_stops() -> None:
    bench = Bench()
    deltas = await bench.time.run(bench.read(request(max_output_tokens=40)))
    assert (len(ids(deltas)), deltas[-1].finish_reason) == (40, "stop")


@pytest.mark.parametrize("cut", [0, 1, 20, 39])
async def test_an_answer_continues_from_any_prefix_of_itself(cut: int) -> None:
    bench = Bench()
    whole = await bench.time.run(bench.read(request("whole")))
    done = list(bench.engine.answer_ids(prompt("Hello")))[:cut]
    rest = await bench.time.run(bench.read(request("rest", prompt_ids=prompt("Hello") + done)))
    assert done + ids(rest) == ids(whole)
    assert TOKENIZER.decode(done) + text(rest) == text(whole)
    assert rest[-1].finish_reason == "stop"


async def test_a_continuation_of_a_finished_answer_only_stops() -> None:
    bench = Bench()
    done = list(bench.engine.answer_ids(prompt("Hello")))
    deltas = await bench.time.run(bench.read(request(prompt_ids=prompt("Hello") + done)))
    assert [(delta.text, delta.token_ids, delta.finish_reason) for delta in deltas] == [("", (), "stop")]


async def test_a_continuation_with_foreign_tokens_is_refused() -> None:
    bench = Bench()
    foreign = prompt("Hello") + TOKENIZER.encode("Something else")
    with pytest.raises(EngineRefused):
        await bench.time.run(bench.read(request(prompt_ids=foreign)))


async def test_a_failure_counts_the_tokens_of_earlier_epochs() -> None:
    bench = Bench()
    content = "[[fail_after=5]]"
    done = list(bench.engine.answer_ids(prompt(content)))[:3]
    stream = bench.engine.generate(request(prompt_ids=prompt(content) + done))

    async def count() -> int:
        seen = 0
        with pytest.raises(EngineRefused):
            async for _ in stream:
                seen += 1
        return seen

    assert await bench.time.run(count()) == 2


async def test_the_batch_is_bounded_and_the_rest_waits_by_priority() -> None:
    bench = Bench(max_running=1)
    order: list[str] = []

    async def one(name: str, priority: int) -> None:
        await bench.read(request(name, priority=priority))
        order.append(name)

    async def all_at_once() -> EngineStats:
        tasks = [
            asyncio.create_task(one(name, priority))
            for name, priority in [("first", 5), ("late", 9), ("urgent", 0), ("late too", 9)]
        ]
        await bench.time.sleep(0.1)
        stats = bench.engine.stats()
        await asyncio.gather(*tasks)
        return stats

    stats = await bench.time.run(all_at_once())
    assert (stats.running, stats.waiting) == (1, 3)
    assert 0 < stats.kv_usage < 1
    assert order == ["first", "urgent", "late", "late too"]
    assert bench.engine.stats() == EngineStats()


async def test_sequences_of_one_batch_go_on_side_by_side() -> None:
    bench = Bench()
    await bench.time.run(asyncio.gather(*(bench.read(request(f"r{i}")) for i in range(8))))
    assert all(times[-1] == 50 + 50 * 39 for times in bench.arrivals.values())


@pytest.mark.parametrize("moment", [0.02, 0.5])
async def test_abort_ends_the_stream_without_a_reason_and_frees_its_place(moment: float) -> None:
    bench = Bench(max_running=1)

    async def story() -> tuple[list[EngineDelta], list[EngineDelta]]:
        aborted = asyncio.create_task(bench.read(request("aborted")))
        waiting = asyncio.create_task(bench.read(request("waiting")))
        await bench.time.sleep(moment)
        await bench.engine.abort("aborted")
        assert (bench.engine.stats().running, bench.engine.stats().waiting) == (1, 0)
        return await aborted, await waiting

    aborted, waiting = await bench.time.run(story())
    assert len(aborted) < 40
    assert all(delta.finish_reason is None for delta in aborted)
    assert waiting[-1].finish_reason == "stop"


async def test_a_waiting_request_can_be_aborted() -> None:
    bench = Bench(max_running=1)

    async def story() -> list[EngineDelta]:
        running = asyncio.create_task(bench.read(request("running")))
        waiting = asyncio.create_task(bench.read(request("waiting")))
        await bench.time.sleep(0.1)
        await bench.engine.abort("waiting")
        assert bench.engine.stats().waiting == 0
        await running
        return await waiting

    assert await bench.time.run(story()) == []


async def test_aborting_an_unknown_request_does_nothing() -> None:
    bench = Bench()
    await bench.engine.abort("nobody")
    assert bench.engine.stats() == EngineStats()


async def test_closing_the_iterator_drops_the_sequence() -> None:
    bench = Bench()

    async def story() -> None:
        stream = bench.engine.generate(request())
        await anext(stream)
        assert bench.engine.stats().running == 1
        await stream.aclose()
        assert bench.engine.stats() == EngineStats()

    await bench.time.run(story())


async def test_an_engine_that_prefills_or_decodes_tells_of_its_steps() -> None:
    bench = Bench()

    async def story() -> tuple[int, int, int]:
        reading = asyncio.create_task(bench.read(request(content="[[prefill_ms=10000 tps=1 tokens=5]]")))
        counts = []
        for _ in range(3):
            counts.append(bench.engine.stats().steps)
            await bench.time.sleep(5)
        await reading
        return counts[0], counts[1], counts[2]

    before, prefilling, decoding = await bench.time.run(story())
    assert before < prefilling < decoding


async def test_a_stalled_engine_makes_no_step_for_anybody_and_answers_no_abort() -> None:
    bench = Bench()
    hung = request("hung", "[[stall_after=5 tps=10]]")
    others = asyncio.create_task(bench.read(request("other", "[[tps=10 tokens=100]]")))
    reading = asyncio.create_task(bench.read(hung))
    await bench.time.run(bench.time.sleep(3))
    steps = bench.engine.stats().steps
    await bench.time.run(bench.time.sleep(30))
    assert bench.engine.stats().steps == steps
    assert len(bench.arrivals["hung"]) == 5
    assert len(bench.arrivals["other"]) < 20
    aborting = asyncio.create_task(bench.engine.abort("hung"))
    await bench.time.run(bench.time.sleep(1))
    assert not aborting.done()
    bench.engine.die()
    for reader in (others, reading):
        with pytest.raises(EngineDead):
            await reader
    await aborting


async def test_an_answer_goes_on_where_another_engine_stalled() -> None:
    content = "[[stall_after=5 tokens=20]]"
    whole = Bench().engine.answer_ids(prompt(content))
    for published in (3, 5):
        bench = Bench()
        rest = await bench.time.run(bench.read(request(prompt_ids=[*prompt(content), *whole[:published]])))
        assert ids(rest) == list(whole[published:])


async def test_a_slow_reader_does_not_slow_the_engine() -> None:
    bench = Bench()

    async def story() -> int:
        stream = bench.engine.generate(request(content="[[clock tps=20 tokens=40 prefill_ms=50]]"))
        first = await anext(stream)
        await bench.time.sleep(60)
        assert bench.engine.stats().running == 0
        rest = [delta async for delta in stream]
        assert first.text == "@50000000;"
        assert rest[-1].text == "@2000000000;"
        return len(rest)

    assert await bench.time.run(story()) == 39


async def test_an_engine_that_was_stopped_goes_on_at_its_pace() -> None:
    bench = Bench()

    async def story() -> list[EngineDelta]:
        reading = asyncio.create_task(bench.read(request()))
        await bench.time.sleep(0.5)
        bench.time.skip(60)
        return await reading

    await bench.time.run(story())
    times = bench.arrivals["r1"]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert max(pauses) > 60_000
    assert min(pauses) == 50


async def test_a_request_id_in_use_is_refused_and_free_again_afterwards() -> None:
    bench = Bench()

    async def story() -> list[EngineDelta]:
        task = asyncio.create_task(bench.read(request("same")))
        await bench.time.sleep(0.1)
        with pytest.raises(EngineRefused):
            await bench.read(request("same"))
        await task
        return await bench.read(request("same"))

    assert len(await bench.time.run(story())) == 40


async def test_a_prompt_beyond_the_window_is_refused() -> None:
    bench = Bench()
    with pytest.raises(EngineRefused):
        await bench.time.run(bench.read(request(prompt_ids=[5] * 4096)))


async def test_a_dead_engine_says_so_to_all() -> None:
    bench = Bench(max_running=1)

    async def story() -> list[object]:
        streams = [asyncio.create_task(bench.read(request(f"r{i}"))) for i in range(3)]
        await bench.time.sleep(0.5)
        assert bench.engine.alive
        bench.engine.die()
        return list(await asyncio.gather(*streams, return_exceptions=True))

    assert [type(outcome) for outcome in await bench.time.run(story())] == [EngineDead] * 3
    assert not bench.engine.alive
    assert bench.engine.stats() == EngineStats()
    with pytest.raises(EngineDead):
        await bench.read(request("later"))


async def test_a_repeated_prompt_is_cached_in_whole_blocks_and_prefilled_faster() -> None:
    bench = Bench(script=Script(tps=50, tokens=4))
    await bench.time.run(bench.read(request("cold", "x" * 500, cache_salt="alice")))
    before = bench.time.clock() / 1e6
    deltas = await bench.time.run(bench.read(request("warm", "x" * 500, cache_salt="alice")))
    length = len(prompt("x" * 500))
    assert deltas[0].cached_tokens == (length - 1) // 32 * 32
    assert bench.arrivals["warm"][0] - before < bench.arrivals["cold"][0] / 4


async def test_the_prefix_cache_keeps_users_apart() -> None:
    bench = Bench()
    await bench.time.run(bench.read(request("a", "x" * 500, cache_salt="alice")))
    deltas = await bench.time.run(bench.read(request("b", "x" * 500, cache_salt="bob")))
    assert deltas[0].cached_tokens == 0


async def test_the_next_turn_finds_prompt_and_answer_in_the_cache() -> None:
    bench = Bench(script=Script(tokens=100, tps=50))
    answer = text(await bench.time.run(bench.read(request("one", "Hello", cache_salt="alice"))))
    second = prompt("More", "Hello", answer)
    deltas = await bench.time.run(bench.read(request("two", prompt_ids=second, cache_salt="alice")))
    assert deltas[0].cached_tokens >= (len(prompt("Hello")) + 100) // 32 * 32
