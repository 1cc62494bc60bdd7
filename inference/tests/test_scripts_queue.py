"""The scripts of the queue and of workers (enqueue, claim, unlease, dequeue, heartbeat, farewell), on a real server."""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from inference.cell import queue, workers
from inference.cell.link import Cell
from inference.cell.queue import Ticketed
from inference.cell.workers import FORGET_MS, LEASE_MS, WORKER_TTL_MS, Report
from inference.tests.support import everything, look

NOW = 1_750_000_000_000


def report(*, slots: int = 4) -> Report:
    return Report(engine="scripted", model="m", slots=slots, running=1, waiting=2, kv_usage=0.5, output_tokens=3)


class Yard:
    """The queue of pool "p" of one user, looked at from outside."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.keys = cell.keys
        self.user = uuid4()

    def enqueue(
        self,
        run_id: UUID,
        *,
        epoch: int = 1,
        base_epoch: int = 1,
        admission_id: UUID | None = None,
        now_ms: int = NOW,
    ) -> list[int]:
        call = queue.enqueue(
            self.keys,
            user_id=self.user,
            pool="p",
            run_id=run_id,
            epoch=epoch,
            base_epoch=base_epoch,
            admission_id=admission_id or uuid4(),
            now_ms=now_ms,
        )
        reply: list[int] = self.cell.call(call)
        return reply

    def claim(self, *, boot_id: str = "w", now_ms: int = NOW) -> Ticketed | None:
        return queue.read_claim(self.cell.call(queue.claim(self.keys, pool="p", boot_id=boot_id, now_ms=now_ms)))

    def unlease(self, run: Ticketed, *, boot_id: str = "w", held_ms: int = -1) -> int:
        call = queue.unlease(self.keys, pool="p", run=run, boot_id=boot_id, held_ms=held_ms)
        done: int = self.cell.call(call)
        return done

    def beat(self, *held: str, boot_id: str = "w", now_ms: int = NOW, slots: int = 4, leaving: bool = False) -> Any:
        call = workers.heartbeat(
            self.keys,
            pool="p",
            boot_id=boot_id,
            report=None if leaving else report(slots=slots),
            held=held,
            now_ms=now_ms,
        )
        return self.cell.call(call)

    def alive(self, *, now_ms: int = NOW) -> list[Report]:
        return self.cell.run(lambda client: workers.alive(client, self.keys, pool="p", now_ms=now_ms))

    @property
    def waiting(self) -> list[str]:
        found: list[str] = look(self.cell, lambda client: client.zrange(self.keys.queue("p"), 0, -1))
        return found

    @property
    def leases(self) -> dict[str, tuple[str, int]]:
        """'run:epoch' → owner and expiry (ms)."""
        rows: Any = look(self.cell, lambda client: client.zrange(self.keys.leases("p"), 0, -1, withscores=True))
        owners: Any = look(self.cell, lambda client: client.hgetall(self.keys.lease_owners("p")))
        assert set(owners) == {name for name, _ in rows}
        return {name: (owners[name], int(expiry)) for name, expiry in rows}

    def stream(self, run_id: UUID) -> list[tuple[str, dict[str, str]]]:
        rows: Any = look(self.cell, lambda client: client.xrange(self.keys.stream(run_id)))
        return list(rows)

    def stream_state(self, run_id: UUID) -> dict[str, str]:
        row: dict[str, str] = look(self.cell, lambda client: client.hgetall(self.keys.stream_state(run_id)))
        return row


@pytest.fixture
def yard(cell: Cell) -> Yard:
    return Yard(cell)


def test_an_enqueued_run_waits_and_its_stream_says_where(yard: Yard) -> None:
    yard.beat()
    run = uuid4()
    assert yard.enqueue(run) == [0, 0]
    assert yard.waiting == [f"{run}:1"]
    [(entry_id, fields)] = yard.stream(run)
    assert (entry_id, fields["t"]) == ("0-1", "queued")
    assert json.loads(fields["d"]) == {"position": 0, "wait_seconds": 0, "pool": "p"}
    assert yard.stream_state(run) == {"epoch": "1", "mode": "wait", "last": "0-0"}


def test_enqueueing_confirms_the_hold(yard: Yard) -> None:
    held = uuid4()
    look(yard.cell, lambda client: client.hset(yard.keys.reservations(yard.user), str(held), f"t|1|5|0|{NOW}"))
    yard.enqueue(uuid4(), admission_id=held)
    rows: Any = look(yard.cell, lambda client: client.hgetall(yard.keys.reservations(yard.user)))
    assert rows == {str(held): f"t|1|5|1|{NOW}"}


def test_enqueueing_without_a_hold_invents_none(yard: Yard) -> None:
    yard.enqueue(uuid4())
    assert not look(yard.cell, lambda client: client.exists(yard.keys.reservations(yard.user)))


def test_enqueueing_again_changes_nothing(yard: Yard) -> None:
    run, held = uuid4(), uuid4()
    yard.enqueue(run, admission_id=held)
    before = everything(yard.cell)
    yard.enqueue(run, admission_id=held, now_ms=NOW + 5000)
    assert everything(yard.cell) == before


def test_enqueueing_again_does_not_touch_an_open_stream(yard: Yard) -> None:
    run = uuid4()
    yard.enqueue(run)
    look(yard.cell, lambda client: client.hset(yard.keys.stream_state(run), "mode", "open"))
    yard.enqueue(run)
    assert yard.stream_state(run)["mode"] == "open"
    assert len(yard.stream(run)) == 1


def test_a_later_epoch_of_the_same_admission_keeps_the_stream(yard: Yard) -> None:
    run = uuid4()
    yard.enqueue(run)
    yard.claim()
    before = (yard.stream(run), yard.stream_state(run))
    yard.enqueue(run, epoch=2, base_epoch=1)
    assert (yard.stream(run), yard.stream_state(run)) == before
    assert yard.waiting == [f"{run}:2"]


def test_a_new_admission_begins_a_fresh_stream(yard: Yard) -> None:
    run = uuid4()
    yard.enqueue(run)
    look(yard.cell, lambda client: client.xadd(yard.keys.stream(run), {"t": "delta", "d": "{}"}, id="1-9"))
    yard.enqueue(run, epoch=2, base_epoch=2)
    assert [entry_id for entry_id, _ in yard.stream(run)] == ["0-1"]
    assert yard.stream_state(run) == {"epoch": "2", "mode": "wait", "last": "0-0"}


def test_the_wait_grows_with_what_is_ahead_and_shrinks_with_slots(yard: Yard) -> None:
    yard.beat(slots=2)
    for _ in range(2):
        yard.enqueue(uuid4())
        yard.claim()
    assert yard.enqueue(uuid4(), now_ms=NOW) == [0, 1]
    assert yard.enqueue(uuid4(), now_ms=NOW + 1) == [1, 2]
    yard.beat(boot_id="another", slots=2)
    assert yard.enqueue(uuid4(), now_ms=NOW + 2) == [2, 1]


def test_expired_leases_make_nobody_wait(yard: Yard) -> None:
    yard.beat(slots=1)
    yard.enqueue(uuid4())
    yard.claim()
    assert yard.enqueue(uuid4(), now_ms=NOW + LEASE_MS + 1) == [0, 0]


def test_a_claim_takes_and_leases_the_longest_waiting_run(yard: Yard) -> None:
    early, late = uuid4(), uuid4()
    yard.enqueue(late, now_ms=NOW + 1)
    yard.enqueue(early, now_ms=NOW)
    assert yard.claim(now_ms=NOW + 2) == Ticketed(run_id=early, epoch=1)
    assert yard.waiting == [f"{late}:1"]
    assert yard.leases == {f"{early}:1": ("w", NOW + 2 + LEASE_MS)}


def test_a_claim_in_an_empty_queue_gets_nothing(yard: Yard) -> None:
    before = everything(yard.cell)
    assert yard.claim() is None
    assert everything(yard.cell) == before


def test_two_workers_never_claim_the_same_run(yard: Yard) -> None:
    for _ in range(5):
        yard.enqueue(uuid4())
    claims = [yard.claim(boot_id=f"w{i % 2}") for i in range(5)]
    assert len(set(claims)) == 5
    assert yard.claim() is None


def test_an_unleased_run_is_nobodys_and_teaches_the_pace(yard: Yard) -> None:
    run = Ticketed(run_id=uuid4(), epoch=1)
    yard.enqueue(run.run_id)
    yard.claim()
    assert yard.unlease(run, held_ms=1000) == 1
    assert yard.leases == {}
    assert look(yard.cell, lambda client: client.hget(yard.keys.pace("p"), "run_ms")) == "1000"


def test_the_pace_is_a_moving_average(yard: Yard) -> None:
    for held_ms in (1000, 2000):
        yard.enqueue(uuid4())
        run = yard.claim()
        assert run is not None
        yard.unlease(run, held_ms=held_ms)
    assert look(yard.cell, lambda client: client.hget(yard.keys.pace("p"), "run_ms")) == "1100"


def test_a_run_that_was_only_dropped_teaches_no_pace(yard: Yard) -> None:
    yard.enqueue(uuid4())
    run = yard.claim()
    assert run is not None
    yard.unlease(run, held_ms=-1)
    assert not look(yard.cell, lambda client: client.exists(yard.keys.pace("p")))


def test_unleasing_twice_or_for_another_worker_changes_nothing(yard: Yard) -> None:
    yard.enqueue(uuid4())
    run = yard.claim()
    assert run is not None
    before = everything(yard.cell)
    assert yard.unlease(run, boot_id="somebody else", held_ms=5) == 0
    assert everything(yard.cell) == before
    assert yard.unlease(run) == 1
    assert yard.unlease(run, held_ms=5) == 0
    assert not look(yard.cell, lambda client: client.exists(yard.keys.pace("p")))


def test_a_dequeued_run_waits_no_more(yard: Yard) -> None:
    run = Ticketed(run_id=uuid4(), epoch=1)
    yard.enqueue(run.run_id)
    assert yard.cell.call(queue.dequeue(yard.keys, pool="p", run=run)) == 1
    assert yard.cell.call(queue.dequeue(yard.keys, pool="p", run=run)) == 0
    assert yard.claim() is None


def test_dequeueing_an_older_epoch_leaves_the_newer_one_waiting(yard: Yard) -> None:
    run = uuid4()
    yard.enqueue(run, epoch=2)
    assert yard.cell.call(queue.dequeue(yard.keys, pool="p", run=Ticketed(run_id=run, epoch=1))) == 0
    assert yard.waiting == [f"{run}:2"]


def test_a_heartbeat_reports_and_renews_what_the_worker_holds(yard: Yard) -> None:
    yard.enqueue(uuid4())
    run = yard.claim()
    assert yard.beat(str(run), now_ms=NOW + 2000) == []
    assert yard.leases == {str(run): ("w", NOW + 2000 + LEASE_MS)}
    assert yard.alive(now_ms=NOW + 2000) == [report()]


def test_a_heartbeat_cannot_renew_what_another_holds(yard: Yard) -> None:
    yard.enqueue(uuid4())
    run = yard.claim(boot_id="w")
    assert yard.beat(str(run), boot_id="zombie", now_ms=NOW + 2000) == [str(run)]
    assert yard.leases == {str(run): ("w", NOW + LEASE_MS)}


def test_after_a_restart_of_redis_the_next_heartbeat_takes_the_leases_back(yard: Yard) -> None:
    run = Ticketed(run_id=uuid4(), epoch=3)
    assert yard.beat(str(run)) == []
    assert yard.leases == {str(run): ("w", NOW + LEASE_MS)}


@pytest.mark.parametrize(("silent_ms", "alive"), [(WORKER_TTL_MS, True), (WORKER_TTL_MS + 1, False)])
def test_a_silent_worker_is_not_alive(yard: Yard, silent_ms: int, alive: bool) -> None:
    yard.beat()
    assert bool(yard.alive(now_ms=NOW + silent_ms)) == alive


def test_long_silent_workers_and_their_leases_are_forgotten(yard: Yard) -> None:
    yard.enqueue(uuid4())
    yard.beat(boot_id="gone")
    yard.claim(boot_id="gone")
    yard.beat(boot_id="w", now_ms=NOW + FORGET_MS - 1)
    assert len(yard.leases) == 1
    yard.beat(boot_id="w", now_ms=NOW + FORGET_MS + LEASE_MS)
    assert yard.leases == {}
    assert look(yard.cell, lambda client: client.hkeys(yard.keys.worker_reports("p"))) == ["w"]


def test_a_leaving_worker_is_not_alive_and_keeps_what_it_holds(yard: Yard) -> None:
    yard.enqueue(uuid4())
    yard.beat()
    run = yard.claim()
    yard.beat(str(run), now_ms=NOW + 2000, leaving=True)
    assert yard.alive(now_ms=NOW + 2000) == []
    assert yard.leases == {str(run): ("w", NOW + 2000 + LEASE_MS)}


def test_a_worker_that_said_farewell_is_not_alive(yard: Yard) -> None:
    yard.beat(boot_id="w")
    yard.beat(boot_id="another")
    assert yard.cell.call(workers.farewell(yard.keys, pool="p", boot_id="w")) == 1
    assert yard.cell.call(workers.farewell(yard.keys, pool="p", boot_id="w")) == 0
    assert len(yard.alive()) == 1


def test_nobody_alive_is_no_error(yard: Yard) -> None:
    assert yard.alive() == []
