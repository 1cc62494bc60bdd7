"""Who is served when: the queue's scripts on a real server, in a time that stands still unless a test moves it on.

Runs need 100 tokens and 100 more where a test does not say otherwise: with a policy's weights 1 and 2 they cost 300.
"""

import dataclasses
from typing import Any
from uuid import UUID, uuid4

import pytest
from uuid_utils.compat import uuid7

from inference.cell import queue
from inference.cell.link import Cell
from inference.cell.policy import TierPolicy
from inference.cell.queue import Later, Ticketed
from inference.cell.workers import LEASE_MS, WORKER_TTL_MS
from inference.tests.support import look
from inference.tests.yard import Yard, policy

COST = 300


@pytest.fixture
def yard(cell: Cell) -> Yard:
    return Yard(cell, policy=policy())


# Users of a tier.


def test_a_users_runs_are_served_as_they_came(yard: Yard) -> None:
    names = yard.line_up(yard.user, 5)
    assert [yard.take() for _ in names] == names


def test_a_run_that_has_waited_longer_goes_first_whenever_it_is_queued(yard: Yard) -> None:
    [late] = yard.line_up(yard.user, 1)
    early = uuid7()
    yard.put(early, since_ms=yard.now - 5000)
    assert [yard.take(), yard.take()] == [Ticketed(run_id=early, epoch=1), late]


def test_users_who_come_between_two_claims_are_served_as_they_came(yard: Yard) -> None:
    users = [uuid4() for _ in range(9)]
    for user in users:
        yard.line_up(user, 1)
    assert [yard.serve().user_id for _ in users] == users


def test_a_user_who_asks_for_one_answer_waits_for_one_of_a_users_who_asked_for_fifty(yard: Yard) -> None:
    many, one = uuid4(), uuid4()
    yard.line_up(many, 50)
    yard.serve()
    yard.line_up(one, 1)
    assert yard.served(2, by="user_id")[one] == 1


def test_users_are_served_by_tokens_not_by_answers(yard: Yard) -> None:
    short, long = uuid4(), uuid4()
    yard.line_up(short, 40, prompt_tokens=100)
    yard.line_up(long, 40, prompt_tokens=700)
    assert yard.served(36, by="user_id", output=100) == {short: 27, long: 9}


def test_whoever_was_away_gets_nothing_for_the_time_before(yard: Yard) -> None:
    there, away = uuid4(), uuid4()
    yard.line_up(away, 1)
    yard.serve()
    yard.line_up(there, 60)
    yard.served(20, by="user_id")
    yard.line_up(away, 20)
    assert yard.served(20, by="user_id") == {there: 10, away: 10}


def test_whoever_comes_back_at_once_is_where_they_were(yard: Yard) -> None:
    greedy, other = uuid4(), uuid4()
    yard.line_up(greedy, 1, prompt_tokens=10_000)
    yard.line_up(other, 20)
    yard.served(2, by="user_id")
    yard.line_up(greedy, 1)
    assert yard.served(10, by="user_id") == {other: 10}, "it has had so much more"


def test_a_long_turn_that_was_served_alone_sets_nobody_back_who_comes_after_the_next(yard: Yard) -> None:
    yard.line_up(uuid4(), 1, prompt_tokens=10_000)
    yard.serve()
    first, second = uuid4(), uuid4()
    yard.line_up(first, 20)
    yard.serve()
    yard.line_up(second, 20)
    assert yard.served(20, by="user_id") == {first: 10, second: 10}


# What a run costs.


def test_an_answer_that_was_shorter_than_expected_costs_less(yard: Yard) -> None:
    yard.line_up(yard.user, 2)
    before = yard.tag(yard.user)
    assert before is not None
    run = yard.take()
    assert yard.tag(yard.user) == pytest.approx(before + COST)
    yard.finish(run, output=10)
    assert yard.tag(yard.user) == pytest.approx(before + 100 + 2 * 10)


def test_a_prompt_costs_what_was_computed_of_it(yard: Yard) -> None:
    yard.line_up(yard.user, 2)
    before = yard.tag(yard.user)
    assert before is not None
    yard.finish(yard.take(), cached=90, output=100)
    assert yard.tag(yard.user) == pytest.approx(before + 10 + 2 * 100)


