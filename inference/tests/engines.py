"""An engine that does what a test tells it, step by step."""

import asyncio
from collections.abc import AsyncGenerator

from inference.worker.engine import EngineDelta, EngineStats, GenerationRequest


class Puppet:
    """Yields what `feed` gives it. Knobs: `answers_aborts` False = it hangs; `deaf_aborts` = how many go unheard."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []
        self.aborts = 0
        self.dropped: list[str] = []
        self.answers_aborts = True
        self.deaf_aborts = 0
        self.is_alive = True
        self.closed = False
        self._output: asyncio.Queue[EngineDelta | Exception | None] = asyncio.Queue()

    def feed(self, *items: EngineDelta | Exception | None) -> None:
        """What comes next: deltas, an error to raise, or None to end without a reason."""
        for item in items:
            self._output.put_nowait(item)

    def say(self, text: str, *ids: int, finish: str | None = None) -> None:
        self.feed(EngineDelta(text=text, token_ids=ids or (1,), finish_reason=finish))

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineDelta, None]:
        self.requests.append(request)
        try:
            while (item := await self._output.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.dropped.append(request.request_id)

    async def abort(self, request_id: str) -> None:
        self.aborts += 1
        if not self.answers_aborts:
            await asyncio.Event().wait()
        if self.deaf_aborts:
            self.deaf_aborts -= 1
        else:
            self.feed(None)

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self.requests) - len(self.dropped))

    @property
    def alive(self) -> bool:
        return self.is_alive

    async def close(self) -> None:
        self.closed = True
