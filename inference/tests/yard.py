"""A pool's queue and its workers by the scripts themselves, looked at from outside."""

import json
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from inference.cell import admission, queue, workers
from inference.cell.admission import Bounds, Verdict
from inference.cell.link import Cell
from inference.cell.policy import Policy, TierPolicy
from inference.cell.queue import Later, Placed, Served, Ticketed, Waiting
from inference.cell.workers import Report
from inference.testing import queued
from inference.tests.support import empty_account, look, stream_state

NOW = 1_750_000_000_000


def report(*, slots: int = 4, room: int | None = None, kv_tokens: int = 0, computed_tokens: int = 0) -> Report:
    return Report(
        engine="scripted",
        model="m",
        slots=slots,
        running=1,
        waiting=2,
        kv_usage=0.5,
        output_tokens=3,
        room=slots if room is None else room,
        kv_tokens=kv_tokens,
        computed_tokens=computed_tokens,
    )


def policy(**changes: Any) -> Policy:
    """A policy of three tiers; no worker is preferred where a test does not say so."""
    tiers = {
        "free": TierPolicy(weight=1, is_free=True, wait_ms=60_000),
        "basic": TierPolicy(weight=1, wait_ms=60_000),
        "pro": TierPolicy(weight=3, wait_ms=60_000),
    }
    given: dict[str, Any] = {"tiers": tiers, "floor": 0.1, "delay_ms": 0, "slack": 0, **changes}
    return Policy(**given)


def waiting(run_id: UUID, *, epoch: int = 1, **changes: Any) -> Waiting:
    """A run of a user and a chat of its own, that needs 100 tokens and 100 more."""
    given: dict[str, Any] = {
        "run": Ticketed(run_id=run_id, epoch=epoch),
        "base_epoch": 1,
        "admission_id": uuid4(),
        "user_id": uuid4(),
        "tier": "free",
        "chat_id": uuid4(),
        "prompt_tokens": 100,
        "max_output_tokens": 100,
        "since_ms": NOW,
    }
    return Waiting(**given | changes)


