"""Connections bound to one incarnation of Redis: nothing is sent twice, nothing reaches a server that restarted."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import redis

from inference import store, tickets
from inference.cell import admission as cell_admission
from inference.cell import erasure, queue, stream, workers
from inference.cell.admission import Admitted
from inference.cell.errors import StoreUnavailable
from inference.cell.keys import LAYOUT, Keys
from inference.cell.link import AsyncConnector, Cell, Connector, ScriptCall
from inference.tests.support import ask, connections, hung, restart
from inference.tests.yard import Yard
from tests.services import Valkey
from tests.waiting import until, wait_for


@pytest_asyncio.fixture
async def connector(valkey: Valkey) -> AsyncIterator[AsyncConnector]:
    opened = AsyncConnector(url=lambda: valkey.url)
    yield opened
    await opened.close()


def look(connected: Any) -> ScriptCall:
    """Some harmless script."""
    return queue.claim(connected.keys, pool="p", boot_id="w", room_tokens=0, now_ms=0)


def blocked_clients(valkey: Valkey) -> int:
    return int(ask(valkey, lambda client: client.info("clients")["blocked_clients"]))


def test_keys_name_the_incarnation_and_the_cell(valkey: Valkey) -> None:
    connector = Connector(url=lambda: valkey.url, tag="c7")
    cell = connector.cell()
    run_id = ask(valkey, lambda client: client.info("server")["run_id"])
    assert cell.keys.queue("p") == f"{{c7}}:{run_id}:{LAYOUT}:queue:p"
    connector.close()


def test_a_cell_is_kept_while_it_works(valkey: Valkey) -> None:
    assert store.connector().cell() is store.connector().cell()


def test_after_a_restart_the_old_cell_is_unavailable_and_the_next_one_new(valkey: Valkey) -> None:
    before = store.connector().cell()
    restart(valkey)
    with pytest.raises(StoreUnavailable):
        before.call(look(before))
    after = store.connector().cell()
    assert after.keys.incarnation != before.keys.incarnation
    assert after.call(look(after)) is None


def test_what_was_idle_during_a_restart_works_at_the_first_try(valkey: Valkey) -> None:
    connector = Connector(url=lambda: valkey.url)
    before = connector.cell()
    restart(valkey)
    incarnation, claimed = connector.run(lambda cell: (cell.keys.incarnation, cell.call(look(cell))))
    assert incarnation != before.keys.incarnation
    assert claimed is None
    connector.close()


def test_an_operation_that_may_have_arrived_is_not_repeated(valkey: Valkey) -> None:
    connector = Connector(url=lambda: valkey.url)
    begun: list[str] = []

    def operation(cell: Cell) -> None:
        begun.append(cell.keys.incarnation)
        valkey.kill()
        cell.call(look(cell))

    with pytest.raises(StoreUnavailable):
        connector.run(operation)
    assert len(begun) == 1


def test_an_old_cell_never_writes_into_the_new_incarnation(valkey: Valkey) -> None:
    before = store.connector().cell()
    restart(valkey)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            before.call(workers.farewell(before.keys, pool="p", boot_id="w"))
    assert "cmdstat_fcall" not in ask(valkey, lambda client: client.info("commandstats"))


def test_without_a_server_there_is_no_cell(valkey: Valkey) -> None:
    valkey.kill()
    with pytest.raises(StoreUnavailable):
        store.connector().cell()
    valkey.start()
    store.connector().cell()


def test_a_server_that_dies_in_the_middle_of_an_operation_makes_it_unavailable(valkey: Valkey) -> None:
    cell = store.connector().cell()
    failures: list[Exception] = []

    def wait_in_vain() -> None:
        try:
            cell.run(lambda client: client.blpop(["nothing"], timeout=1.5))
        except StoreUnavailable as error:
            failures.append(error)

    thread = threading.Thread(target=wait_in_vain)
    thread.start()
    wait_for(lambda: blocked_clients(valkey) == 1, what="the operation has begun")
    valkey.kill()
    thread.join(timeout=10)
    assert len(failures) == 1


def test_a_fault_in_a_script_is_raised_as_it_is_and_keeps_the_cell(valkey: Valkey) -> None:
    cell = store.connector().cell()
    cell.run(lambda client: client.hset(cell.keys.pool("p"), "not", "a string"))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        cell.call(look(cell))
    assert store.connector().cell() is cell


def test_a_server_that_forgot_the_scripts_is_reconnected_to(valkey: Valkey) -> None:
    cell = store.connector().cell()
    cell.run(lambda client: client.function_flush("SYNC"))
    with pytest.raises(StoreUnavailable):
        cell.call(look(cell))
    again = store.connector().cell()
    assert again.call(look(again)) is None


def set_config(valkey: Valkey, name: str, value: str) -> None:
    ask(valkey, lambda client: client.config_set(name, value))


@contextlib.contextmanager
def out_of_memory(valkey: Valkey) -> Iterator[None]:
    set_config(valkey, "maxmemory", "1")
    yield
    set_config(valkey, "maxmemory", "0")


@contextlib.contextmanager
def without_replicas(valkey: Valkey) -> Iterator[None]:
    set_config(valkey, "min-replicas-to-write", "1")
    yield
    set_config(valkey, "min-replicas-to-write", "0")


@contextlib.contextmanager
def demoted(valkey: Valkey) -> Iterator[None]:
    ask(valkey, lambda client: client.replicaof("127.0.0.1", 1))
    yield
    ask(valkey, lambda client: client.replicaof("no", "one"))


@contextlib.contextmanager
def unable_to_save(valkey: Valkey) -> Iterator[None]:
    """A full disk, say: the last snapshot failed, here because a folder stands in its place."""
    in_its_place = valkey.folder / "dump.rdb"
    in_its_place.unlink(missing_ok=True)
    in_its_place.mkdir()
    set_config(valkey, "save", "3600 1")
    with contextlib.suppress(redis.ResponseError):
        ask(valkey, lambda client: client.bgsave())
    wait_for(
        lambda: ask(valkey, lambda client: client.info("persistence")["rdb_last_bgsave_status"]) == "err",
        what="a save failed",
    )
    yield
    set_config(valkey, "save", "")
    in_its_place.rmdir()


@contextlib.contextmanager
def busy(valkey: Valkey) -> Iterator[None]:
    """Somebody's script runs for ever."""
    set_config(valkey, "busy-reply-threshold", "10")

    def run_for_ever() -> None:
        with contextlib.suppress(redis.RedisError), redis.Redis(port=valkey.port) as client:
            client.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            ask(valkey, lambda client: client.ping())
        except redis.ResponseError:
            return True
        return False

    script = threading.Thread(target=run_for_ever)
    script.start()
    wait_for(is_busy, what="the server is busy")
    yield
    ask(valkey, lambda client: client.script_kill())
    script.join(timeout=10)


