"""Any order of admissions, ends, rebuilds and times: the scripts agree with a plain account of what may happen."""

import math
from dataclasses import dataclass
from fractions import Fraction
from uuid import UUID

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from inference.cell.admission import MESSAGES_WINDOW_MS, Admitted, LiveReservation, Refused
from inference.cell.link import Cell
from inference.tests.desk import NOW, Desk
from inference.tests.support import search

HOUR = 3_600_000
# Tokens an hour of which a thousandth comes back in a whole number of milliseconds: nothing is rounded.
REFILLS = (3_600, 36_000, 360_000)


@dataclass(slots=True)
class Hold:
    """A turn's reservation; `accepted` = the database has its run, which a rebuild then brings back."""

    turn: str
    admission_id: UUID
    tokens: int
    at: int
    accepted: bool = False
    shared: bool = False


class Quotas(RuleBasedStateMachine):
    """One user's account in Redis, and beside it what is charged, held and said, in exact numbers."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.desk = Desk(cell)
        self.desk.beat(at=NOW + 10**12)
        self.now = NOW
        self.generation = 0
        self.turns = 0
        self.holds: list[Hold] = []
        self.charged = 0
        self.debt, self.debt_at = Fraction(0), NOW
        self.messages: dict[UUID, int] = {}

    @initialize(
        budget=st.integers(20, 400), refill=st.sampled_from(REFILLS), most=st.integers(1, 6), runs=st.integers(1, 5)
    )
    def open(self, budget: int, refill: int, most: int, runs: int) -> None:
        self.budget, self.refill, self.most, self.runs = budget, refill, most, runs
        self.load()

    @property
    def held(self) -> int:
        return sum(hold.tokens for hold in self.holds)

    def owed(self) -> Fraction:
        passed = max(0, self.now - self.debt_at)
        return max(Fraction(0), self.debt - Fraction(self.refill * passed, HOUR))

    def refilled(self) -> None:
        self.debt, self.debt_at = self.owed(), max(self.debt_at, self.now)

    def within(self) -> list[int]:
        return sorted(at for at in self.messages.values() if at > self.now - MESSAGES_WINDOW_MS)

    def expected(self, *, prompt: int, output: int, floor: int) -> int | Refused:
        """The tokens that a new turn gets, or why it gets none."""
        if len(self.holds) >= self.runs:
            return Refused(limit="concurrent_runs", maximum=self.runs, remaining=0, wait_ms=None)
        said = self.within()
        if len(said) >= self.most:
            wait = said[len(said) - self.most] + MESSAGES_WINDOW_MS - self.now
            return Refused(limit="messages_per_hour", maximum=self.most, remaining=0, wait_ms=wait)
        left = self.budget - self.held - self.owed()
        if prompt + floor > left:
            missing = prompt + floor - left
            wait_ms = math.ceil(missing * HOUR / self.refill) if missing <= self.owed() else None
            remaining = max(0, math.floor(left))
            return Refused(limit="token_budget", maximum=self.budget, remaining=remaining, wait_ms=wait_ms)
        return min(prompt + output, math.floor(left))

    @rule(prompt=st.integers(1, 120), output=st.integers(1, 120), floor=st.integers(1, 30))
    def admit(self, prompt: int, output: int, floor: int) -> None:
        floor = min(floor, output)
        expected = self.expected(prompt=prompt, output=output, floor=floor)
        self.turns += 1
        turn = f"t{self.turns}"
        verdict = self.desk.admit(
            turn, prompt=prompt, output=output, floor=floor, concurrent_runs=self.runs, messages=self.most,
            budget=self.budget, refill=self.refill, now_ms=self.now,
        )  # fmt: skip
        if isinstance(expected, Refused):
            assert verdict == expected
            return
        assert isinstance(verdict, Admitted), verdict
        assert verdict.tokens == expected
        self.refilled()
        # What has left the window does not come back with a clock that goes back.
        self.messages = {one: at for one, at in self.messages.items() if at > self.now - MESSAGES_WINDOW_MS}
        self.messages[verdict.admission_id] = self.now
        self.holds.append(Hold(turn=turn, admission_id=verdict.admission_id, tokens=verdict.tokens, at=self.now))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(self.holds))
        verdict = self.desk.admit(hold.turn, budget=1, refill=1, messages=1, concurrent_runs=1, now_ms=self.now)
        assert isinstance(verdict, Admitted)
        assert (verdict.admission_id, verdict.tokens) == (hold.admission_id, hold.tokens)
        hold.shared = True

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.holds)).accepted = True

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(self.holds))
        assume(not hold.accepted)
        assert self.desk.release(hold.admission_id) == (not hold.shared)
        if not hold.shared:
            self.holds.remove(hold)
            del self.messages[hold.admission_id]
            assert self.desk.release(hold.admission_id) == 0

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(self.holds))
        tokens = data.draw(st.integers(0, hold.tokens))
        assert self.desk.settle(hold.admission_id, tokens=tokens, now_ms=self.now) == 1
        assert self.desk.settle(hold.admission_id, tokens=tokens, now_ms=self.now) == 0
        self.refilled()
        self.debt += tokens
        self.charged += tokens
        self.holds.remove(hold)

    @rule()
    def load(self) -> None:
        """A rebuild, of an account that is there or lost: what was not accepted is gone, as a hold and as a message."""
        dropped = {hold.admission_id for hold in self.holds if not hold.accepted}
        self.holds = [hold for hold in self.holds if hold.accepted]
        for hold in self.holds:
            hold.shared = True
        self.messages = {one: at for one, at in self.messages.items() if one not in dropped}
        self.generation += 1
        live = [
            LiveReservation(admission_id=hold.admission_id, turn=hold.turn, base_epoch=1, tokens=hold.tokens)
            for hold in self.holds
        ]
        assert self.desk.open_account(
            generation=self.generation, used=self.charged, debt=float(self.debt), debt_at_ms=self.debt_at,
            refill_per_hour=self.refill, live=live, messages=self.messages,
        )  # fmt: skip

    @rule()
    def load_late(self) -> None:
        """A rebuild that another one has overtaken changes nothing."""
        assert self.desk.open_account(generation=self.generation, used=0) == 0

    @rule(passed=st.one_of(st.integers(0, 5_000), st.integers(0, 2 * HOUR)))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(back=st.integers(1, 10_000))
    def turn_back_the_clock(self, back: int) -> None:
        self.now -= back

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        account = self.desk.account
        assert int(account["used"]) == self.charged
        assert Fraction(account["debt"]) == self.debt
        held = {name: value.split("|")[2] for name, value in self.desk.held.items()}
        assert held == {str(hold.admission_id): str(hold.tokens) for hold in self.holds}
        assert self.desk.is_holder == bool(self.holds)
        assert self.desk.messages == {str(one): at for one, at in self.messages.items()}

    @invariant()
    def never_more_than_the_budget_is_owed_and_held(self) -> None:
        held = sum(int(value.split("|")[2]) for value in self.desk.held.values())
        assert Fraction(self.desk.account["debt"]) + held <= self.budget


def test_no_interleaving_admits_more_than_the_limits_or_loses_or_doubles_a_charge(cell: Cell) -> None:
    class OnThisServer(Quotas):
        def __init__(self) -> None:
            super().__init__(cell)

    search(OnThisServer)