class Yard:
    """The queue of pool "p"; time stands still at `now` unless a test moves it on."""

    def __init__(self, cell: Cell, *, policy: Policy | None = None) -> None:
        self.cell = cell
        self.keys = cell.keys
        self.policy = policy or Policy()
        self.now = NOW
        self.user = uuid4()
        cell.call(empty_account(cell.keys, user_id=self.user))
        # What was enqueued, by 'run:epoch'.
        self.known: dict[Ticketed, Waiting] = {}
        # Tokens that each worker has computed.
        self.computed: Counter[str] = Counter()
        # The lapsed leases that the last heartbeat told of.
        self.lapsed: list[str] = []

    def put(self, run_id: UUID | None = None, **changes: Any) -> Placed:
        """Enqueue a run of the yard's user, who has waited since now; see `waiting`."""
        given: dict[str, Any] = {"user_id": self.user, "since_ms": self.now, **changes}
        one = waiting(run_id or uuid7(), **given)
        self.known[one.run] = one
        self.cell.call(empty_account(self.keys, user_id=one.user_id))
        return self.put_again(one)

    def put_again(self, one: Waiting) -> Placed:
        call = queue.enqueue(self.keys, pool="p", policy=self.policy, waiting=one, now_ms=self.now)
        return queue.read_enqueue(self.cell.call(call))

    def line_up(self, user: UUID, runs: int, **changes: Any) -> list[Ticketed]:
        """Enqueue so many runs of a user, each a ms after the one before."""
        names = []
        for _ in range(runs):
            self.now += 1
            run_id = uuid7()
            self.put(run_id, user_id=user, **changes)
            names.append(Ticketed(run_id=run_id, epoch=1))
        return names

    def fill(self, tier: str, runs: int) -> None:
        """Enqueue so many runs, each of a user of its own."""
        for _ in range(runs):
            self.line_up(uuid4(), 1, tier=tier)

    def ask(
        self, *, boot_id: str = "w", room_tokens: int = workers.NO_BOUND, expected: bool = False
    ) -> Ticketed | Later | None:
        call = queue.claim(
            self.keys, pool="p", boot_id=boot_id, room_tokens=room_tokens, now_ms=self.now, expected=expected
        )
        return queue.read_claim(self.cell.call(call))

    def take(self, *, boot_id: str = "w", room_tokens: int = workers.NO_BOUND) -> Ticketed:
        """Claim a run, which must be there."""
        claimed = self.ask(boot_id=boot_id, room_tokens=room_tokens)
        assert isinstance(claimed, Ticketed), claimed
        return claimed

    def finish(
        self,
        run: Ticketed,
        *,
        boot_id: str = "w",
        computed: int | None = None,
        cached: int = 0,
        output: int = 100,
        held_ms: int = 2000,
        first_token_ms: int = 0,
    ) -> int:
        """It used what was expected of it, where the test does not say otherwise."""
        one = self.known[run]
        if computed is None:
            computed = one.prompt_tokens - cached
        self.computed[boot_id] += computed + output
        call = queue.finish(
            self.keys,
            pool="p",
            run=run,
            boot_id=boot_id,
            chat_id=one.chat_id,
            served=Served(
                computed_tokens=computed,
                cached_tokens=cached,
                output_tokens=output,
                held_ms=held_ms,
                first_token_ms=first_token_ms,
                worker_tokens=self.computed[boot_id],
            ),
        )
        done: int = self.cell.call(call)
        return done

    def serve(self, *, boot_id: str = "w", **used: Any) -> Waiting:
        """Claim a run and finish it; which it was."""
        run = self.take(boot_id=boot_id)
        assert self.finish(run, boot_id=boot_id, **used) == 1
        return self.known[run]

    def served(self, runs: int, *, by: str, every_ms: int = 0, **used: Any) -> Counter[Any]:
        """Serve so many runs; how many there were of each `by`, an attribute of theirs."""
        found: Counter[Any] = Counter()
        for _ in range(runs):
            self.now += every_ms
            found[getattr(self.serve(**used), by)] += 1
        return found

    def abort(self, run: Ticketed, *, boot_id: str | None = "w", shown: int | None = None) -> int:
        call = queue.abort(self.keys, pool="p", run=run, boot_id=boot_id, shown_tokens=shown)
        done: int = self.cell.call(call)
        return done

    def expire(self, run: Ticketed) -> int:
        one = next(one for name, one in self.known.items() if name.run_id == run.run_id)
        call = queue.expire(self.keys, pool="p", run=run, user_id=one.user_id, tier=one.tier)
        done: int = self.cell.call(call)
        return done

    def admit(self, *, user_id: UUID | None = None, tier: str = "free", turn: str = "t") -> Verdict:
        """Ask for a place, as a user without any limits, whose account is there."""
        user = user_id or uuid4()
        self.cell.call(empty_account(self.keys, user_id=user))
        call = admission.admit(
            self.keys,
            user_id=user,
            pool="p",
            turn=turn,
            base_epoch=1,
            admission_id=uuid7(),
            min_generation=0,
            prompt_tokens=100,
            output_tokens=100,
            output_floor=1,
            bounds=Bounds(concurrent_runs=1000),
            tier=tier,
            policy=self.policy,
            now_ms=self.now,
        )
        return admission.read_verdict(self.cell.call(call))

    def release(self, user_id: UUID, admission_id: UUID) -> int:
        call = admission.release(self.keys, user_id=user_id, pool="p", admission_id=admission_id)
        released: int = self.cell.call(call)
        return released

    def tell(self, *, tier: str = "free", first: int = 0, users: int = 100) -> list[int]:
        call = queue.tell(self.keys, pool="p", tier=tier, first=first, users=users, now_ms=self.now)
        reply: list[int] = self.cell.call(call)
        return reply

    def beat(
        self,
        *held: str,
        boot_id: str = "w",
        slots: int = 4,
        room: int | None = None,
        kv_tokens: int = 0,
        leaving: bool = False,
    ) -> list[str]:
        call = workers.heartbeat(
            self.keys,
            pool="p",
            boot_id=boot_id,
            report=None
            if leaving
            else report(slots=slots, room=room, kv_tokens=kv_tokens, computed_tokens=self.computed[boot_id]),
            held=held,
            now_ms=self.now,
        )
        lost, self.lapsed = self.cell.call(call)
        return list(lost)

    def leave(self, *, boot_id: str = "w") -> int:
        known: int = self.cell.call(workers.farewell(self.keys, pool="p", boot_id=boot_id))
        return known

    def gone(self, *, node: str = "w") -> int:
        held: int = self.cell.call(workers.gone(self.keys, pool="p", node=node, now_ms=self.now))
        return held

    @property
    def state(self) -> queue.PoolState:
        return queue.pool_state(self.cell, pool="p", now_ms=self.now)

    def tier(self, slug: str) -> queue.TierState:
        return next(tier for tier in self.state.tiers if tier.plan == slug)

    def alive(self) -> list[Report]:
        return self.cell.run(lambda client: workers.alive(client, self.keys, pool="p", now_ms=self.now))

    def room(self, boot_id: str = "w") -> int | None:
        score: Any = look(self.cell, lambda client: client.zscore(self.keys.room("p"), boot_id))
        return None if score is None else int(score)

    @property
    def waiting(self) -> list[str]:
        """'run:epoch' of all that wait, first come first."""
        return list(self.cell.run(lambda client: queued(client, self.keys, pool="p")))

    @property
    def leases(self) -> dict[str, tuple[str, int]]:
        """'run:epoch' → owner and expiry (ms)."""
        rows: Any = look(self.cell, lambda client: client.zrange(self.keys.leases("p"), 0, -1, withscores=True))
        owners: Any = look(self.cell, lambda client: client.hgetall(self.keys.lease_owners("p")))
        assert set(owners) == {name for name, _ in rows}
        return {name: (owners[name].partition("|")[0], int(expiry)) for name, expiry in rows}

    def tag(self, user: UUID, *, tier: str = "free") -> float | None:
        """What the user has had, on the tier's scale, whether waiting or not; None = it is not known."""
        queue = self.keys.queue("p")

        def scores(client: Any) -> list[float | str | None]:
            return [
                client.zscore(f"{queue}:u:{tier}", str(user)),
                client.zscore(f"{queue}:k:{tier}", str(user)),
                client.hget(self.keys.account(user), f"tag:p:{tier}"),
            ]

        entry = look(self.cell, lambda client: client.hget(f"{queue}:f:{tier}", str(user))) or ""
        owed = float(entry.partition("|")[0].partition(":")[2] or 0)
        return next((float(score) + owed for score in look(self.cell, scores) if score is not None), None)

    def stream(self, run_id: UUID) -> list[tuple[str, dict[str, str]]]:
        rows: Any = look(self.cell, lambda client: client.xrange(self.keys.stream(run_id)))
        return list(rows)

    def told(self, run_id: UUID) -> list[dict[str, Any]]:
        """The data of the run's `queued` events."""
        return [json.loads(fields["d"]) for _, fields in self.stream(run_id) if fields["t"] == "queued"]

    def stream_state(self, run_id: UUID) -> dict[str, str]:
        return stream_state(self.cell, self.keys.stream_state(run_id))
