"""What Redis holds of runs and users that are gone: nothing, and nothing comes back."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from inference import admission, erasure, publishing, runs, store
from inference.cell import stream
from inference.cell.erasure import forget_runs
from inference.cell.hub import RunState, StreamHub
from inference.cell.link import AsyncConnector, Cell
from inference.cell.stream import START
from inference.models import Run
from inference.tests.support import everything, look
from tests.services import Valkey
from tests.waiting import until


def opened(cell: Cell, run_id: UUID, *, epoch: int = 1, text: str = "a secret") -> Any:
    return cell.call(
        stream.open_epoch(
            cell.keys,
            run_id=run_id,
            epoch=epoch,
            base_epoch=1,
            seq=1,
            started={"epoch": epoch},
            ids_so_far=[1, 2],
            text_so_far=text,
        )
    )


def texts(cell: Cell) -> str:
    """All that the server holds, as far as it can be read."""
    return repr(everything(cell))


def test_a_forgotten_stream_is_gone_and_no_zombie_writes_to_it(cell: Cell) -> None:
    gone, other = uuid4(), uuid4()
    opened(cell, gone)
    opened(cell, other, text="not secret")
    assert cell.call(forget_runs(cell.keys, run_ids=[gone])) == 1
    assert look(cell, lambda client: client.exists(cell.keys.stream(gone))) == 0
    assert look(cell, lambda client: client.pttl(cell.keys.stream_state(gone))) > 0
    assert stream.left_open(cell.client, cell.keys) == {other}

    data = {"text": "a secret"}
    append = stream.append(cell.keys, run_id=gone, epoch=1, seq=3, kind="delta", data=data)
    assert cell.call(append) == "stop"
    assert opened(cell, gone, epoch=2) == ["refused"]
    close = stream.close(
        cell.keys, run_id=gone, epoch=1, base_epoch=1, kind="completed", data={"code": ""}, text="a secret"
    )
    assert cell.call(close) == 0
    assert stream.read_seal(cell.call(stream.seal(cell.keys, run_id=gone, epoch=1, base_epoch=1))) is None
    assert look(cell, lambda client: client.exists(cell.keys.stream(gone))) == 0
    assert look(cell, lambda client: client.xlen(cell.keys.stream(other))) == 2


async def test_whoever_follows_a_forgotten_run_is_let_go_at_once(valkey: Valkey) -> None:
    run_id, connector = uuid4(), AsyncConnector(url=lambda: valkey.url)
    hub, cell = StreamHub(connector=connector), store.connector().cell()
    await asyncio.to_thread(opened, cell, run_id)
    known = RunState(status="streaming", epoch=1, is_terminal=False, message_id=None)
    asked: list[bool] = []

    async def state() -> None:
        asked.append(True)

    seen: list[Any] = []

    async def follow() -> None:
        async for entry in hub.follow(run_id=run_id, after=START, known=known, state=state, quiet_s=3600):
            seen.append(entry)  # noqa: PERF401 - the test looks on meanwhile

    following = asyncio.ensure_future(follow())
    await until(lambda: len(seen) == 2, what="it follows")
    await asyncio.to_thread(cell.call, forget_runs(cell.keys, run_ids=[run_id]))
    async with asyncio.timeout(10):
        await following
    assert (len(seen), asked) == (2, [True]), "nothing is shown of the end that is not there"
    await hub.close()


@pytest.mark.django_db
def test_the_runs_of_a_chat_take_their_streams_along_and_old_ones_ask_redis_for_nothing(
    cell: Cell, accept: Callable[..., Run], django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, chat_id = timezone.now(), uuid4()
    monkeypatch.setattr(erasure, "_BATCH", 2)
    finished = []
    for turn in range(5):
        run = accept(chat_id=chat_id, turn=f"t{turn}", now=now)
        publishing.enqueue(run)
        opened(cell, run.id)
        runs.cancel_queued(run_id=run.id, now=now - timedelta(days=2) if turn == 0 else now)
        look(cell, lambda client: client.set(cell.keys.home(chat_id), "w|1|1"))
        finished.append(run.id)
    running = accept(chat_id=chat_id, turn="live", now=now)
    with django_capture_on_commit_callbacks(execute=True):
        erasure.forget_chat(chat_id=chat_id, now=now)
        assert look(cell, lambda client: client.exists(*map(cell.keys.stream, finished))) == 5, "not before the commit"
    assert list(Run.objects.values_list("id", flat=True)) == [running.id]
    assert look(cell, lambda client: client.exists(*map(cell.keys.stream, finished[1:]))) == 0
    assert look(cell, lambda client: client.exists(cell.keys.stream(finished[0]))) == 1, "it is too old to be there"
    assert look(cell, lambda client: client.exists(cell.keys.home(chat_id))) == 0


@pytest.mark.django_db
def test_a_chat_whose_runs_are_all_old_does_not_wait_for_a_redis_that_is_away(
    accept: Callable[..., Run], django_capture_on_commit_callbacks: Any
) -> None:
    now = timezone.now()
    run = accept(now=now - timedelta(days=3))
    runs.cancel_queued(run_id=run.id, now=now - timedelta(days=2))
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        erasure.forget_chat(chat_id=run.chat_id, now=now)
    assert (callbacks, Run.objects.count()) == ([], 0)


@pytest.mark.django_db
def test_without_redis_a_chat_is_erased_all_the_same(
    accept: Callable[..., Run], now: Any, django_capture_on_commit_callbacks: Any
) -> None:
    run = accept()
    runs.cancel_queued(run_id=run.id, now=now)
    with django_capture_on_commit_callbacks(execute=True):
        erasure.forget_chat(chat_id=run.chat_id, now=now)
        erasure.forget_user(user_id=run.owner_id, now=now)
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_a_forgotten_user_has_no_key_left(
    cell: Cell, ada: Any, accept: Callable[..., Run], now: Any, django_capture_on_commit_callbacks: Any
) -> None:
    accept()
    admission.rebuild(cell, user_id=ada.pk, now=now)
    admission.elected(cell, user_id=ada.pk)
    assert str(ada.pk) in texts(cell)
    assert look(cell, lambda client: client.sismember(cell.keys.holders(), str(ada.pk)))
    with django_capture_on_commit_callbacks(execute=True):
        erasure.forget_user(user_id=ada.pk, now=now)
    assert str(ada.pk) not in texts(cell)
    assert not look(cell, lambda client: client.sismember(cell.keys.holders(), str(ada.pk)))
