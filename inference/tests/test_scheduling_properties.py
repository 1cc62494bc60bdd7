"""Any order of the queue's scripts, with crashes between any two of them: nothing is lost, doubled or left behind."""

import math
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from uuid_utils.compat import uuid7

from inference.cell import queue
from inference.cell.admission import Admitted
from inference.cell.link import Cell
from inference.cell.policy import Policy, TierPolicy
from inference.cell.queue import Later, Ticketed
from inference.cell.workers import LEASE_MS, NO_BOUND
from inference.tests.support import look, search
from inference.tests.yard import Yard, waiting

TIERS = ("free", "pro", "~system")
USERS = [uuid4() for _ in range(2)]
# Two of each user's.
CHATS = {user: [uuid4(), uuid4()] for user in USERS}
POOL_LUA = Path(queue.__file__).parent / "lua" / "_pool.lua"
BOOTS = ("a", "b", "c")


def policy(*, wait_ms: int, **more: Any) -> Policy:
    tiers = {
        "free": TierPolicy(weight=1, is_free=True, wait_ms=wait_ms),
        "pro": TierPolicy(weight=7, wait_ms=wait_ms),
        "~system": TierPolicy(weight=0.01, wait_ms=wait_ms),
    }
    return Policy(tiers=tiers, **more)


POLICIES = [
    policy(wait_ms=60_000, floor=0.1, delay_ms=2000, slack=4096, depth=20),
    policy(wait_ms=5000, floor=0.5, delay_ms=50, slack=100, depth=3),
    policy(wait_ms=1, floor=0, delay_ms=0, slack=0, depth=1),
]
# Where what is counted stands in the pool's record, from 1, as the scripts name it.
AT = {
    name: int(number)
    for names, numbers in re.findall(r"^local ([A-Z_, ]+) = ([0-9, ]+)$", POOL_LUA.read_text(), re.MULTILINE)
    for name, number in zip(names.split(", "), numbers.split(", "), strict=True)
}
CRASH = st.sampled_from([False, False, False, True])


class Seen:
    """What Redis holds of the pool "p" at one moment."""

    def __init__(self, yard: Yard) -> None:
        prefix = yard.keys.queue("p")
        names: Any = look(yard.cell, lambda client: client.keys(f"{prefix}*"))
        # By kind: what comes after it in the name → what is kept there.
        found: dict[str, dict[str, Any]] = {}
        with redis.Redis(port=yard.cell.client.connection_pool.connection_kwargs["port"]) as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.get(yard.keys.pool("p"))
            pipeline.hvals(yard.keys.worker_facts("p"))
            for name in names:
                if name.removeprefix(prefix).split(":")[1] in ("f", "b"):
                    pipeline.hgetall(name)
                else:
                    pipeline.zrange(name, 0, -1, withscores=True)
            packed, facts, *values = pipeline.execute()
        for name, value in zip(names, values, strict=True):
            _, kind, place = (*name.removeprefix(prefix).split(":", 2), "")[:3]
            found.setdefault(kind, {})[place] = {key.decode(): its for key, its in dict(value).items()}
        self.names: list[str] = names
        self.slots = sum(int(one.split(b"|")[0]) for one in facts)
        self.begun: dict[str, float] = found.get("begun", {}).get("", {})
        self.facts_of_begun = set(found.get("b", {}).get("", {}))
        # By tier, users with their tags: who stands for any worker, who is kept, until when; and by tier:worker.
        self.free, self.kept, self.until, self.homes = (found.get(kind, {}) for kind in "ukxh")
        self.lines = self._lines(found)
        self.pool, self.tiers = self._numbers(packed)

    def _lines(self, found: dict[str, dict[str, Any]]) -> dict[tuple[str, str], list[list[str]]]:
        """Tier and user → the facts of the user's runs, the next one's first."""
        others, lines = found.get("l", {}), {}
        for tier, users in found.get("f", {}).items():
            for user, entry in users.items():
                behind, _, facts = entry.decode().partition("|")
                rest = sorted(others.pop(f"{tier}:{user}", {}).items(), key=lambda one: (one[1], one[0]))
                assert len(rest) == int(behind.partition(":")[0])
                assert all(int(other.split("|")[6]) == since for other, since in rest)
                lines[tier, user] = [facts.split("|"), *(other.split("|") for other, _ in rest)]
        assert others == {}, "the runs of a user of whom none is the next"
        return lines

    def _numbers(self, packed: bytes | None) -> tuple[list[float], dict[str, list[float]]]:
        """The pool's, and each tier's; number 0 is none."""
        head, each = AT["HEAD"], AT["EACH"]
        if packed is None:
            return [0.0] * (head + 1), {}
        names, _, doubles = packed.partition(b"\n")
        tiers = names.decode().split()[1:]
        numbers = [0.0, *struct.unpack(f"<{head + each * len(tiers)}d", doubles)]
        return numbers, {tier: numbers[head + each * i : head + each * (i + 1) + 1] for i, tier in enumerate(tiers)}

    @property
    def waiting(self) -> list[str]:
        """'run:epoch' of all that wait."""
        return [facts[0] for line in self.lines.values() for facts in line] + list(self.begun)


