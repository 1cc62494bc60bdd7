"""Fixtures of all apps' tests: one private Valkey per test process, started when the first test asks for it."""

import os
from collections.abc import Iterator

import pytest
import redis

from inference import store
from tests import services

# Where nothing answers: a test that does not ask for `valkey` must not reach a server that happens to run here.
NOWHERE = "redis://127.0.0.1:1/0"


# What opens the database to a test: pytest-django refuses it to all others.
DATABASE_FIXTURES = frozenset({"db", "transactional_db", "django_db_serialized_rollback", "live_server"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database-only", action="store_true", help="only tests that may use the database")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--database-only`, which another database is tried with, the rest would pass as it did before."""
    if not config.getoption("--database-only"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if _uses_database(item) else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _uses_database(item: pytest.Item) -> bool:
    fixtures: list[str] = getattr(item, "fixturenames", [])
    return item.get_closest_marker("django_db") is not None or not DATABASE_FIXTURES.isdisjoint(fixtures)


@pytest.fixture(scope="session", autouse=True)
def _no_redis_by_chance() -> Iterator[None]:
    before = os.environ.get("REDIS_URL")
    os.environ["REDIS_URL"] = NOWHERE
    yield
    if before is None:
        del os.environ["REDIS_URL"]
    else:
        os.environ["REDIS_URL"] = before


@pytest.fixture(autouse=True)
def _nothing_kept_of_another_test() -> None:
    # Only here: it needs Django's models, which are not ready when this file is loaded.
    from conversations import banner
    from inference import policies

    banner.forget()
    policies.forget()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[services.Valkey]:
    with services.valkey() as server:
        yield server


@pytest.fixture
def valkey(valkey_server: services.Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[services.Valkey]:
    """A running, empty Valkey that this process finds as its Redis; a test may kill and start it."""
    if valkey_server.process is None:
        valkey_server.start()
    monkeypatch.setenv("REDIS_URL", valkey_server.url)
    with redis.Redis(port=valkey_server.port) as client:
        client.flushall()
    yield valkey_server
    store.connector().close()
