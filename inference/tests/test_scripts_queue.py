"""The scripts of a pool's queue and its workers, on a real server: what each keeps, changes and replies.

Who is served when: test_scheduling.py.
"""

import dataclasses
import json
from typing import Any
from uuid import uuid4

import pytest
import redis
from uuid_utils.compat import uuid7

from inference.cell import workers
from inference.cell.link import Cell
from inference.cell.queue import Later, Placed, Ticketed
from inference.cell.workers import FORGET_MS, LEASE_MS, WORKER_TTL_MS
from inference.tests.support import everything, look
from inference.tests.yard import NOW, Yard, report


@pytest.fixture
def yard(cell: Cell) -> Yard:
    return Yard(cell)


def test_an_enqueued_run_waits_and_its_stream_says_where(yard: Yard) -> None:
    yard.beat()
    run = uuid7()
    assert yard.put(run) == Placed(position=0, wait_s=0, boot_id="w")
    assert yard.waiting == [f"{run}:1"]
    [(entry_id, fields)] = yard.stream(run)
    assert (entry_id, fields["t"]) == ("0-1", "queued")
    assert json.loads(fields["d"]) == {"position": 0, "wait_seconds": 0, "pool": "p"}
    assert yard.stream_state(run) == {"epoch": "1", "mode": "wait", "last": "0-0"}


def test_enqueueing_confirms_the_hold(yard: Yard) -> None:
    held = uuid7()
    look(yard.cell, lambda client: client.hset(yard.keys.reservations(yard.user), str(held), f"t|1|5|0|{NOW}"))
    yard.put(admission_id=held)
    rows: Any = look(yard.cell, lambda client: client.hgetall(yard.keys.reservations(yard.user)))
    assert rows == {str(held): f"t|1|5|1|{NOW}"}


def test_enqueueing_without_a_hold_invents_none(yard: Yard) -> None:
    yard.put()
    assert not look(yard.cell, lambda client: client.exists(yard.keys.reservations(yard.user)))


@pytest.mark.parametrize("epoch", [1, 2])
def test_enqueueing_again_changes_nothing(yard: Yard, epoch: int) -> None:
    run = uuid7()
    placed = yard.put(run, epoch=epoch)
    before = everything(yard.cell)
    yard.now += 5000
    assert yard.put_again(yard.known[Ticketed(run_id=run, epoch=epoch)]) == placed
    assert everything(yard.cell) == before


def test_what_was_told_of_a_place_is_told_again(yard: Yard) -> None:
    yard.put()
    run = uuid7()
    placed = yard.put(run)
    assert placed.position == 1
    assert yard.put_again(yard.known[Ticketed(run_id=run, epoch=1)]) == placed