REFUSALS = [out_of_memory, without_replicas, demoted, unable_to_save, busy]


def opening(keys: Keys) -> ScriptCall:
    """Some script that writes."""
    return stream.open_epoch(
        keys,
        run_id=uuid4(),
        epoch=1,
        base_epoch=1,
        seq=1,
        started={"epoch": 1},
        ids_so_far=(),
        text_so_far="",
    )


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_server_that_refuses_to_write_is_unavailable_until_it_writes_again(
    valkey: Valkey, refusal: Callable[[Valkey], AbstractContextManager[None]]
) -> None:
    before = store.connector().cell()
    with refusal(valkey):
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.connector().run(lambda cell: cell.call(opening(cell.keys)))
        with pytest.raises(StoreUnavailable):
            before.call(opening(before.keys))
    assert not ask(valkey, lambda client: client.keys("*"))
    assert store.connector().run(lambda cell: cell.call(opening(cell.keys)))[0] == "ok"


def test_a_server_without_memory_lets_go_of_what_it_holds(valkey: Valkey) -> None:
    yard = Yard(store.connector().cell())
    yard.beat(boot_id="w/1", slots=9)
    yard.line_up(yard.user, 2)
    runs = [yard.take(boot_id="w/1") for _ in range(2)]
    [waits] = yard.line_up(uuid4(), 1)
    users = [uuid4(), uuid4()]
    held = [yard.admit(user_id=user, turn=str(user)) for user in users]
    admissions = [one.admission_id for one in held if isinstance(one, Admitted)]
    keys = yard.keys
    settled = cell_admission.settle(keys, user_id=users[1], admission_id=admissions[1], tokens=5, now_ms=yard.now)
    with out_of_memory(valkey):
        assert yard.finish(runs[0], boot_id="w/1") == 1
        assert yard.abort(runs[1], boot_id="w/1") == 1
        assert yard.expire(waits) == 1
        assert yard.release(users[0], admissions[0]) == 1
        assert yard.cell.call(settled) == 1
        assert yard.gone() == 0
        assert yard.leave(boot_id="w/1") == 0
        assert yard.cell.call(erasure.forget_runs(keys, run_ids=[waits.run_id])) == 1


@pytest.mark.parametrize("refusal", [out_of_memory, without_replicas, demoted])
def test_a_server_that_refuses_to_write_is_read_from(
    valkey: Valkey, refusal: Callable[[Valkey], AbstractContextManager[None]]
) -> None:
    with refusal(valkey):
        cell = store.connector().cell()
        assert cell.run(lambda client: client.xrange(cell.keys.stream(uuid4()))) == []
        with pytest.raises(StoreUnavailable):
            cell.call(look(cell))


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_async_a_server_that_refuses_to_write_is_unavailable_until_it_writes_again(
    valkey: Valkey, connector: AsyncConnector, refusal: Callable[[Valkey], AbstractContextManager[None]]
) -> None:
    before = await connector.cell()
    with refusal(valkey):
        with pytest.raises(StoreUnavailable):
            await before.call(opening(before.keys))
        with pytest.raises(StoreUnavailable):
            again = await connector.cell()
            await again.call(opening(again.keys))
    after = await connector.cell()
    assert (await after.call(opening(after.keys)))[0] == "ok"


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_ticket_that_the_broker_refuses_is_not_sent_and_no_error(
    valkey: Valkey, refusal: Callable[[Valkey], AbstractContextManager[None]]
) -> None:
    assert tickets.send(pool="default")
    with refusal(valkey):
        assert not tickets.send(pool="default")
    assert tickets.send(pool="default")