@dataclass(slots=True)
class Row:
    """A run as the database knows it."""

    id: UUID
    user: UUID
    chat: UUID
    tier: str
    since_ms: int
    prompt: int
    output: int
    admission_id: UUID
    status: str = "queued"
    epoch: int = 1
    base: int = 1
    owner: str = ""

    @property
    def name(self) -> Ticketed:
        return Ticketed(run_id=self.id, epoch=self.epoch)


@dataclass(slots=True)
class Crew:
    """A worker process: the runs that it renews the leases of, while it lives."""

    beats: bool = False
    held: set[Ticketed] = field(default_factory=set)


class Site(RuleBasedStateMachine):
    """A pool, its users, workers and reapers, and the database that decides between them."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        look(cell, lambda client: client.flushdb())
        self.yard = Yard(cell, policy=POLICIES[0])
        self.rows: list[Row] = []
        self.crews = {boot: Crew() for boot in BOOTS}

    @property
    def leases(self) -> dict[str, tuple[str, int]]:
        return self.yard.leases

    def rows_that(self, status: str) -> list[Row]:
        return [row for row in self.rows if row.status == status]

    def chosen(self, rows: list[Row], number: int) -> Row:
        return rows[number % len(rows)]

    # Web processes.

    def expire(self, row: Row) -> None:
        call = queue.expire(self.yard.keys, pool="p", run=row.name, user_id=row.user, tier=row.tier)
        self.yard.cell.call(call)

    def enqueue(self, row: Row) -> None:
        self.yard.put_again(
            waiting(
                row.id,
                epoch=row.epoch,
                base_epoch=row.base,
                admission_id=row.admission_id,
                user_id=row.user,
                tier=row.tier,
                chat_id=row.chat,
                prompt_tokens=row.prompt,
                max_output_tokens=row.output,
                since_ms=row.since_ms,
            )
        )

    @rule(
        user=st.sampled_from(USERS),
        chat=st.integers(0, 1),
        tier=st.sampled_from(TIERS),
        late_ms=st.sampled_from([0, 0, 0, 700]),
        prompt=st.integers(2, 5000),
        output=st.integers(1, 500),
        crash=CRASH,
        asks=st.booleans(),
    )
    def send(
        self, user: UUID, chat: int, tier: str, late_ms: int, prompt: int, output: int, crash: bool, asks: bool
    ) -> None:
        admission_id = uuid7()
        if asks:
            verdict = self.yard.admit(user_id=user, tier=tier, turn=str(admission_id))
            if not isinstance(verdict, Admitted):
                return
            admission_id = verdict.admission_id
        row = Row(
            id=uuid7(),
            user=user,
            chat=CHATS[user][chat],
            tier=tier,
            since_ms=self.yard.now - late_ms,
            prompt=prompt,
            output=output,
            admission_id=admission_id,
        )
        self.rows.append(row)
        if not crash:
            self.enqueue(row)

    @precondition(lambda self: self.rows_that("queued"))
    @rule(which=st.integers(0, 100), crash=CRASH)
    def cancel_or_expire(self, which: int, crash: bool) -> None:
        row = self.chosen(self.rows_that("queued"), which)
        row.status = "over"
        if not crash:
            self.expire(row)

    @precondition(lambda self: self.rows_that("over"))
    @rule(which=st.integers(0, 100), crash=CRASH)
    def retry(self, which: int, crash: bool) -> None:
        row = self.chosen(self.rows_that("over"), which)
        row.status, row.epoch, row.since_ms, row.admission_id = "queued", row.epoch + 1, self.yard.now, uuid7()
        row.base = row.epoch
        if not crash:
            self.enqueue(row)

    # Workers.

    @rule(boot=st.sampled_from(BOOTS), room=st.integers(0, 4), memory=st.sampled_from([0, 3000, 20_000]))
    def beat(self, boot: str, room: int, memory: int) -> None:
        crew = self.crews[boot]
        crew.beats = True
        self.yard.beat(*map(str, crew.held), boot_id=boot, room=room, kv_tokens=memory)

    @rule(boot=st.sampled_from(BOOTS))
    def drain(self, boot: str) -> None:
        crew = self.crews[boot]
        self.yard.beat(*map(str, crew.held), boot_id=boot, leaving=True)
        if not crew.held:
            self.yard.leave(boot_id=boot)
            crew.beats = False

    @rule(boot=st.sampled_from(BOOTS))
    def die(self, boot: str) -> None:
        """With all that it held. Its successor has another boot id, which makes no difference here."""
        self.crews[boot] = Crew()

    @rule(
        boot=st.sampled_from(BOOTS),
        memory=st.sampled_from([NO_BOUND, NO_BOUND, 600]),
        expected=st.booleans(),
        crash=CRASH,
    )
    def claim(self, boot: str, memory: int, expected: bool, crash: bool) -> None:
        seen = Seen(self.yard)
        before, begun = seen.lines, seen.begun
        claimed = self.yard.ask(boot_id=boot, room_tokens=memory, expected=expected)
        if claimed is None:
            assert (before, begun) == ({}, {})
            return
        if isinstance(claimed, Later):
            assert before or begun
            return
        if begun:
            assert str(claimed) == min(begun, key=lambda name: (begun[name], name))
        else:
            [line] = [line for line in before.values() if str(claimed) in {facts[0] for facts in line}]
            assert str(claimed) == line[0][0], "a user's runs are served as they came"
            assert int(line[0][2]) + int(line[0][3]) <= memory
        if crash:
            return
        row = next(row for row in self.rows if row.id == claimed.run_id)
        if row.status == "queued" and row.epoch == claimed.epoch:
            row.status, row.owner = "streaming", boot
            self.crews[boot].held.add(claimed)
        else:
            self.yard.abort(claimed, boot_id=boot, shown=None)

    def streamed(self) -> list[Row]:
        """What living workers have under way."""
        return [row for row in self.rows_that("streaming") if row.name in self.crews[row.owner].held]

    @precondition(lambda self: self.streamed())
    @rule(
        which=st.integers(0, 100),
        cached=st.floats(0, 1),
        output=st.integers(0, 500),
        first_ms=st.integers(0, 3000),
        crash=CRASH,
    )
    def finish(self, which: int, cached: float, output: int, first_ms: int, crash: bool) -> None:
        row = self.chosen(self.streamed(), which)
        row.status = "over"
        self.crews[row.owner].held.discard(row.name)
        if not crash:
            self.yard.known[row.name] = waiting(row.id, user_id=row.user, chat_id=row.chat, prompt_tokens=row.prompt)
            held = round(row.prompt * cached)
            self.yard.finish(row.name, boot_id=row.owner, cached=held, output=output, first_token_ms=first_ms)

    # Whoever takes over.

    def hand_on(self, row: Row, *, shown: int, steps: int) -> None:
        lost = row.name
        row.status, row.epoch = "queued", row.epoch + 1
        if steps >= 1:
            self.yard.abort(lost, boot_id=None, shown=shown)
        if steps >= 2:
            self.enqueue(row)

    @precondition(lambda self: self.streamed())
    @rule(which=st.integers(0, 100), shown=st.integers(0, 400), steps=st.integers(0, 2))
    def give_up(self, which: int, shown: int, steps: int) -> None:
        row = self.chosen(self.streamed(), which)
        self.crews[row.owner].held.discard(row.name)
        self.hand_on(row, shown=shown, steps=steps)

    @precondition(lambda self: self.rows_that("streaming"))
    @rule(which=st.integers(0, 100), shown=st.integers(0, 400), steps=st.integers(0, 2))
    def take_over(self, which: int, shown: int, steps: int) -> None:
        """Whoever holds it may live on and renew what is not its own any more."""
        row = self.chosen(self.rows_that("streaming"), which)
        lease = self.leases.get(str(row.name))
        if lease is None or lease[1] < self.yard.now:
            self.hand_on(row, shown=shown, steps=steps)

    @rule()
    def reap(self) -> None:
        """R1 of all that waits in the database alone."""
        known, leases = self.yard.waiting, self.leases
        for row in self.rows_that("queued"):
            lease = leases.get(str(row.name))
            if str(row.name) not in known and (lease is None or lease[1] < self.yard.now):
                self.enqueue(row)

    @precondition(lambda self: self.rows_that("queued"))
    @rule(which=st.integers(0, 100))
    def reap_what_another_has_just_queued(self, which: int) -> None:
        self.enqueue(self.chosen(self.rows_that("queued"), which))

    @rule(tier=st.sampled_from(TIERS), first=st.integers(0, 2))
    def tell(self, tier: str, first: int) -> None:
        self.yard.tell(tier=tier, first=first)

    @rule(number=st.integers(0, len(POLICIES) - 1))
    def change_the_policy(self, number: int) -> None:
        self.yard.policy = POLICIES[number]

    @rule(ms=st.sampled_from([1, 40, 400, LEASE_MS + 1, 4000]))
    def time_passes(self, ms: int) -> None:
        self.yard.now += ms

    # What holds after every step.

    @invariant()
    def all_is_in_order(self) -> None:
        seen = Seen(self.yard)
        self.check_that_every_run_stands_in_one_line(seen)
        for tier in TIERS:
            self.check_where_users_stand(seen, tier)
        self.check_leases(seen)
        assert seen.pool[AT["SLOTS"]] == seen.slots
        assert all(map(math.isfinite, seen.pool))
        for numbers in seen.tiers.values():
            assert all(map(math.isfinite, numbers))
            assert numbers[AT["GIVEN"]] >= 0
            assert all(0.25 <= numbers[AT[name]] <= 4 for name in ("RATIO", "KEPT_RATIO", "LATER_RATIO"))
            assert numbers[AT["SERVED"]] >= 0

    def check_that_every_run_stands_in_one_line(self, seen: Seen) -> None:
        waiting = seen.waiting
        assert len(waiting) == len(set(waiting)) == seen.pool[AT["N"]]
        assert seen.facts_of_begun == set(seen.begun)
        for line in seen.lines.values():
            since = [int(facts[6]) for facts in line]
            assert since == sorted(since)
        for tier, numbers in seen.tiers.items():
            lines = [line for (its, _), line in seen.lines.items() if its == tier]
            assert numbers[AT["WAITING"]] == sum(map(len, lines))
            assert numbers[AT["USERS"]] == len(lines)

    def check_where_users_stand(self, seen: Seen, tier: str) -> None:
        """For any worker, or for the one that has the chat of their next run in memory."""
        waits = {user for its, user in seen.lines if its == tier}
        free, kept = seen.free.get(tier, {}), seen.kept.get(tier, {})
        assert set(free) | set(kept) == waits
        assert not set(free) & set(kept)
        stands: dict[str, tuple[str, float]] = {}
        for place, users in seen.homes.items():
            if place.split(":", 1)[0] == tier:
                assert not set(users) & set(stands), "kept twice"
                stands |= {user: (place.split(":", 1)[1], tag) for user, tag in users.items()}
        assert stands == {user: (seen.lines[tier, user][0][4], tag) for user, tag in kept.items()}
        assert all(seen.lines[tier, user][0][4] == "" for user in free)
        assert set(seen.until.get(tier, {})) <= set(kept)
        if tier in seen.tiers:
            assert seen.tiers[tier][AT["KEPT"]] == len(kept)

    def check_leases(self, seen: Seen) -> None:
        """Whoever has one does not wait, unless a worker that was taken for dead says otherwise."""
        held = {name for crew in self.crews.values() for name in map(str, crew.held)}
        leased = {name for name, (_, expiry) in self.leases.items() if expiry >= self.yard.now}
        assert leased & set(seen.waiting) <= held

    def teardown(self) -> None:
        """Whatever has happened: once workers and a reaper do their work, all that was asked for is served."""
        for boot in BOOTS:
            self.die(boot)
            self.yard.leave(boot_id=boot)
        self.yard.now += 10 * LEASE_MS
        for row in self.rows_that("streaming"):
            self.hand_on(row, shown=0, steps=2)
        self.reap()
        wanted = {row.id for row in self.rows_that("queued")}
        served = set()
        self.yard.beat(boot_id="last")
        while isinstance(claimed := self.yard.ask(boot_id="last"), Ticketed):
            self.yard.known[claimed] = waiting(claimed.run_id)
            row = next(row for row in self.rows if row.id == claimed.run_id)
            if row.status == "queued" and row.epoch == claimed.epoch:
                row.status = "over"
                served.add(row.id)
            self.yard.finish(claimed, boot_id="last")
        assert claimed is None
        assert served == wanted
        self.yard.now += 10 * LEASE_MS
        self.yard.beat(boot_id="last")
        for name in self.yard.lapsed:
            self.yard.abort(Ticketed.parse(name), boot_id=None, shown=0)
        assert self.leases == {}
        seen = Seen(self.yard)
        assert (seen.names, seen.pool[AT["N"]]) == ([], 0)
        for numbers in seen.tiers.values():
            assert {numbers[AT[name]] for name in ("WAITING", "USERS", "KEPT")} == {0}
        super().teardown()


def test_no_order_of_steps_and_crashes_loses_doubles_or_leaves_behind_a_run(cell: Cell) -> None:
    class OnThisServer(Site):
        def __init__(self) -> None:
            super().__init__(cell)

    search(OnThisServer)
