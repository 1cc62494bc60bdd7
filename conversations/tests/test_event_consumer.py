"""The base of streaming consumers: it sees its client leave at once, and an error never leaves the request hanging."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conversations.event_consumer import StreamingConsumer
from conversations.tests.support import Exchange

Handle = Callable[["Consumer", bytes], Awaitable[None]]


class Consumer(StreamingConsumer):
    """Handles its request by a function of the test's."""

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self._handle = handle

    async def handle(self, body: bytes) -> None:
        await self._handle(self, body)


def opened(handle: Handle, **request: Any) -> Exchange:
    exchange = Exchange(**request)
    scope = {"type": "http", "path": "/", "method": "GET", "headers": []}
    exchange.task = asyncio.ensure_future(Consumer(handle)(scope, exchange.receive, exchange.send))
    return exchange


async def begin_a_stream(consumer: Consumer) -> None:
    await consumer.send_headers(status=200, headers=[(b"Content-Type", b"text/event-stream")])
    await consumer.send_body(b": hello\n\n", more_body=True)


async def test_a_client_that_leaves_while_nothing_is_sent_is_seen_at_once() -> None:
    stopped = asyncio.Event()

    async def stream_for_ever(consumer: Consumer, _: bytes) -> None:
        await begin_a_stream(consumer)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    exchange = opened(stream_for_ever)
    await exchange.frame()
    exchange.hang_up()
    await exchange.finished()
    assert stopped.is_set()


async def test_a_client_that_leaves_while_much_is_sent_is_seen_at_once() -> None:
    async def flood(consumer: Consumer, _: bytes) -> None:
        await begin_a_stream(consumer)
        while True:
            await consumer.send_body(b": more\n\n", more_body=True)
            await asyncio.sleep(0)

    exchange = opened(flood)
    await exchange.frame()
    exchange.hang_up()
    await exchange.finished()


async def test_what_a_handler_cleans_up_is_waited_for() -> None:
    cleaned = []

    async def slow_to_leave(consumer: Consumer, _: bytes) -> None:
        await begin_a_stream(consumer)
        try:
            await asyncio.Event().wait()
        finally:
            for _turn in range(5):
                await asyncio.sleep(0)
            cleaned.append("everything")

    exchange = opened(slow_to_leave)
    await exchange.frame()
    exchange.hang_up()
    await exchange.finished()
    assert cleaned == ["everything"]


@pytest.mark.parametrize("begun", [False, True], ids=["before the first byte", "in the middle"])
async def test_an_error_reaches_the_server_instead_of_leaving_the_request_open(begun: bool) -> None:
    async def fail(consumer: Consumer, _: bytes) -> None:
        if begun:
            await begin_a_stream(consumer)
        raise ZeroDivisionError

    exchange = opened(fail)
    with pytest.raises(ZeroDivisionError):
        await exchange.finished()
    assert not exchange.ended


async def test_an_error_after_the_client_left_is_nobodys() -> None:
    async def fail_when_told_to_stop(consumer: Consumer, _: bytes) -> None:
        await begin_a_stream(consumer)
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the socket is closed")

    exchange = opened(fail_when_told_to_stop)
    await exchange.frame()
    exchange.hang_up()
    await exchange.finished()


async def test_a_finished_handler_ends_the_request_and_leaves_no_task_behind() -> None:
    async def answer(consumer: Consumer, body: bytes) -> None:
        await consumer.send_response(200, b"you said " + body)

    before = asyncio.all_tasks()
    exchange = opened(answer, body=b"hello")
    await exchange.finished()
    assert (exchange.status, bytes(exchange.body), exchange.ended) == (200, b"you said hello", True)
    assert asyncio.all_tasks() - before <= {exchange.task}


async def test_a_body_in_parts_is_put_together() -> None:
    seen = []

    async def look(consumer: Consumer, body: bytes) -> None:
        seen.append(body)

    await opened(look, parts=[b"a", b"", b"bc", b"d"]).finished()
    assert seen == [b"abcd"]


async def test_of_a_body_beyond_the_limit_only_so_much_is_kept() -> None:
    seen = []

    async def look(consumer: Consumer, body: bytes) -> None:
        seen.append(len(body))

    most = StreamingConsumer.max_body_bytes
    await opened(look, parts=[b"x" * (most - 1), b"yz", b"more", b"x" * most]).finished()
    assert seen == [most]


async def test_a_client_that_leaves_before_its_body_is_complete_is_not_served() -> None:
    async def never(consumer: Consumer, body: bytes) -> None:
        raise AssertionError("handled half a request")

    exchange = opened(never, parts=[b"half"], rest_follows=True)
    exchange.hang_up()
    await exchange.finished()
    assert exchange.status == 0


async def test_a_server_that_shuts_down_stops_the_handler_too() -> None:
    stopped = asyncio.Event()

    async def stream_for_ever(consumer: Consumer, _: bytes) -> None:
        await begin_a_stream(consumer)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    exchange = opened(stream_for_ever)
    await exchange.frame()
    task: Any = exchange.task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert stopped.is_set()
    assert task.cancelled()
