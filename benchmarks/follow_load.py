"""The two ends of a follow benchmark, each a process of its own so that neither costs the other time.

`publish` appends to streams through the site's own script, as a worker's flusher does: one pipeline every 10 ms for all
that are due. `read` follows them over HTTP. Each delta's text is the moment it was handed to Redis, so that the reader
knows how long it was on its way. Both are told what to do on standard input and answer with a line of JSON.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from benchmarks.report import spread
from inference.cell import stream
from inference.cell.link import AsyncCell, AsyncConnector, ScriptCall

TICK_S = 0.01
CONNECTING = 50
MOMENT = re.compile(rb"@(\d+);")
# What every stream holds already: who was shown it has subscribed and read.
ATTACHED = b"event: started"
STARTED = {"epoch": 1, "pool": "default", "model": "none", "degraded": False}


class Publisher:
    """Appends a delta to each of the runs, `rate` times a second each, evenly spread."""

    def __init__(self, *, cell: AsyncCell, runs: list[UUID], rate: float) -> None:
        self._cell = cell
        self._runs = runs
        self._seqs = [1] * len(runs)
        self._rate = rate
        self.published = 0

    async def open(self) -> None:
        for run in self._runs:
            await self._cell.call(
                stream.open_epoch(
                    self._cell.keys,
                    run_id=run,
                    epoch=1,
                    base_epoch=1,
                    seq=1,
                    started=STARTED,
                    ids_so_far=(),
                    text_so_far="",
                )
            )

    async def publish(self) -> None:
        """For ever."""
        began, done = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - began) * self._rate * len(self._runs))
            calls = [self._append(number % len(self._runs)) for number in range(done, due)]
            done = due
            if calls:
                refused = [reply for reply in await self._cell.call_many(calls) if reply != "ok"]
                if refused:
                    raise RuntimeError(f"appending failed: {refused[0]}")
                self.published += len(calls)
            await asyncio.sleep(TICK_S)

    def _append(self, which: int) -> ScriptCall:
        self._seqs[which] += 1
        return stream.append(
            self._cell.keys,
            run_id=self._runs[which],
            epoch=1,
            seq=self._seqs[which],
            kind="delta",
            data={"text": f"@{time.monotonic_ns()};"},
        )


class Tally:
    """What all followers of the process received since it was last asked."""

    def __init__(self) -> None:
        self.delays_ms: list[float] = []
        self.lost = 0

    def report(self) -> dict[str, object]:
        delays, self.delays_ms = self.delays_ms, []
        return {"events": len(delays), "lost": self.lost, "delay_ms": spread(delays) if delays else None}


class Follower(asyncio.Protocol):
    """One connection that follows one run."""

    def __init__(self, *, request: bytes, tally: Tally, attached: "asyncio.Future[None]") -> None:
        self._request = request
        self._tally = tally
        self._attached = attached
        self._rest = b""
        self._leaving = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        data = self._rest + data
        if not self._attached.done():
            if ATTACHED in data:
                self._attached.set_result(None)
            elif not self._rest and not data.startswith(b"HTTP/1.1 200"):
                self._attached.set_exception(RuntimeError(data.decode(errors="replace")))
        end = 0
        for found in MOMENT.finditer(data):
            self._tally.delays_ms.append((now - int(found[1])) / 1e6)
            end = found.end()
        self._rest = data[max(end, len(data) - 100) :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._attached.done():
            self._attached.set_exception(RuntimeError("the server closed the connection"))
        elif not self._leaving:
            self._tally.lost += 1

    def leave(self) -> None:
        self._leaving = True
        if self._transport is not None:
            self._transport.abort()


class Reader:
    """Many followers of one server."""

    def __init__(self, *, port: int, key: str, runs: list[UUID]) -> None:
        self._port = port
        self._key = key
        self._runs = runs
        self._followers: list[Follower] = []
        self.tally = Tally()

    async def join(self) -> None:
        """Follow every run, a few connections being made at a time."""
        places = asyncio.Semaphore(CONNECTING)

        async def one(run: UUID) -> None:
            async with places:
                self._followers.append(await self._follow(run))

        await asyncio.gather(*map(one, self._runs))

    async def leave(self) -> None:
        for follower in self._followers:
            follower.leave()
        self._followers.clear()

    async def come_and_go(self, times: int) -> None:
        """Follow, read what there is and leave, `times` times, in some lanes side by side."""

        async def lane(number: int) -> None:
            for turn in range(times // CONNECTING):
                (await self._follow(self._runs[(number + turn) % len(self._runs)])).leave()

        await asyncio.gather(*map(lane, range(CONNECTING)))

    async def _follow(self, run: UUID) -> Follower:
        loop = asyncio.get_running_loop()
        attached = loop.create_future()
        request = (
            f"GET /api/v1/runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Authorization: Bearer {self._key}\r\nAccept: text/event-stream\r\n\r\n"
        )
        _, follower = await loop.create_connection(
            lambda: Follower(request=request.encode(), tally=self.tally, attached=attached), "127.0.0.1", self._port
        )
        await attached
        return follower


async def orders(obey: Callable[[list[str]], "asyncio.Future[dict[str, object]]"]) -> None:
    """Answer each line of standard input with a line of JSON, until it is closed."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        print(json.dumps(await obey(line.decode().split())), flush=True)


async def publish(*, url: str, runs: list[UUID], rate: float) -> None:
    connector = AsyncConnector(url=lambda: url)
    publisher = Publisher(cell=await connector.cell(), runs=runs, rate=rate)
    await publisher.open()
    tasks: list[asyncio.Task[None]] = []

    async def obey(order: list[str]) -> dict[str, object]:
        match order:
            case ["publish"]:
                tasks.append(asyncio.create_task(publisher.publish()))
                tasks[-1].add_done_callback(_fail)
            case ["pause"]:
                tasks.pop().cancel()
        return {"published": publisher.published}

    await orders(lambda order: asyncio.ensure_future(obey(order)))


def _fail(task: "asyncio.Task[None]") -> None:
    """Without events there is nothing to measure."""
    if not task.cancelled() and task.exception() is not None:
        traceback.print_exception(task.exception())
        os._exit(1)


async def read(*, port: int, key: str, runs: list[UUID]) -> None:
    reader = Reader(port=port, key=key, runs=runs)

    async def obey(order: list[str]) -> dict[str, object]:
        match order:
            case ["join"]:
                await reader.join()
            case ["leave"]:
                await reader.leave()
            case ["come-and-go", times]:
                await reader.come_and_go(int(times))
        return reader.tally.report()

    await orders(lambda order: asyncio.ensure_future(obey(order)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=["publish", "read"])
    parser.add_argument("--runs", type=Path, required=True, help="file of run ids, one a line")
    parser.add_argument("--count", type=int, required=True, help="how many of them")
    parser.add_argument("--redis", default="")
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    runs = [UUID(line) for line in options.runs.read_text().split()][: options.count]
    if options.end == "publish":
        asyncio.run(publish(url=options.redis, runs=runs, rate=options.rate))
    else:
        asyncio.run(read(port=options.port, key=options.key, runs=runs))


if __name__ == "__main__":
    main()
