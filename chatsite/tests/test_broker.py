"""A worker's connection to a broker that is lost, as Celery's consumer closes it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Consumer, Queue
from kombu.common import ignore_errors

from chatsite.celery import app
from tests import services


@pytest.fixture
def server(tmp_path: Path) -> Iterator[services.Valkey]:
    broker = services.Valkey(folder=tmp_path)
    broker.start()
    yield broker
    broker.kill()


def consume(channel: Any, queue: str) -> None:
    consumer = Consumer(channel, [Queue(queue, channel=channel)], accept=["json"])
    consumer.register_callback(lambda _body, _message: None)
    consumer.consume()


def test_a_broker_lost_with_messages_unacknowledged_is_closed_without_a_fault(server: services.Valkey) -> None:
    with app.connection_for_write(server.url) as publisher:
        app.send_task("anything", connection=publisher, queue="jobs")
    connection = app.connection_for_read(server.url)
    # As a worker has it: one channel with a task it has not begun, another one, and both wait for more.
    tasks, others = connection.default_channel, connection.channel()
    consume(tasks, "jobs")
    consume(others, "others")
    connection.drain_events(timeout=5)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.05)
    assert tasks.qos._delivered
    server.kill()
    with contextlib.suppress(Exception):
        connection.collect()
    assert not tasks.closed, "the second close has nothing left to do: this test shows nothing"
    ignore_errors(connection, connection.close)