def test_what_was_charged_is_corrected_although_its_user_does_not_wait(yard: Yard) -> None:
    others = uuid4()
    yard.line_up(others, 9)
    yard.line_up(yard.user, 1)
    run = next(run for run in (yard.take(), yard.take()) if yard.known[run].user_id == yard.user)
    before = yard.tag(yard.user)
    assert before is not None
    yard.finish(run, output=400)
    assert yard.tag(yard.user) == pytest.approx(before + 2 * 300)


def test_a_user_who_used_far_more_than_expected_waits_for_the_others(yard: Yard) -> None:
    greedy, other = uuid4(), uuid4()
    yard.line_up(greedy, 9, max_output_tokens=100)
    yard.line_up(other, 9)
    run = next(run for run in (yard.take(), yard.take()) if yard.known[run].user_id == greedy)
    yard.finish(run, output=1300)
    assert yard.served(9, by="user_id") == {other: 8, greedy: 1}, "the next run keeps its place"


def test_whoever_waits_keeps_the_place_whatever_earlier_answers_turn_out_to_cost(yard: Yard) -> None:
    users = [uuid4() for _ in range(3)]
    for user in users:
        yard.line_up(user, 1)
    running = [yard.take() for _ in users]
    waits = [yard.line_up(user, 1)[0] for user in users]
    for run, output in zip(running, (400, 100, 1), strict=True):
        yard.finish(run, output=output)
    assert [yard.take() for _ in users] == waits
    tags = [yard.tag(user) for user in users]
    assert tags == sorted(tags, key=lambda tag: -(tag or 0)), "and pays afterwards"


@pytest.mark.parametrize(("shown", "cost"), [(None, 0), (0, 100), (30, 160)])
def test_a_run_that_is_not_finished_costs_what_it_has_shown(yard: Yard, shown: int | None, cost: int) -> None:
    yard.line_up(yard.user, 2)
    before = yard.tag(yard.user)
    assert before is not None
    yard.abort(yard.take(), shown=shown)
    assert yard.tag(yard.user) == pytest.approx(before + cost)


def test_a_run_that_ends_while_it_waits_costs_nothing(yard: Yard) -> None:
    first, _ = yard.line_up(yard.user, 2)
    before = yard.tag(yard.user)
    yard.expire(first)
    assert yard.tag(yard.user) == before
    other = uuid4()
    [only] = yard.line_up(other, 1)
    before = yard.tag(other)
    yard.expire(only)
    assert yard.tag(other) == before


def test_a_claim_of_a_worker_that_died_with_it_costs_nothing(yard: Yard) -> None:
    [run] = yard.line_up(yard.user, 1)
    before = yard.tag(yard.user)
    yard.line_up(uuid4(), 1)
    yard.take(boot_id="dead")
    yard.now += LEASE_MS + 1
    yard.put_again(yard.known[run])
    assert yard.tag(yard.user) == pytest.approx(before, abs=0.01)


def test_a_run_whose_worker_died_with_its_claim_has_its_place_back(yard: Yard) -> None:
    [first] = yard.line_up(yard.user, 1)
    yard.now += 1
    [second] = yard.line_up(yard.user, 1)
    assert yard.take(boot_id="dead") == first
    yard.line_up(uuid4(), 1)
    yard.line_up(uuid4(), 1)
    yard.now += LEASE_MS + 1
    yard.put_again(yard.known[first])
    assert yard.take() == first
    assert [yard.take() for _ in range(3)][-1] == second


def test_a_begun_answer_goes_on_before_all_that_wait_and_is_charged_for_once(yard: Yard) -> None:
    [lost] = yard.line_up(yard.user, 1)
    before = yard.tag(yard.user)
    assert before is not None
    yard.line_up(uuid4(), 1)
    yard.take()
    yard.line_up(uuid4(), 3, tier="pro")
    yard.line_up(yard.user, 1)
    yard.abort(lost, boot_id=None, shown=40)
    assert yard.tag(yard.user) == pytest.approx(before + 100 + 2 * 40)
    again = yard.known[lost]
    yard.put(lost.run_id, epoch=2, since_ms=again.since_ms, prompt_tokens=140)
    assert yard.take() == Ticketed(run_id=lost.run_id, epoch=2)
    assert yard.tag(yard.user) == pytest.approx(before + 100 + 2 * 40)
    yard.finish(Ticketed(run_id=lost.run_id, epoch=2), computed=140, output=60)
    assert yard.tag(yard.user) == pytest.approx(before + 100 + 2 * 100), "nobody pays for the prompt twice"