def test_threads_that_wait_for_a_hung_server_wait_once_and_together(valkey: Valkey) -> None:
    connector = Connector(url=lambda: valkey.url, timeout_s=1.5)
    attempts = 0
    connect = connector._connect

    def counted() -> Any:
        nonlocal attempts
        attempts += 1
        assert everybody_waits.wait(10)
        return connect()

    connector._connect = counted  # type: ignore[method-assign]
    everybody_waits = threading.Event()
    failures: list[Exception] = []

    def ask() -> None:
        try:
            connector.cell()
        except StoreUnavailable as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    with hung(valkey):
        threads[0].start()
        wait_for(lambda: attempts == 1, what="the first connects")
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: all(thread.is_alive() for thread in threads), what="the others wait")
        everybody_waits.set()
        for thread in threads:
            thread.join(timeout=10)
    assert len(failures) == 8
    # One or two: a thread that had not yet looked when the first attempt failed makes one of its own.
    assert attempts <= 2


def test_a_dropped_cell_leaves_no_connection_behind(valkey: Valkey) -> None:
    before = connections(valkey)
    cell = store.connector().cell()
    with pytest.raises(StoreUnavailable):
        cell.run(_fail)
    wait_for(lambda: connections(valkey) == before, what="its connections are closed")


def _fail(_: Any) -> None:
    raise redis.ConnectionError("as if the network broke")


async def test_async_a_restart_makes_the_old_cell_unavailable_and_the_next_one_new(
    valkey: Valkey, connector: AsyncConnector
) -> None:
    before = await connector.cell()
    restart(valkey)
    with pytest.raises(StoreUnavailable):
        await before.call(look(before))
    after = await connector.cell()
    assert after.keys.incarnation != before.keys.incarnation
    assert await after.call(look(after)) is None


async def test_async_a_dropped_cell_stays_unavailable(connector: AsyncConnector) -> None:
    cell = await connector.cell()
    cell.drop()
    with pytest.raises(StoreUnavailable):
        await cell.call(look(cell))
    assert await connector.cell() is not cell


async def test_async_one_faulty_script_spoils_no_other_of_its_pipeline(connector: AsyncConnector) -> None:
    cell = await connector.cell()
    await cell.run(lambda client: client.hset(cell.keys.pool("bad"), "not", "a string"))
    good = queue.claim(cell.keys, pool="good", boot_id="w", room_tokens=0, now_ms=0)
    bad = queue.claim(cell.keys, pool="bad", boot_id="w", room_tokens=0, now_ms=0)
    replies = await cell.call_many([good, bad, good])
    assert [replies[0], replies[2]] == [None, None]
    assert isinstance(replies[1], redis.ResponseError)
    with pytest.raises(redis.ResponseError):
        await cell.call(bad)
    assert await connector.cell() is cell


async def test_async_a_server_that_forgot_the_scripts_is_reconnected_to(connector: AsyncConnector) -> None:
    cell = await connector.cell()
    await cell.run(lambda client: client.function_flush("SYNC"))
    with pytest.raises(StoreUnavailable):
        await cell.call_many([look(cell), look(cell)])
    again = await connector.cell()
    assert await again.call(look(again)) is None


async def test_async_a_failure_does_not_cut_other_operations_in_the_middle(
    valkey: Valkey, connector: AsyncConnector
) -> None:
    cell = await connector.cell()
    waiting: Any = asyncio.ensure_future(cell.run(lambda client: client.blpop(["list"], timeout=1.5)))
    await until(lambda: blocked_clients(valkey) == 1, what="the operation has begun")
    cell.drop()
    ask(valkey, lambda client: client.rpush("list", "here"))
    assert list(await waiting) == ["list", "here"]
    await until(lambda: connections(valkey) == 0, what="the dropped cell's connections are closed")


async def test_async_those_who_wait_for_a_hung_server_wait_once_and_together(valkey: Valkey) -> None:
    connector = AsyncConnector(url=lambda: valkey.url, timeout_s=1.5)
    began = asyncio.get_running_loop().time()
    with hung(valkey):
        outcomes = await asyncio.gather(*(connector.cell() for _ in range(50)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 50
    assert asyncio.get_running_loop().time() - began < 5
    await connector.close()
