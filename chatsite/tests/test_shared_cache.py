"""The cache, with a real server, with none, and with one that dies."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest

from chatsite import shared_cache
from chatsite.shared_cache import SharedCache
from tests import services
from tests.waiting import wait_for

PARAMS = {"KEY_PREFIX": "test", "OPTIONS": {"MAX_ENTRIES": 1000}}


def cache(location: str) -> SharedCache:
    return SharedCache(location, PARAMS)


@pytest.fixture(scope="module")
def valkey_of_this_module() -> Iterator[services.Valkey]:
    with services.valkey() as server:
        yield server


@pytest.fixture
def server(valkey_of_this_module: services.Valkey) -> services.Valkey:
    """A running server, known to be there."""
    if valkey_of_this_module.process is None:
        valkey_of_this_module.start()
    shared_cache._outage.end()
    return valkey_of_this_module


@pytest.fixture(params=["redis", "memory"])
def shared(request: pytest.FixtureRequest) -> Iterator[SharedCache]:
    if request.param == "memory":
        yield cache("")
        return
    yield cache(request.getfixturevalue("server").url)


@pytest.fixture
def key() -> str:
    return uuid4().hex


def test_what_is_set_is_got_and_can_be_deleted(shared: SharedCache, key: str) -> None:
    assert shared.get(key, "nothing") == "nothing"
    shared.set(key, [1.5, "two"], 30)
    assert shared.get(key) == [1.5, "two"]
    assert shared.delete(key)
    assert not shared.delete(key)
    assert shared.get(key) is None


def test_only_the_first_of_many_adds(shared: SharedCache, key: str) -> None:
    barrier = threading.Barrier(8)
    added: list[bool] = []

    def add() -> None:
        barrier.wait()
        added.append(shared.add(key, 1, 30))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert added.count(True) == 1


def test_an_entry_ends_with_its_time(shared: SharedCache, key: str) -> None:
    shared.set(key, 1, 0.05)
    wait_for(lambda: shared.get(key) is None, what="the entry is gone", seconds=5)


def test_touching_lets_an_entry_live_on(shared: SharedCache, key: str) -> None:
    assert not shared.touch(key, 30)
    shared.set(key, 1, 30)
    assert shared.touch(key, 0.05)
    wait_for(lambda: shared.get(key) is None, what="the entry is gone", seconds=5)


def test_hits_are_counted_once_each_however_many_count(shared: SharedCache, key: str) -> None:
    counts: list[int] = []

    def count() -> None:
        counts.extend(shared.hits([key, f"{key}-other"], seconds=30)[0] for _ in range(25))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == list(range(1, 101))
    assert shared.hits([f"{key}-other"], seconds=30) == [101]


def test_two_processes_count_together_in_redis(server: services.Valkey, key: str) -> None:
    one, other = cache(server.url), cache(server.url)
    one._memory.clear()
    assert one.hits([key], seconds=30) == [1]
    other._memory.clear()
    assert other.hits([key], seconds=30) == [2]


def test_without_redis_counting_goes_on_in_memory_and_nobody_waits_twice(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    shared_cache._outage.end()
    tries = []

    def nowhere() -> str:
        tries.append(1)
        return "redis://127.0.0.1:1/0"

    alone = SharedCache(nowhere, PARAMS)
    assert [alone.hits([key], seconds=30)[0] for _ in range(3)] == [1, 2, 3]
    assert alone.add(f"{key}-lock", 1, 30)
    assert not alone.add(f"{key}-lock", 1, 30)
    assert len(tries) == 1
    shared_cache._outage.end()


def test_a_server_that_comes_back_is_used_again(server: services.Valkey, key: str) -> None:
    shared = cache(server.url)
    shared.hits([key], seconds=30)
    server.kill()
    assert shared.hits([key], seconds=30) == [1]
    server.start()
    shared_cache._outage.end()
    assert shared.hits([key], seconds=30) == [1], "Redis lost its count with its memory"
    assert shared.hits([key], seconds=30) == [2]


def test_what_is_in_redis_is_no_pickle(server: services.Valkey, key: str) -> None:
    with pytest.raises(TypeError):
        cache(server.url).set(key, object(), 30)