def test_begun_answers_go_on_in_the_order_in_which_they_were_asked_for(yard: Yard) -> None:
    runs = [uuid7() for _ in range(3)]
    for number in (2, 0, 1):
        yard.put(runs[number], epoch=2, since_ms=yard.now + number)
    assert [yard.take().run_id for _ in runs] == runs


# Tiers.


def backlog(yard: Yard, *tiers: str, **changes: Any) -> dict[str, UUID]:
    users = {tier: uuid4() for tier in tiers}
    for tier, user in users.items():
        yard.line_up(user, 120, tier=tier, **changes)
    return users


def test_tiers_share_by_their_weights(yard: Yard) -> None:
    backlog(yard, "basic", "pro")
    assert yard.served(100, by="tier") == {"pro": 75, "basic": 25}


def test_weights_are_of_tokens_not_of_answers(yard: Yard) -> None:
    yard.line_up(uuid4(), 120, tier="basic")
    yard.line_up(uuid4(), 120, tier="pro", prompt_tokens=700)
    # Three times the tokens, each answer three times as expensive.
    assert yard.served(100, by="tier") == {"pro": 50, "basic": 50}


def test_how_many_users_a_tier_has_does_not_matter(yard: Yard) -> None:
    yard.line_up(uuid4(), 120, tier="basic")
    for _ in range(120):
        yard.line_up(uuid4(), 1, tier="pro")
    assert yard.served(100, by="tier") == {"pro": 75, "basic": 25}


def test_a_tier_that_was_idle_gets_nothing_for_the_time_before(yard: Yard) -> None:
    backlog(yard, "basic")
    yard.served(40, by="tier")
    backlog(yard, "pro")
    served = yard.served(40, by="tier")
    assert abs(served["pro"] - 30) <= 1, served


def test_the_free_tiers_have_their_floor_whatever_the_weights(yard: Yard) -> None:
    yard.policy = policy(tiers={"free": TierPolicy(weight=1, is_free=True), "pro": TierPolicy(weight=99)})
    backlog(yard, "free", "pro")
    served = yard.served(100, by="tier")
    assert abs(served["free"] - 10) <= 1, served


def test_a_change_of_policy_counts_from_the_next_run_that_comes(yard: Yard) -> None:
    backlog(yard, "basic", "pro")
    yard.served(20, by="tier")
    yard.policy = policy(tiers={"basic": TierPolicy(weight=9), "pro": TierPolicy(weight=1)})
    assert yard.served(20, by="tier")["pro"] == 15
    yard.put(tier="basic")
    served = yard.served(40, by="tier")
    assert abs(served["basic"] - 36) <= 1, served


def test_a_run_is_queued_under_the_policy_told_last_while_there_is_no_other(yard: Yard) -> None:
    backlog(yard, "basic", "pro")
    yard.cell.call(
        queue.enqueue(
            yard.keys, pool="p", policy=None, waiting=dataclasses.replace(next(iter(yard.known.values()))), now_ms=0
        )
    )
    assert yard.served(100, by="tier")["pro"] == 75


def test_free_tiers_have_their_floor_alone_while_others_are_pressed(yard: Yard) -> None:
    pressed = {"free": TierPolicy(weight=30, is_free=True), "pro": TierPolicy(weight=10, wait_ms=20_000)}
    yard.policy = policy(tiers=pressed)
    yard.beat(slots=4, room=0)
    backlog(yard, "free")
    yard.fill("pro", 120)
    served = yard.served(40, by="tier", every_ms=500)
    assert served == {"free": 30, "pro": 10}
    squeezed = [yard.state.is_squeezed]
    # Somebody pays and would wait for minutes: more than a third of what the plan allows.
    yard.beat(slots=4, room=0)
    yard.admit(tier="pro")
    squeezed.append(yard.state.is_squeezed)
    # They have had far more than their floor.
    assert yard.served(19, by="tier", every_ms=500) == {"pro": 19}
    yard.now += 501
    assert [*squeezed, yard.state.is_squeezed] == [False, True, False]


