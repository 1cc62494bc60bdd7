"""Jobs beside turns: they wait in a tier of hardly any weight, and no turn is served later because of one."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from uuid_utils.compat import uuid7

from inference import policies
from inference.cell import admission
from inference.cell.admission import PLACE_MS
from inference.cell.link import Cell
from inference.cell.policy import TierPolicy
from inference.cell.queue import Later, Ticketed
from inference.cell.workers import NO_BOUND
from inference.tests.support import empty_account, look
from inference.tests.yard import Yard, policy

LONG = 8000


class Jobs(Yard):
    """A yard whose pool three plans share with jobs; its worker has 64 slots."""

    def __init__(self, cell: Cell, **changes: Any) -> None:
        tiers = {
            "free": TierPolicy(weight=1, is_free=True, wait_ms=30_000),
            "plus": TierPolicy(weight=4, wait_ms=20_000),
            "pro": TierPolicy(weight=10, wait_ms=20_000),
            policies.SYSTEM_TIER: TierPolicy(weight=0.01, wait_ms=3_600_000),
        }
        super().__init__(cell, policy=policy(tiers=tiers, **changes))
        self.beat(slots=64)

    def job(self, *, user_id: UUID | None = None, prompt_tokens: int = LONG, **changes: Any) -> None:
        self.put(user_id=user_id or uuid4(), tier=policies.SYSTEM_TIER, prompt_tokens=prompt_tokens, **changes)

    def long_turn(self, tier: str) -> None:
        self.put(user_id=uuid4(), tier=tier, prompt_tokens=LONG)

    def tiers(self, runs: int, *, room_tokens: int = NO_BOUND) -> list[str]:
        """The tiers of the next so many runs."""
        return [self.known[self.take(room_tokens=room_tokens)].tier for _ in range(runs)]


@pytest.fixture
def jobs(cell: Cell) -> Jobs:
    return Jobs(cell)


# What a run costs that is served alone sets nobody back, or ahead.


@pytest.mark.parametrize("before", [[], ["job"], ["job", "job"], ["free"], ["plus"], ["pro"], ["free", "job"]])
def test_what_was_served_alone_leaves_plans_that_come_later_their_shares(jobs: Jobs, before: list[str]) -> None:
    for one in before:
        if one == "job":
            jobs.job()
        else:
            jobs.long_turn(one)
        jobs.serve()
    jobs.now += 60_000
    jobs.fill("plus", 150)
    jobs.take()
    jobs.fill("pro", 150)
    assert jobs.served(140, by="tier", every_ms=25) == {"pro": 100, "plus": 40}


def test_a_turn_served_beside_a_job_that_waits_leaves_plans_that_come_later_their_shares(jobs: Jobs) -> None:
    jobs.job()
    jobs.serve()
    jobs.job()
    jobs.long_turn("free")
    assert jobs.serve().tier == "free"
    jobs.now += 60_000
    jobs.fill("plus", 150)
    jobs.take()
    jobs.fill("pro", 150)
    assert jobs.served(140, by="tier", every_ms=25) == {"pro": 100, "plus": 40}


def test_a_job_waits_for_a_hundred_times_what_jobs_have_had(jobs: Jobs) -> None:
    jobs.fill("plus", 300)
    jobs.job(prompt_tokens=100)
    jobs.job(prompt_tokens=100)
    assert jobs.tiers(250).count(policies.SYSTEM_TIER) == 1


def test_while_paid_turns_are_pressed_jobs_go_after_free_ones(cell: Cell) -> None:
    jobs = Jobs(cell, depth=4)
    jobs.fill("free", 5)
    jobs.fill("plus", 3)
    jobs.beat(slots=1, room=0)
    jobs.admit(tier="plus")
    assert jobs.state.is_squeezed
    assert jobs.served(4, by="tier") == {"plus": 3, "free": 1}, "free ones have had their floor"
    jobs.job()
    assert jobs.tiers(5) == ["free"] * 4 + [policies.SYSTEM_TIER]


# What jobs have had is not taken from any plan.


def test_a_large_job_does_not_bring_free_plans_more_than_their_floor(cell: Cell) -> None:
    def served(*, with_job: bool) -> dict[str, int]:
        # Each pool is its own.
        look(cell, lambda client: client.flushdb())
        jobs = Jobs(cell)
        for tier in ("free", "pro", "free", "pro", "free"):
            jobs.put(user_id=uuid4(), tier=tier)
            jobs.serve()
        if with_job:
            jobs.job(prompt_tokens=30_000)
            jobs.serve()
        for _ in range(40):
            jobs.fill("free", 1)
            jobs.fill("pro", 1)
        return jobs.served(20, by="tier", every_ms=25)

    assert served(with_job=True) == served(with_job=False)


def test_operators_see_what_jobs_were_given_as_a_part_of_all(jobs: Jobs) -> None:
    jobs.put(tier="pro")
    jobs.serve()
    jobs.job(prompt_tokens=700)
    jobs.serve()
    shares = {tier.plan: tier.share for tier in jobs.state.tiers}
    assert shares[policies.SYSTEM_TIER] == pytest.approx(0.75)
    assert sum(shares.values()) == pytest.approx(1)


# Memory and lost workers.


def test_a_job_that_does_not_fit_keeps_no_turn_waiting_that_does(jobs: Jobs) -> None:
    jobs.beat(slots=64, kv_tokens=20_000)
    jobs.job(prompt_tokens=9_000)
    jobs.now += 60_000
    jobs.beat(slots=64, kv_tokens=20_000)
    assert jobs.ask(room_tokens=5_000) == Later(250)
    assert jobs.room() == 64, "turns are still sent to it"
    jobs.fill("pro", 3)
    assert jobs.tiers(3, room_tokens=5_000) == ["pro"] * 3
    assert jobs.tiers(1, room_tokens=10_000) == [policies.SYSTEM_TIER]


def test_a_turn_that_does_not_fit_keeps_its_place_before_jobs(jobs: Jobs) -> None:
    jobs.beat(slots=64, kv_tokens=20_000)
    jobs.put(tier="pro", prompt_tokens=9_000)
    jobs.job(prompt_tokens=100)
    jobs.now += 60_000
    assert jobs.ask(room_tokens=5_000) == Later(250)
    assert jobs.tiers(2, room_tokens=10_000) == ["pro", policies.SYSTEM_TIER]


@pytest.fixture
def lost(jobs: Jobs) -> UUID:
    """A job that was begun and shown in part, and lost its worker; its second epoch waits, with what it has."""
    run_id = uuid7()
    jobs.job(user_id=jobs.user, run_id=run_id)
    jobs.abort(jobs.take(), boot_id=None, shown=40)
    jobs.fill("pro", 5)
    jobs.job(user_id=jobs.user, run_id=run_id, epoch=2, prompt_tokens=LONG + 40)
    return run_id


def test_a_job_that_lost_its_worker_goes_before_no_turn(jobs: Jobs, lost: UUID) -> None:
    assert jobs.state.begun == 0
    assert jobs.tiers(5) == ["pro"] * 5
    assert jobs.take() == Ticketed(run_id=lost, epoch=2)
    assert jobs.state.waiting == 0


def test_a_job_that_waits_again_goes_on_in_the_stream_it_began(jobs: Jobs, lost: UUID) -> None:
    assert len(jobs.stream(lost)) == 1
    assert jobs.stream_state(lost)["epoch"] == "1"


def test_a_job_that_waits_again_is_queued_once_and_can_be_given_up(jobs: Jobs, lost: UUID) -> None:
    again = Ticketed(run_id=lost, epoch=2)
    jobs.put_again(jobs.known[again])
    assert jobs.state.waiting == 6
    assert jobs.expire(again) == 1
    assert jobs.tiers(5) == ["pro"] * 5
    assert jobs.ask() is None


# What is learnt, and what is counted.


@pytest.mark.parametrize("known", [None, "250.0"])
def test_a_jobs_length_teaches_nothing_of_its_users_answers(jobs: Jobs, known: str | None) -> None:
    user = uuid4()
    account = jobs.keys.account(user)
    jobs.cell.call(empty_account(jobs.keys, user_id=user))
    if known:
        look(jobs.cell, lambda client: client.hset(account, "out:p", known))
    jobs.job(user_id=user)
    jobs.serve(output=20)
    assert look(jobs.cell, lambda client: client.hget(account, "out:p")) == known
    assert jobs.tag(user, tier=policies.SYSTEM_TIER), "what it took is the user's all the same"


def test_a_place_whose_time_is_over_is_not_counted_although_nobody_came_after_it(jobs: Jobs) -> None:
    assert isinstance(jobs.admit(tier="pro"), admission.Admitted)
    jobs.now += PLACE_MS - 1
    assert jobs.state.pending == 1
    jobs.now += 1
    assert jobs.state.pending == 0
