"""An engine without a model: answers of `scripted_answers`, at a set pace, for tests and load measurements.

Same seam and habits as the real engine: one batch with a waiting line ordered by priority, prefill before the
first token, a prefix cache per salt, characters split over tokens, abort, continuation.
"""

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from inference.tokenization import ChatTokenizer
from inference.worker.engine import (
    EngineDead,
    EngineDelta,
    EngineRefused,
    EngineStats,
    GenerationRequest,
)
from inference.worker.scripted_answers import Answer, Answers, Script

_BLOCK_TOKENS = 32
_NS = 1_000_000_000
# The longest step of a prefill.
_STEP_NS = _NS


@dataclass(slots=True, eq=False, kw_only=True)
class _Sequence:
    request: GenerationRequest
    answer: Answer
    arrival: int
    position: int
    cached_tokens: int = 0
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    # Deltas, then None (ended) or the exception to raise. Producing never waits for the reader.
    output: asyncio.Queue[EngineDelta | Exception | None] = field(default_factory=asyncio.Queue)
    producer: asyncio.Task[None] | None = None

    @property
    def urgency(self) -> tuple[int, int]:
        return self.request.priority, self.arrival


class ScriptedEngine:
    """See the module. `clock` gives monotonic ns and `sleep` waits seconds: tests hand in their own."""

    def __init__(
        self,
        *,
        tokenizer: ChatTokenizer,
        script: Script | None = None,
        max_running: int = 32,
        max_model_len: int = 4096,
        kv_tokens: int = 46_592,
        prefill_tokens_per_second: float = 5_000.0,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._tokenizer = tokenizer
        self._answers = Answers(tokenizer=tokenizer, default=script or Script())
        self._max_running = max_running
        self._max_model_len = max_model_len
        self._kv_tokens = kv_tokens
        self._prefill_tokens_per_second = prefill_tokens_per_second
        self._clock = clock
        self._sleep = sleep
        self._arrivals = itertools.count()
        self._running: dict[str, _Sequence] = {}
        self._waiting: dict[str, _Sequence] = {}
        self._prefixes = _PrefixCache(blocks=kv_tokens // _BLOCK_TOKENS)
        self._dead = False
        self._steps = 0
        # Cleared for good by a script's `stall_after`.
        self._turns = asyncio.Event()
        self._turns.set()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineDelta, None]:
        """Yield one delta per token."""
        sequence = self._accept(request)
        try:
            while (item := await sequence.output.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._drop(sequence)

    async def abort(self, request_id: str) -> None:
        await self._turns.wait()
        sequence = self._running.get(request_id) or self._waiting.get(request_id)
        if sequence is not None:
            self._drop(sequence)
            sequence.output.put_nowait(None)

    def stats(self) -> EngineStats:
        held = sum(len(s.request.prompt_ids) + s.position - s.answer.done for s in self._running.values())
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=min(1.0, held / self._kv_tokens),
            kv_tokens=self._kv_tokens,
            steps=self._steps,
        )

    @property
    def alive(self) -> bool:
        return not self._dead

    async def close(self) -> None:
        self.die()

    def die(self) -> None:
        """Break as a crashed engine does: every open stream and every later request raises EngineDead."""
        self._dead = True
        self._turns.set()
        for sequence in [*self._running.values(), *self._waiting.values()]:
            self._drop(sequence)
            sequence.output.put_nowait(EngineDead("the scripted engine is stopped"))

    def answer_ids(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The whole answer to a prompt, whatever part of it the prompt already holds."""
        return self._answers.answer(prompt_ids).ids

    def _accept(self, request: GenerationRequest) -> _Sequence:
        if self._dead:
            raise EngineDead("the scripted engine is stopped")
        length = len(request.prompt_ids)
        if length >= self._max_model_len:
            raise EngineRefused(f"the prompt has {length} tokens, the window {self._max_model_len}")
        if request.request_id in self._running or request.request_id in self._waiting:
            raise EngineRefused(f"request id {request.request_id!r} is in use")
        try:
            answer = self._answers.answer(request.prompt_ids)
        except ValueError as error:
            raise EngineRefused(str(error)) from error
        sequence = _Sequence(request=request, answer=answer, arrival=next(self._arrivals), position=answer.done)
        self._waiting[request.request_id] = sequence
        sequence.producer = asyncio.create_task(self._produce(sequence))
        self._admit()
        return sequence

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_running and not self._dead:
            sequence = min(self._waiting.values(), key=lambda waiting: waiting.urgency)
            del self._waiting[sequence.request.request_id]
            self._running[sequence.request.request_id] = sequence
            sequence.admitted.set()

    def _drop(self, sequence: _Sequence) -> None:
        """Give the sequence's place to the next one. Nothing to do for one that has left."""
        if sequence.producer is not None:
            sequence.producer.cancel()
        self._leave(sequence)

    def _leave(self, sequence: _Sequence) -> None:
        for place in (self._running, self._waiting):
            if place.get(sequence.request.request_id) is sequence:
                del place[sequence.request.request_id]
        self._admit()

    async def _produce(self, sequence: _Sequence) -> None:
        await sequence.admitted.wait()
        request, answer = sequence.request, sequence.answer
        script = answer.script
        decode = self._tokenizer.stream(request.prompt_ids)
        sequence.cached_tokens = self._prefixes.take(request.cache_salt, request.prompt_ids)
        interval = round(_NS / script.tps)
        due = self._clock() + self._prefill_ns(sequence)
        end = min(len(answer.ids), answer.done + request.max_output_tokens)
        reason = None
        while reason is None:
            await self._until(due)
            if script.fail_after is not None and sequence.position >= script.fail_after:
                self._leave(sequence)
                failure = f"scripted failure after {script.fail_after} tokens"
                sequence.output.put_nowait(EngineRefused(failure))
                return
            ids = answer.ids[sequence.position : sequence.position + 1]
            text = "".join(f"@{due};" if script.clock else decode(token) for token in ids)
            sequence.position += len(ids)
            self._steps += 1
            if sequence.position >= end:
                reason = "stop" if end == len(answer.ids) else "length"
                written = answer.ids[answer.done : end]
                self._prefixes.store(request.cache_salt, (*request.prompt_ids, *written))
                self._leave(sequence)
            sequence.output.put_nowait(
                EngineDelta(text=text, token_ids=ids, finish_reason=reason, cached_tokens=sequence.cached_tokens)
            )
            if sequence.position == script.stall_after and not answer.done:
                self._turns.clear()
            # From due time to due time, so that the rate is exact; but a process that was stopped goes on at
            # its pace instead of catching up in a burst.
            now = self._clock()
            due = (due if now - due < interval else now) + interval
        sequence.output.put_nowait(None)

    async def _until(self, due: int) -> None:
        """Wait in steps, as an engine prefills; for ever when it hangs."""
        while True:
            left = max(0, due - self._clock())
            await self._sleep(min(left, _STEP_NS) / _NS)
            await self._turns.wait()
            if left <= _STEP_NS:
                return
            self._steps += 1

    def _prefill_ns(self, sequence: _Sequence) -> int:
        if sequence.answer.script.prefill_ms is not None:
            return round(sequence.answer.script.prefill_ms * 1_000_000)
        uncached = len(sequence.request.prompt_ids) - sequence.cached_tokens
        return round(uncached / self._prefill_tokens_per_second * _NS)


class _PrefixCache:
    """Which blocks of tokens have been seen, least recently used out first; hits are whole blocks."""

    def __init__(self, *, blocks: int) -> None:
        self._capacity = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, salt: str | None, ids: Sequence[int]) -> int:
        """Tokens at the start of a prompt that need no prefill. At least the last token always does."""
        hits = 0
        for key in _block_keys(salt, ids[:-1]):
            if key not in self._blocks:
                break
            hits += _BLOCK_TOKENS
        self.store(salt, ids)
        return hits

    def store(self, salt: str | None, ids: Sequence[int]) -> None:
        for key in _block_keys(salt, ids):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


def _block_keys(salt: str | None, ids: Sequence[int]) -> list[int]:
    keys: list[int] = []
    key = hash(salt)
    for start in range(0, len(ids) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
        key = hash((key, tuple(ids[start : start + _BLOCK_TOKENS])))
        keys.append(key)
    return keys