# Workers that have a chat in memory.

PROMPT = 5_000


class Home(Yard):
    """A yard where two workers live, and chats have been answered by one of them, "home"."""

    def __init__(self, cell: Cell, **changes: Any) -> None:
        super().__init__(cell, policy=policy(**{"delay_ms": 2000, "slack": 50_000} | changes))
        self.live()

    def live(self, *boots: str, **more: Any) -> None:
        for boot in boots or ("home", "other"):
            self.beat(boot_id=boot, **more)

    def answered(
        self, *, boot_id: str = "home", user_id: UUID | None = None, meanwhile: UUID | None = None
    ) -> dict[str, Any]:
        """A chat with a first turn behind it: who and what the next one is of. `meanwhile` waits since then."""
        chat: dict[str, Any] = {"user_id": user_id or uuid4(), "chat_id": uuid4(), "prompt_tokens": PROMPT}
        self.put(**chat)
        if meanwhile:
            self.line_up(meanwhile, 1)
        self.serve(boot_id=boot_id)
        self.live()
        return chat | {"prompt_tokens": PROMPT + 200}


@pytest.fixture
def home(cell: Cell) -> Home:
    return Home(cell)


def test_a_turn_is_sent_to_the_worker_that_has_its_chat_in_memory(home: Home) -> None:
    chat = home.answered()
    home.beat(boot_id="home", room=1)
    assert home.put(**chat).boot_id == "home"
    assert home.put(**home.answered(boot_id="other")).boot_id == "other"


def test_a_turn_whose_home_is_busy_is_told_to_another_that_waits_with_it(home: Home) -> None:
    chat = home.answered()
    home.beat(boot_id="home", room=0)
    assert home.put(**chat).boot_id == "other"
    later = home.ask(boot_id="other", expected=True)
    assert later == Later(ms=1000)


def test_a_turn_is_kept_for_its_home_for_a_while_and_then_taken_by_others(home: Home) -> None:
    home.put(**home.answered())
    later = home.ask(boot_id="other")
    assert isinstance(later, Later)
    home.now += later.ms - 1
    home.live()
    assert home.ask(boot_id="other") == Later(ms=1)
    home.now += 1
    assert isinstance(home.ask(boot_id="other"), Ticketed)


def test_a_turn_is_not_kept_where_that_would_last_for_longer_than_the_pool_allows(cell: Cell) -> None:
    home = Home(cell, delay_ms=999)
    chat = home.answered()
    home.beat(boot_id="home", room=0)
    home.put(**chat)
    # A slot there comes free for sure after 1 s alone: that is not waited for.
    assert isinstance(home.ask(boot_id="other"), Ticketed)


def test_a_pool_without_a_delay_keeps_nothing(cell: Cell) -> None:
    home = Home(cell, delay_ms=0)
    home.put(**home.answered())
    assert isinstance(home.ask(boot_id="other"), Ticketed)


def test_what_waits_for_one_worker_is_had_by_it_at_once(home: Home) -> None:
    home.put(**home.answered())
    assert isinstance(home.ask(boot_id="other"), Later)
    run = home.take(boot_id="home")
    owner = look(home.cell, lambda client: client.hget(home.keys.lease_owners("p"), str(run)))
    assert owner.split("|")[4] == "100", "only the new part of the prompt is charged"


def test_others_are_served_while_a_turn_is_kept(home: Home) -> None:
    chat = home.answered()
    home.put(**chat)
    other = uuid4()
    home.line_up(other, 1)
    assert home.serve(boot_id="other").user_id == other


def test_a_home_serves_its_own_before_those_that_are_a_little_ahead(home: Home) -> None:
    chat = home.answered()
    home.put(user_id=uuid4())
    home.serve(boot_id="other")
    ahead = uuid4()
    home.line_up(ahead, 1)
    home.now += 1
    home.put(**chat)
    assert home.serve(boot_id="home").user_id == chat["user_id"]


