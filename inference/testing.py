"""What tests need from inference: small stand-ins without files, weights or waiting."""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable
from typing import Any, TypeVar

import redis
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from inference.cell.keys import Keys
from inference.tokenization import ChatTokenizer

T = TypeVar("T")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer() -> ChatTokenizer:
    """One token per UTF-8 byte, with a ChatML template: counts can be done by hand."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*specials, *sorted(ByteLevel.alphabet())])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return ChatTokenizer(
        tokenizer=tokenizer,
        template=CHATML,
        special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    )


class VirtualTime:
    """A clock for code that takes `clock` and `sleep`: it jumps to the next sleeper when all else waits."""

    def __init__(self) -> None:
        self._now = 0
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def clock(self) -> int:
        """Virtual nanoseconds since the start."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return when the virtual clock has moved on by `seconds`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + round(seconds * 1e9), next(self._order), woken))
        await woken

    def skip(self, seconds: float) -> None:
        """Let time pass without waking anybody, as while a process is stopped."""
        self._now += round(seconds * 1e9)

    async def run(self, awaitable: Awaitable[T]) -> T:
        """The result of `awaitable`; time passes while it waits.

        Raises TimeoutError when it waits for something other than time.
        """
        task = asyncio.ensure_future(awaitable)
        while not await self._settled(task):
            if not self._sleepers:
                task.cancel()
                raise TimeoutError("the awaitable waits, and nothing sleeps that could wake it")
            due, _, woken = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not woken.done():
                woken.set_result(None)
        return await task

    async def _settled(self, task: "asyncio.Future[T]") -> bool:
        """Let everything that can run without time passing run; whether the task is done."""
        for _ in range(20):
            if task.done():
                return True
            await asyncio.sleep(0)
        return task.done()


def queued(client: redis.Redis, keys: Keys, *, pool: str) -> dict[str, int]:
    """Every run that waits in a pool's queue, as 'run:epoch', and since when (ms), first come first."""
    prefix = keys.queue(pool)
    begun: Any = client.zrange(f"{prefix}:begun", 0, -1, withscores=True)
    found = {str(name): int(since) for name, since in begun}
    facts: list[str] = []
    for key in client.scan_iter(match=f"{prefix}:f:*", count=1000):
        firsts: Any = client.hvals(str(key))
        facts += [first.partition("|")[2] for first in firsts]
    for key in client.scan_iter(match=f"{prefix}:l:*", count=1000):
        others: Any = client.zrange(str(key), 0, -1)
        facts += others
    for one in facts:
        fields = one.split("|")
        found[fields[0]] = int(fields[6])
    return dict(sorted(found.items(), key=lambda item: item[1]))
