"""What follows a commit, and cancelling through the api: database first, then queue, stream and hold."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from inference import api as inference
from inference import publishing, runs, store, token_ids
from inference.cell.stream import TERMINAL_SEQ
from inference.errors import RunNotFound
from inference.models import Attempt, Run
from inference.runs import Ending
from inference.testing import queued
from inference.tests.support import ask, empty_account, look
from tests.services import Valkey

Accept = Callable[..., Run]
Status = Run.Status


def hold(run: Run) -> None:
    """The hold that the run was admitted with."""
    cell = store.connector().cell()
    cell.call(empty_account(cell.keys, user_id=run.owner_id))
    key = cell.keys.reservations(run.owner_id)
    cell.run(lambda client: client.hset(key, str(run.admission_id), f"{run.turn}|1|103|0|0"))


def held(run: Run) -> dict[str, str]:
    cell = store.connector().cell()
    rows: dict[str, str] = look(cell, lambda client: client.hgetall(cell.keys.reservations(run.owner_id)))
    return rows


def used(run: Run) -> str:
    cell = store.connector().cell()
    return str(look(cell, lambda client: client.hget(cell.keys.account(run.owner_id), "used")))


def waiting() -> list[str]:
    cell = store.connector().cell()
    return list(cell.run(lambda client: queued(client, cell.keys, pool="default")))


def events(run: Run) -> list[tuple[str, str, dict[str, Any]]]:
    cell = store.connector().cell()
    rows = look(cell, lambda client: client.xrange(cell.keys.stream(run.id)))
    return [(entry_id, fields["t"], json.loads(fields["d"])) for entry_id, fields in rows]


def settled(run: Run, status: Run.Status, *, now: datetime, **more: Any) -> Run:
    runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="i", now=now)
    given: dict[str, Any] = {"text": "", "own_tokens": 0, "output_tokens": 0, **more}
    ended = runs.settle(run_id=run.id, epoch=1, ending=Ending(status=status, **given), now=now)
    assert ended is not None
    return ended


def test_an_enqueued_run_waits_with_its_hold_confirmed(valkey: Valkey, accept: Accept) -> None:
    run = accept()
    hold(run)
    assert publishing.enqueue(run)
    assert waiting() == [f"{run.id}:1"]
    assert held(run) == {str(run.admission_id): "t1|1|103|1|0"}


def test_without_redis_a_run_waits_in_the_database(valkey: Valkey, accept: Accept) -> None:
    run = accept()
    valkey.kill()
    assert not publishing.enqueue(run)


def test_an_announced_end_closes_the_stream_and_settles_the_hold(valkey: Valkey, accept: Accept, now: datetime) -> None:
    run = accept()
    hold(run)
    ended = settled(run, Status.DONE, now=now, text="", own_tokens=5, output_tokens=5)
    for _ in range(2):
        publishing.announce_end(ended, text="")
    assert [(entry_id, kind) for entry_id, kind, _ in events(run)] == [(f"1-{TERMINAL_SEQ}", "completed")]
    assert (held(run), used(run)) == ({}, "8")


def test_an_end_that_cannot_be_announced_is_no_error(valkey: Valkey, accept: Accept, now: datetime) -> None:
    ended = settled(accept(), Status.DONE, now=now)
    valkey.kill()
    publishing.announce_end(ended, text="")


def test_completed_tells_message_reason_usage_and_timings(accept: Accept, now: datetime) -> None:
    run = accept()
    ended = settled(
        run,
        Status.DONE,
        now=now + timedelta(seconds=1),
        own_tokens=5,
        output_tokens=5,
        cached_tokens=2,
        finish_reason="stop",
        first_token_at=now + timedelta(seconds=1, milliseconds=250),
    )
    assert publishing.terminal_event(ended) == (
        "completed",
        {
            "message_id": str(ended.message_id),
            "finish_reason": "stop",
            "usage": {"prompt": 3, "cached": 2, "output": 5},
            "timings": {"queue_ms": 1000, "ttft_ms": 1250},
        },
    )


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.FAILED, Status.INTERRUPTED])
def test_other_ends_tell_a_code_a_text_and_the_usage(accept: Accept, now: datetime, status: Run.Status) -> None:
    ended = settled(accept(), status, now=now, own_tokens=5, output_tokens=5, error_code="some_code")
    kind, data = publishing.terminal_event(ended)
    assert (kind, data["code"], data["usage"]) == (status.value, "some_code", {"prompt": 3, "cached": 0, "output": 5})
    assert data["text"]
    assert data["message_id"] == str(ended.message_id)


def test_cancelling_a_waiting_run_ends_it_everywhere_at_once(valkey: Valkey, accept: Accept, now: datetime) -> None:
    run = accept()
    hold(run)
    publishing.enqueue(run)
    info = inference.cancel(owner_id=run.owner_id, run_id=run.id, now=now)
    assert (info.status, info.is_active, info.timings.release_ms) == ("cancelled", False, 0)
    assert waiting() == []
    assert [kind for _, kind, _ in events(run)] == ["queued", "cancelled"]
    assert (held(run), used(run)) == ({}, "0")


def test_cancelling_a_run_that_waits_for_its_next_epoch_keeps_what_it_showed(
    valkey: Valkey, accept: Accept, now: datetime
) -> None:
    run = accept()
    Run.objects.filter(id=run.id).update(epoch=2, carry_ids=token_ids.pack([7]), carry_text="so far")
    info = inference.cancel(owner_id=run.owner_id, run_id=run.id, now=now)
    assert (info.status, info.usage.output) == ("cancelled", 1)
    # The stream was lost, so followers are told to fetch what it does not hold.
    assert [(entry_id, data["last"]) for entry_id, _, data in events(run)] == [(f"2-{TERMINAL_SEQ}", None)]


def test_cancelling_a_streaming_run_flags_it_and_tells_its_worker(
    valkey: Valkey, accept: Accept, now: datetime
) -> None:
    run = accept()
    runs.claim(run_id=run.id, epoch=1, worker="boot-7", incarnation="i", now=now)
    cell = store.connector().cell()
    client: Any = cell.client
    listener = client.pubsub()
    try:
        listener.subscribe(cell.keys.control_channel("boot-7"))
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        info = inference.cancel(owner_id=run.owner_id, run_id=run.id, now=now)
        assert listener.get_message(timeout=5)["data"] == f"cancel {run.id}"
    finally:
        listener.close()
    assert (info.status, info.is_active) == ("streaming", True)
    assert Run.objects.get(id=run.id).cancel_requested_at == now


def test_cancelling_works_without_redis(valkey: Valkey, accept: Accept, now: datetime) -> None:
    queued, streaming = accept(), accept()
    runs.claim(run_id=streaming.id, epoch=1, worker="w", incarnation="i", now=now)
    valkey.kill()
    assert inference.cancel(owner_id=queued.owner_id, run_id=queued.id, now=now).status == "cancelled"
    inference.cancel(owner_id=streaming.owner_id, run_id=streaming.id, now=now)
    assert Run.objects.get(id=streaming.id).cancel_requested_at == now


def test_cancelling_what_is_over_changes_nothing(valkey: Valkey, accept: Accept, now: datetime) -> None:
    ended = settled(accept(), Status.DONE, now=now)
    assert inference.cancel(owner_id=ended.owner_id, run_id=ended.id, now=now).status == "done"
    assert events(ended) == []


def test_nobody_cancels_another_users_run(accept: Accept, now: datetime) -> None:
    run = accept()
    with pytest.raises(RunNotFound):
        inference.cancel(owner_id=uuid4(), run_id=run.id, now=now)
    assert Run.objects.get(id=run.id).status == Status.QUEUED


def test_a_cancel_that_meets_a_claim_flags_the_owner(
    valkey: Valkey, accept: Accept, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = accept()
    cancel_queued = runs.cancel_queued

    def claimed_first(**arguments: Any) -> Any:
        monkeypatch.setattr(runs, "cancel_queued", cancel_queued)
        runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="i", now=now)
        return cancel_queued(**arguments)

    monkeypatch.setattr(runs, "cancel_queued", claimed_first)
    assert inference.cancel(owner_id=run.owner_id, run_id=run.id, now=now).status == "streaming"
    assert Run.objects.get(id=run.id).cancel_requested_at == now


def test_a_cancel_that_meets_a_requeue_ends_the_run(
    valkey: Valkey, accept: Accept, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streaming at the first look, waiting for its next epoch at the second: it must not slip through."""
    run = accept()
    runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="i", now=now)
    request_cancel = runs.request_cancel

    def requeued_first(**arguments: Any) -> Any:
        monkeypatch.setattr(runs, "request_cancel", request_cancel)
        Run.objects.filter(id=run.id).update(status=Status.QUEUED, epoch=2)
        return request_cancel(**arguments)

    monkeypatch.setattr(runs, "request_cancel", requeued_first)
    assert inference.cancel(owner_id=run.owner_id, run_id=run.id, now=now).status == "cancelled"


def test_an_accepted_run_wakes_a_worker_of_its_pool(valkey: Valkey, accept: Accept) -> None:
    run = accept()
    inference.enqueue(inference.run_info(run))
    assert waiting() == [f"{run.id}:1"]
    [ticket] = ask(valkey, lambda client: client.lrange("chatsite:celery:pool.default", 0, -1))
    assert json.loads(ticket)["headers"]["task"] == "inference.tasks.generate"


def test_without_redis_accepting_still_succeeds(valkey: Valkey, accept: Accept) -> None:
    run = accept()
    valkey.kill()
    inference.enqueue(inference.run_info(run))
    assert Attempt.objects.count() == 0