def test_a_home_does_not_serve_its_own_before_those_that_are_far_ahead(cell: Cell) -> None:
    home = Home(cell, slack=PROMPT // 2)
    ahead = uuid4()
    chat = home.answered(meanwhile=ahead)
    home.put(**chat)
    assert home.serve(boot_id="home").user_id == ahead


def test_a_turn_is_not_kept_for_a_worker_that_is_gone(home: Home) -> None:
    chat = home.answered()
    home.now += WORKER_TTL_MS + 1
    home.live("other")
    home.put(**chat)
    assert isinstance(home.ask(boot_id="other"), Ticketed)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_turn_whose_home_goes_while_it_waits_is_kept_no_longer(home: Home, leaves: bool) -> None:
    chat = home.answered()
    home.beat(boot_id="home", room=0)
    home.put(**chat)
    if leaves:
        home.beat(boot_id="home", leaving=True)
    else:
        home.now += WORKER_TTL_MS + 1
        home.live("other")
    assert isinstance(home.ask(boot_id="other"), Ticketed)


@pytest.mark.parametrize(("memory", "is_there"), [(2 * PROMPT, True), (2 * PROMPT - 1, False)])
def test_a_chat_that_others_have_pushed_out_of_memory_has_no_home(home: Home, memory: int, is_there: bool) -> None:
    home.live(kv_tokens=memory)
    chat = home.answered()
    # The chat's tokens, its own answer among them, and what was computed since fill the memory just so, or over it.
    home.put(prompt_tokens=PROMPT - 200)
    home.serve(boot_id="home")
    home.live(kv_tokens=memory)
    home.put(**chat)
    assert isinstance(home.ask(boot_id="other"), Later) == is_there


def test_several_turns_kept_for_one_worker_are_counted_down_together(home: Home) -> None:
    for chat in [home.answered() for _ in range(3)]:
        home.put(**chat)
    later = home.ask(boot_id="other")
    assert isinstance(later, Later)
    home.now += later.ms
    home.live()
    assert len({home.take(boot_id="other") for _ in range(3)}) == 3


def test_a_users_next_turn_has_its_own_home(home: Home) -> None:
    user = uuid4()
    here, there = home.answered(user_id=user), home.answered(user_id=user, boot_id="other")
    home.put(**here)
    home.now += 1
    home.put(**there)
    home.now += 1
    first = home.take(boot_id="home")
    assert home.known[first].chat_id == here["chat_id"]
    assert isinstance(home.ask(boot_id="home"), Later)
    assert home.known[home.take(boot_id="other")].chat_id == there["chat_id"]


def test_what_is_corrected_counts_where_its_user_is_kept(home: Home) -> None:
    user = uuid4()
    chats = [home.answered(user_id=user) for _ in range(2)]
    for chat in chats:
        home.now += 1
        home.put(**chat)
    run = home.take(boot_id="home")
    before = home.tag(user)
    assert before is not None
    home.finish(run, boot_id="home", cached=PROMPT, output=1100)
    assert home.tag(user) == pytest.approx(before + 2 * 1000 + 100)
    kept = f"{home.keys.queue('p')}:h:free:home"
    assert look(home.cell, lambda client: client.zscore(kept, str(user))) == before, "its next run keeps its place"
    home.take(boot_id="home")
    assert (home.tag(user) or 0) > before + 2 * 1000 + 100


@pytest.mark.parametrize("homeless_first", [True, False])
def test_a_turn_that_is_older_than_its_users_first_changes_where_the_user_is_kept(
    home: Home, homeless_first: bool
) -> None:
    chat = home.answered()
    homeless = {"user_id": chat["user_id"], "chat_id": uuid4()}
    late, early = (chat, homeless) if homeless_first else (homeless, chat)
    home.put(**late)
    home.put(**early, since_ms=home.now - 1000)
    if not homeless_first:
        assert isinstance(home.ask(boot_id="other"), Later)
    served = [home.known[home.take(boot_id="home")].chat_id for _ in range(2)]
    assert served == [early["chat_id"], late["chat_id"]]
    assert home.ask(boot_id="home") is None
