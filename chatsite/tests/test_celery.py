"""Publishing tasks."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from celery._state import get_current_app
from kombu.exceptions import OperationalError

from chatsite.celery import app, broker_url


@pytest.fixture
def dead_broker() -> str:
    """An address of this machine at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def hung_broker() -> Iterator[str]:
    """A server that accepts connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


@pytest.mark.parametrize("broker", ["dead_broker", "hung_broker"])
def test_publishing_to_a_broker_that_is_away_fails_within_two_seconds(
    broker: str, request: pytest.FixtureRequest
) -> None:
    with app.connection_for_write(request.getfixturevalue(broker)) as connection:
        begun = time.monotonic()
        with pytest.raises(OperationalError):
            app.send_task("anything", connection=connection, queue="pool.default")
        assert time.monotonic() - begun < 2


def test_the_broker_is_the_redis_known_when_a_connection_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for port in (4711, 4712):
        monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{port}/0")
        for connect in (app.connection, app.connection_for_read, app.connection_for_write):
            with connect() as connection:
                assert (connection.transport_cls, connection.port) == ("redis", port)


def test_without_any_redis_connecting_fails_like_a_redis_that_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(OSError, match="REDIS_URL"):
        app.connection_for_write()


@pytest.mark.parametrize(
    ("redis_url", "expected"),
    [
        ("redis://u:p@h:1/2", "redis://u:p@h:1/2"),
        ("unix:///run/valkey.sock?db=1", "redis+socket:///run/valkey.sock?virtual_host=1"),
        ("unix:///run/valkey.sock", "redis+socket:///run/valkey.sock?virtual_host=0"),
        ("rediss://h:1/0", "rediss://h:1/0?ssl_cert_reqs=required"),
        ("rediss://h:1/0?ssl_cert_reqs=none", "rediss://h:1/0?ssl_cert_reqs=none"),
    ],
)
def test_every_kind_of_redis_url_serves_as_broker(redis_url: str, expected: str) -> None:
    assert broker_url(redis_url) == expected


def test_a_request_thread_publishes_through_this_app() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_current_app).result() is app


def test_tasks_are_jobs_unless_their_publisher_names_a_queue() -> None:
    assert app.conf.task_default_queue == "jobs"
    assert app.amqp.router.route({}, "anything")["queue"].name == "jobs"
    assert app.amqp.router.route({"queue": "pool.default"}, "anything")["queue"].name == "pool.default"


def test_results_are_kept_nowhere() -> None:
    assert app.conf.task_ignore_result
    assert app.conf.result_backend is None


def test_jobs_knows_every_task_that_beat_asks_for() -> None:
    app.loader.import_default_modules()
    asked_for = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert asked_for
    assert asked_for <= set(app.tasks)
