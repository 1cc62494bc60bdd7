"""What those who wait are told, and whom a full pool refuses: the queue's scripts on a real server."""

from uuid import uuid4

import pytest
from uuid_utils.compat import uuid7

from inference.cell.admission import PLACE_MS, Admitted, Full, NoWorker
from inference.cell.link import Cell
from inference.tests.support import look
from inference.tests.yard import Yard, policy


@pytest.fixture
def yard(cell: Cell) -> Yard:
    return Yard(cell, policy=policy())


# Telling where runs stand.


def test_the_wait_grows_with_what_is_ahead_and_shrinks_with_slots(yard: Yard) -> None:
    yard.beat(slots=2, room=0)
    placed = [yard.put(user_id=uuid4()) for _ in range(3)]
    # Two slots that each take 2 s for a run.
    assert [(one.position, one.wait_s) for one in placed] == [(0, 1), (1, 2), (2, 3)]
    yard.beat(boot_id="another", slots=2, room=0)
    one = yard.put(user_id=uuid4())
    assert (one.position, one.wait_s) == (3, 2)


def test_a_users_second_run_stands_behind_the_first_of_all_others(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    [yard.put(user_id=uuid4()) for _ in range(3)]
    assert [yard.put().position for _ in range(2)] == [3, 4]
    assert yard.put(user_id=uuid4()).position == 4, "after the second of nobody"


def test_a_run_with_room_waits_for_nothing(yard: Yard) -> None:
    yard.beat()
    placed = yard.put()
    assert (placed.position, placed.wait_s) == (0, 0)


def test_those_who_wait_are_told_that_they_have_come_closer(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    names = [yard.line_up(uuid4(), 1)[0] for _ in range(6)]
    for _ in range(6):
        yard.now += 1000
        yard.take()
        yard.tell()
    for number, name in enumerate(names):
        positions = [event["position"] for event in yard.told(name.run_id)]
        assert positions == list(range(number, -1, -1))
        ids = [entry_id for entry_id, _ in yard.stream(name.run_id)]
        assert ids == [f"0-{n}" for n in range(1, len(ids) + 1)]


def test_nothing_is_told_where_nothing_has_changed(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    for _ in range(5):
        yard.line_up(uuid4(), 1)
    yard.now += 1000
    yard.tell()
    yard.now += 1000
    assert yard.tell() == [5, 0]


def test_one_run_is_told_once_a_second_at_most(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    names = [yard.line_up(uuid4(), 1)[0] for _ in range(2)]
    yard.take()
    yard.now += 800
    assert yard.tell()[1] == 0, "it was told when it came"
    yard.now += 200
    assert yard.tell()[1] == 1
    assert len(yard.told(names[1].run_id)) == 2


def test_a_position_that_rises_has_a_reason(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    yard.line_up(uuid4(), 5, tier="basic")
    waits = yard.line_up(uuid4(), 1, tier="basic")[0]
    for _ in range(40):
        yard.line_up(uuid4(), 1, tier="pro")
    yard.now += 1000
    yard.tell(tier="basic")
    first, second = yard.told(waits.run_id)
    assert second["position"] > first["position"]
    assert ("reason" in first, second["reason"]) == (False, "overtaken")


def test_a_position_that_rises_a_little_is_not_told(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    waits = yard.line_up(uuid4(), 1, tier="basic")[0]
    yard.line_up(uuid4(), 1, tier="pro")
    yard.now += 1000
    yard.tell(tier="basic")
    assert {event["position"] for event in yard.told(waits.run_id)} == {0}


def test_a_run_whose_stream_is_not_waiting_is_told_nothing(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    names = [yard.line_up(uuid4(), 1)[0] for _ in range(3)]
    state = yard.keys.stream_state(names[2].run_id)
    look(yard.cell, lambda client: client.set(state, "1|sealed|0-0|"))
    yard.take()
    yard.now += 1000
    assert yard.tell() == [2, 1]
    assert len(yard.told(names[2].run_id)) == 1


def test_some_users_are_told_at_a_time(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    names = [yard.line_up(uuid4(), 1)[0] for _ in range(5)]
    yard.take()
    yard.now += 1000
    assert yard.tell(first=1, users=2) == [2, 2]
    assert [len(yard.told(name.run_id)) for name in names] == [1, 1, 2, 2, 1]
    assert yard.tell(first=4, users=2) == [0, 0]


def test_a_tier_that_nobody_knows_is_told_nothing(yard: Yard) -> None:
    assert yard.tell(tier="unheard of") == [0, 0]


def test_a_plan_that_is_served_at_once_all_the_time_makes_others_wait(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    yard.fill("free", 200)
    alone = yard.put(user_id=uuid4()).wait_s
    for _ in range(40):
        yard.now += 1000
        yard.fill("pro", 1)
        yard.serve(held_ms=1000)
        yard.now += 1000
        yard.serve(held_ms=1000)
    assert yard.tier("pro").waiting == 0
    # Half of what is served is pro's, which never waits.
    assert yard.tier("free").waiting > 150
    assert yard.put(user_id=uuid4()).wait_s > 0.7 * alone


def test_waits_that_others_may_yet_lengthen_are_learnt_apart(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    user = uuid4()
    yard.put(user_id=uuid4())
    before = [yard.put(user_id=user).wait_s for _ in range(2)]
    yard.served(3, by="user_id")
    for _ in range(150):
        for _ in range(2):
            yard.put(user_id=user)
        yard.now += 1000
        yard.serve(held_ms=2000)
        yard.now += 20_000
        yard.serve(held_ms=2000)
    yard.put(user_id=uuid4())
    first, second = (yard.put(user_id=user).wait_s for _ in range(2))
    assert second / first > 1.5 * before[1] / before[0]


# Admission to a pool that has no place.


def test_a_pool_without_a_worker_admits_nobody(yard: Yard) -> None:
    assert yard.admit() == NoWorker()


@pytest.mark.parametrize(("mode", "admitted"), [("normal", {"free", "pro"}), ("shed_free", {"pro"}), ("drain", set())])
def test_an_operator_may_shut_the_door_to_some_or_all(yard: Yard, mode: str, admitted: set[str]) -> None:
    yard.policy = policy(mode=mode)
    yard.beat()
    verdicts = {tier: yard.admit(tier=tier) for tier in ("free", "pro")}
    assert {tier for tier, verdict in verdicts.items() if isinstance(verdict, Admitted)} == admitted
    for verdict in verdicts.values():
        if isinstance(verdict, Full):
            assert (verdict.reason, verdict.wait_ms, verdict.again_ms) == (mode, None, 30_000)


def test_a_wait_that_the_plan_does_not_allow_is_refused_with_the_time_to_come_back(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    yard.fill("free", 30)
    verdict = yard.admit()
    # 30 runs of 2 s before it, while of the plan's 60 s only a part may be foretold.
    assert isinstance(verdict, Full)
    assert (verdict.reason, verdict.wait_ms) == ("full", 62_000)
    assert 10_000 < verdict.again_ms < 60_000
    assert isinstance(yard.admit(tier="pro"), Admitted)


def test_a_tier_has_no_more_places_than_the_pool_is_deep(yard: Yard) -> None:
    yard.policy = policy(depth=3)
    yard.beat(slots=100, room=0)
    yard.fill("free", 2)
    assert isinstance(yard.admit(), Admitted)
    verdict = yard.admit()
    assert isinstance(verdict, Full)
    assert verdict.reason == "full"


def test_no_place_is_asked_for_while_workers_have_room(yard: Yard) -> None:
    yard.policy = policy(depth=1)
    yard.beat(slots=4)
    assert isinstance(yard.admit(), Admitted)


def test_a_place_is_taken_by_its_run_given_back_or_forgotten(yard: Yard) -> None:
    yard.policy = policy(depth=1)
    yard.beat(slots=1, room=0)
    first = yard.admit(user_id=yard.user)
    assert isinstance(first, Admitted)
    assert isinstance(yard.admit(), Full)
    yard.put(admission_id=first.admission_id)
    assert (yard.state.pending, yard.state.waiting) == (0, 1)
    assert isinstance(yard.admit(), Full)
    yard.take()
    second = yard.admit(user_id=yard.user, turn="t2")
    assert isinstance(second, Admitted)
    assert yard.state.pending == 1
    yard.release(yard.user, second.admission_id)
    assert yard.state.pending == 0
    assert isinstance(yard.admit(), Admitted)
    yard.now += PLACE_MS
    yard.beat(slots=1, room=0)
    assert isinstance(yard.admit(), Admitted), "the one before has had its time"
    assert yard.state.pending == 1


def test_a_turn_that_is_admitted_again_has_one_place(yard: Yard) -> None:
    yard.beat()
    assert yard.admit(user_id=yard.user) == yard.admit(user_id=yard.user)
    assert yard.state.pending == 1


def test_nobody_who_pays_is_refused_while_free_ones_are_served_beyond_their_floor(yard: Yard) -> None:
    yard.policy = policy(depth=5)
    yard.beat(slots=1, room=0)
    yard.fill("free", 5)
    yard.fill("pro", 5)
    served = yard.served(4, by="tier")
    assert served == {"free": 1, "pro": 3}
    for tier, runs in served.items():
        yard.fill(tier, runs)
    assert isinstance(yard.admit(tier="free"), Full)
    assert isinstance(yard.admit(tier="pro"), Admitted)
    # Free ones have only their floor by now, and in time no more than that.
    for _ in range(200):
        yard.now += 500
        yard.beat(slots=1, room=0)
        yard.admit(tier="pro")
        tier = yard.serve().tier
        yard.fill(tier, 1)
    assert yard.tier("free").share <= 0.12
    assert isinstance(yard.admit(tier="pro"), Full)
    assert isinstance(yard.admit(tier="free"), Full)


# For operators.


def test_operators_see_who_waits_and_what_was_given(yard: Yard) -> None:
    yard.beat(slots=2)
    yard.line_up(uuid4(), 3, tier="pro")
    yard.line_up(uuid4(), 1)
    yard.line_up(uuid4(), 1)
    yard.put(uuid7(), epoch=2)
    yard.take()
    yard.finish(yard.take(), cached=60)
    yard.admit(tier="pro")
    state = yard.state
    assert (state.waiting, state.begun, state.pending, state.is_squeezed, state.slots) == (4, 0, 1, False, 2)
    tiers = {tier.plan: tier for tier in state.tiers}
    assert [(tiers[slug].waiting, tiers[slug].users, tiers[slug].is_free) for slug in ("pro", "free")] == [
        (3, 1, False),
        (1, 1, True),
    ]
    assert (tiers["free"].share, tiers["pro"].share) == (1, 0)
    assert all(tier.wait_ms > 0 for tier in state.tiers)


def test_a_pool_that_nobody_has_used_looks_empty(yard: Yard) -> None:
    state = yard.state
    assert (state.waiting, state.begun, state.pending, state.slots, state.tiers) == (0, 0, 0, 0, [])


def test_a_wait_is_foretold_better_once_it_is_seen_to_be_longer(yard: Yard) -> None:
    yard.beat(slots=1, room=0)
    user = uuid4()
    before = yard.put(user_id=user).wait_s
    for _ in range(40):
        yard.now += 6000
        yard.put(user_id=user)
        yard.serve(held_ms=6000)
    assert yard.put(user_id=uuid4()).wait_s > before