def test_enqueueing_again_does_not_touch_an_open_stream(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    look(yard.cell, lambda client: client.set(yard.keys.stream_state(run), "1|open|1-1|"))
    yard.put(run)
    assert yard.stream_state(run)["mode"] == "open"
    assert len(yard.stream(run)) == 1


def test_a_claimed_run_is_not_queued_again_while_its_lease_lasts(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    yard.take()
    yard.put(run)
    assert yard.waiting == []


def test_a_run_whose_claimer_died_before_it_said_so_waits_again(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    yard.take(boot_id="dead")
    yard.now += LEASE_MS + 1
    yard.put(run)
    assert (yard.waiting, yard.leases) == ([f"{run}:1"], {})
    assert yard.take() == Ticketed(run_id=run, epoch=1)


def test_a_later_epoch_of_the_same_admission_keeps_the_stream(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    yard.take()
    before = (yard.stream(run), yard.stream_state(run))
    yard.put(run, epoch=2, base_epoch=1)
    assert (yard.stream(run), yard.stream_state(run)) == before
    assert yard.waiting == [f"{run}:2"]


def test_a_new_admission_begins_a_fresh_stream(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    look(yard.cell, lambda client: client.xadd(yard.keys.stream(run), {"t": "delta", "d": "{}"}, id="1-9"))
    yard.put(run, epoch=2, base_epoch=2)
    assert [entry_id for entry_id, _ in yard.stream(run)] == ["0-1"]
    assert yard.told(run)[0]["reason"] == "retry"
    assert yard.stream_state(run) == {"epoch": "2", "mode": "wait", "last": "0-0"}


def test_what_redis_has_of_a_pool_counts_whatever_was_saved_last(yard: Yard) -> None:
    pool = yard.keys.pool("p")
    yard.put()
    look(yard.cell, lambda client: client.copy(pool, f"{pool}:before"))
    yard.put()
    look(yard.cell, lambda client: client.copy(f"{pool}:before", pool, replace=True))
    yard.put()
    assert yard.state.waiting == 2


def test_a_script_that_fails_leaves_the_pool_as_it_was(yard: Yard) -> None:
    users = f"{yard.keys.queue('p')}:u:free"
    yard.put(tier="pro")
    look(yard.cell, lambda client: client.set(users, "no users"))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        yard.put(tier="free", user_id=uuid4())
    look(yard.cell, lambda client: client.delete(users))
    yard.put(tier="free", user_id=uuid4())
    assert yard.state.waiting == 2


def test_a_claim_leases_a_run(yard: Yard) -> None:
    early, late = uuid7(), uuid7()
    yard.put(early)
    yard.put(late)
    yard.now += 2
    assert yard.take() == Ticketed(run_id=early, epoch=1)
    assert yard.waiting == [f"{late}:1"]
    assert yard.leases == {f"{early}:1": ("w", NOW + 2 + LEASE_MS)}


def test_a_claim_in_an_empty_queue_gets_nothing(yard: Yard) -> None:
    before = everything(yard.cell)
    assert yard.ask() is None
    assert everything(yard.cell) == before


def test_two_workers_never_claim_the_same_run(yard: Yard) -> None:
    for _ in range(5):
        yard.put()
    claims = [yard.take(boot_id=f"w{i % 2}") for i in range(5)]
    assert len(set(claims)) == 5
    assert yard.ask() is None


def test_a_finished_run_is_nobodys_and_teaches_how_long_runs_take(yard: Yard) -> None:
    yard.beat()
    yard.put()
    run = yard.take()
    before = yard.state.hold_ms
    assert yard.finish(run, held_ms=round(before) + 2000) == 1
    assert yard.leases == {}
    assert yard.state.hold_ms == pytest.approx(before + 100)


def test_a_run_that_was_only_dropped_teaches_nothing(yard: Yard) -> None:
    yard.put()
    before = yard.state.hold_ms
    assert yard.abort(yard.take()) == 1
    assert (yard.leases, yard.state.hold_ms) == ({}, before)


def test_giving_back_twice_or_for_another_worker_changes_nothing(yard: Yard) -> None:
    yard.put()
    run = yard.take()
    before = everything(yard.cell)
    assert yard.finish(run, boot_id="somebody else") == 0
    assert yard.abort(run, boot_id="somebody else") == 0
    assert everything(yard.cell) == before
    assert yard.finish(run) == 1
    before = everything(yard.cell)
    assert yard.finish(run) == yard.abort(run) == yard.abort(run, boot_id=None) == 0
    assert everything(yard.cell) == before


def test_whoever_holds_a_lost_run_holds_it_no_more(yard: Yard) -> None:
    yard.put()
    run = yard.take(boot_id="gone")
    assert yard.abort(run, boot_id=None) == 1
    assert yard.leases == {}


def test_an_expired_run_waits_no_more(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    assert yard.expire(Ticketed(run_id=run, epoch=1)) == 1
    assert yard.expire(Ticketed(run_id=run, epoch=1)) == 0
    assert yard.ask() is None


def test_expiring_an_older_epoch_leaves_the_newer_one_waiting(yard: Yard) -> None:
    run = uuid7()
    yard.put(run, epoch=2)
    assert yard.expire(Ticketed(run_id=run, epoch=1)) == 0
    assert yard.waiting == [f"{run}:2"]
    assert yard.expire(Ticketed(run_id=run, epoch=2)) == 1
    assert yard.ask() is None


# Room.


def test_a_worker_with_room_is_named_for_each_run_it_has_room_for(yard: Yard) -> None:
    yard.beat(slots=2)
    assert [yard.put().boot_id for _ in range(3)] == ["w", "w", ""]


def test_the_worker_with_the_most_room_is_named(yard: Yard) -> None:
    yard.beat(boot_id="busy", slots=4, room=1)
    yard.beat(boot_id="idle", slots=4, room=3)
    assert [yard.put().boot_id for _ in range(4)] == ["idle", "idle", "idle", "busy"]


def test_a_worker_that_is_silent_or_leaves_is_not_named(yard: Yard) -> None:
    yard.beat(boot_id="dead", slots=9)
    yard.beat(boot_id="leaving", slots=5)
    yard.now += WORKER_TTL_MS + 1
    yard.beat(boot_id="leaving", slots=5)
    yard.beat(boot_id="leaving", leaving=True)
    yard.beat(boot_id="w", slots=1)
    assert [yard.put().boot_id for _ in range(2)] == ["w", ""]
    assert yard.state.slots == 1


def test_a_free_slot_is_counted_as_taken_once_for_a_run_that_its_worker_was_told_of(yard: Yard) -> None:
    yard.beat(slots=4)
    yard.put()
    assert yard.room() == 3
    assert isinstance(yard.ask(expected=True), Ticketed)
    assert yard.room() == 3
    yard.put(user_id=uuid7())
    yard.put(user_id=uuid7())
    assert yard.room() == 1
    assert isinstance(yard.ask(), Ticketed), "as a thread does that has finished another"
    assert yard.room() == 0


def test_a_worker_that_comes_for_a_run_in_vain_has_its_room_again(yard: Yard) -> None:
    yard.beat(slots=4)
    yard.put()
    yard.take(boot_id="another")
    assert yard.room() == 3
    assert yard.ask(expected=True) is None
    assert yard.room() == 4


def test_whatever_was_counted_a_heartbeat_tells_the_truth(yard: Yard) -> None:
    yard.beat(slots=4)
    yard.put()
    run = yard.take()
    yard.beat(str(run), slots=4)
    assert yard.room() == 3, "its report is older than what it holds"
    yard.finish(run)
    assert yard.room() == 4


def test_a_run_waits_for_memory(yard: Yard) -> None:
    yard.beat()
    yard.put(prompt_tokens=300, max_output_tokens=50)
    assert isinstance(yard.ask(room_tokens=349), Later)
    assert yard.room() == 0
    assert yard.leases == {}
    yard.take(room_tokens=350)


def test_a_begun_run_waits_for_memory_too(yard: Yard) -> None:
    yard.put(epoch=2, prompt_tokens=300, max_output_tokens=50)
    assert isinstance(yard.ask(room_tokens=349), Later)
    yard.take(room_tokens=350)


# Heartbeats.


def test_a_heartbeat_reports_and_renews_what_the_worker_holds(yard: Yard) -> None:
    yard.put()
    run = yard.take()
    yard.now += 2000
    assert yard.beat(str(run)) == []
    assert yard.leases == {str(run): ("w", NOW + 2000 + LEASE_MS)}
    assert yard.alive() == [report()]


def test_a_renewed_lease_keeps_what_the_run_was_charged(yard: Yard) -> None:
    yard.put()
    run = yard.take()
    yard.beat(str(run))
    owner = look(yard.cell, lambda client: client.hget(yard.keys.lease_owners("p"), str(run)))
    assert owner.split("|")[:3] == ["w", "free", str(yard.user)]


def test_a_heartbeat_cannot_renew_what_another_holds(yard: Yard) -> None:
    yard.put()
    run = yard.take()
    yard.now += 1000
    assert yard.beat(str(run), boot_id="zombie") == [str(run)]
    assert yard.leases == {str(run): ("w", NOW + LEASE_MS)}


def test_a_heartbeat_tells_whose_leases_have_lapsed_until_they_are_given_back(yard: Yard) -> None:
    yard.put()
    run = yard.take(boot_id="gone")
    yard.now += LEASE_MS
    yard.beat()
    assert yard.lapsed == []
    yard.now += 1
    yard.beat()
    assert yard.lapsed == [str(run)]
    yard.abort(run, boot_id=None, shown=0)
    yard.beat()
    assert (yard.lapsed, yard.leases) == ([], {})


def test_after_a_restart_of_redis_the_next_heartbeat_takes_the_leases_back(yard: Yard) -> None:
    run = uuid7()
    yard.put(run)
    yard.expire(Ticketed(run_id=run, epoch=1))
    assert yard.beat(f"{run}:1") == []
    assert yard.leases == {f"{run}:1": ("w", NOW + LEASE_MS)}
    assert yard.finish(Ticketed(run_id=run, epoch=1)) == 1
    assert yard.leases == {}


def test_a_report_of_a_newer_release_is_read_without_what_is_unknown_here(yard: Yard) -> None:
    yard.beat()
    told = json.dumps(dataclasses.asdict(report()) | {"from_the_future": {"a": 1}})
    yard.cell.run(lambda client: client.hset(yard.keys.worker_reports("p"), "w", told))
    assert yard.alive() == [report()]


@pytest.mark.parametrize(("silent_ms", "alive"), [(WORKER_TTL_MS, True), (WORKER_TTL_MS + 1, False)])
def test_a_silent_worker_is_not_alive(yard: Yard, silent_ms: int, alive: bool) -> None:
    yard.beat()
    yard.now += silent_ms
    assert bool(yard.alive()) == alive


def test_long_silent_workers_and_their_leases_are_forgotten(yard: Yard) -> None:
    yard.put()
    yard.beat(boot_id="gone")
    yard.take(boot_id="gone")
    yard.now = NOW + FORGET_MS - 1
    yard.beat()
    assert len(yard.leases) == 1
    yard.now = NOW + FORGET_MS + LEASE_MS
    yard.beat()
    assert yard.leases == {}
    assert look(yard.cell, lambda client: client.hkeys(yard.keys.worker_reports("p"))) == ["w"]


def test_a_leaving_worker_is_not_alive_and_keeps_what_it_holds(yard: Yard) -> None:
    yard.put()
    yard.beat()
    run = yard.take()
    yard.now += 2000
    yard.beat(str(run), leaving=True)
    assert (yard.alive(), yard.state.slots) == ([], 0)
    assert yard.leases == {str(run): ("w", NOW + 2000 + LEASE_MS)}


def test_nothing_is_remembered_of_a_worker_that_has_left(yard: Yard) -> None:
    yard.beat()
    yard.put()
    run = yard.take()
    yard.beat(str(run), leaving=True)
    yard.finish(run)
    left = look(yard.cell, lambda client: client.exists(yard.keys.room("p"), yard.keys.worker_facts("p")))
    assert left == 0
    assert not look(yard.cell, lambda client: client.exists(yard.keys.home(yard.known[run].chat_id)))


def test_a_worker_that_said_farewell_is_not_alive(yard: Yard) -> None:
    yard.beat(boot_id="w")
    yard.beat(boot_id="another")
    assert yard.leave(boot_id="w") == 1
    assert yard.leave(boot_id="w") == 0
    assert (len(yard.alive()), yard.state.slots) == (1, 4)


def test_the_leases_of_a_worker_whose_process_ended_lapse_at_once_and_nobody_elses(yard: Yard) -> None:
    yard.beat(boot_id="w/1")
    yard.beat(boot_id="w2/1")
    yard.put()
    yard.put()
    held, other = yard.take(boot_id="w/1"), yard.take(boot_id="w2/1")
    assert yard.gone(node="w") == 1
    assert (len(yard.alive()), yard.state.slots, yard.room("w/1")) == (1, 4, None)
    yard.beat(str(other), boot_id="w2/1")
    assert yard.lapsed == [str(held)]
    assert yard.leases[str(other)] == ("w2/1", yard.now + LEASE_MS)


def test_a_worker_that_is_said_to_be_gone_and_lives_takes_its_leases_back_with_its_next_beat(yard: Yard) -> None:
    yard.beat(boot_id="w/1")
    yard.put()
    run = yard.take(boot_id="w/1")
    yard.gone()
    assert yard.beat(str(run), boot_id="w/1") == []
    assert (yard.lapsed, len(yard.alive())) == ([], 1)
    yard.gone()
    yard.finish(run, boot_id="w/1")
    assert yard.leases == {}


def test_of_a_worker_that_held_nothing_nothing_is_left(yard: Yard) -> None:
    yard.beat(boot_id="w/1")
    assert yard.gone() == 0
    assert yard.gone() == 0
    assert yard.alive() == []


def test_nobody_alive_is_no_error(yard: Yard) -> None:
    assert yard.alive() == []
    assert yard.leave() == 0
    assert workers.WORKER_TTL_MS > workers.HEARTBEAT_MS


def test_a_run_that_does_not_fit_keeps_its_place(yard: Yard) -> None:
    run = uuid7()
    yard.put(run, prompt_tokens=500)
    tag = yard.tag(yard.user)
    assert isinstance(yard.ask(room_tokens=300), Later)
    assert (yard.waiting, yard.tag(yard.user)) == ([f"{run}:1"], tag)
    assert yard.take().run_id == run
