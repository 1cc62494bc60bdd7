"""Reservations: what a turn may use is held here from admission to settlement, within the limits of its user.

Source of the rules: the turn protocol's P2, RB, T4 (docs/turn.md) and docs/quotas.md.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import Reply, ScriptCall
from inference.cell.policy import NO_TIER, Policy
from inference.cell.workers import WORKER_TTL_MS

MESSAGES_WINDOW_MS = 3_600_000
# How long an admitted turn has its place until it is in the queue: longer than any acceptance takes.
PLACE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a user may at once: answers under way, messages in the window, tokens; None = no such limit."""

    concurrent_runs: int
    messages: int | None = None
    budget_tokens: int | None = None
    refill_per_hour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A reservation holds `tokens` for the turn; the acceptance must be made under `generation`."""

    admission_id: UUID
    generation: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A limit of the user is reached. `wait_ms` is when it lets the turn in; None: when an answer under way ends."""

    limit: str
    maximum: int
    remaining: int
    wait_ms: int | None


@dataclass(frozen=True, slots=True)
class AccountAbsent:
    """Redis does not know the account: rebuild it from the database."""


@dataclass(frozen=True, slots=True)
class AccountStale:
    """Somebody is rebuilding the account."""


@dataclass(frozen=True, slots=True)
class NoWorker:
    """No worker of the pool is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """The pool has no place: `reason` is full, shed_free or drain. The wait would be `wait_ms`, None = not foretold;
    ask again after `again_ms`.
    """

    reason: str
    wait_ms: int | None
    again_ms: int


Verdict = Admitted | Refused | Full | AccountAbsent | AccountStale | NoWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReservation:
    """A non-terminal run's hold, for the rebuild of an account."""

    admission_id: UUID
    turn: str
    base_epoch: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A hold as Redis knows it. It is confirmed once its turn's run is in the queue."""

    admission_id: UUID
    is_confirmed: bool
    made_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountState:
    """A user's account as Redis knows it; `generation` None = not at all."""

    user_id: UUID
    generation: int | None
    reservations: list[Reservation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What an account counts: the budget's debt at its moment, tokens held, messages in the window and the oldest.

    `refill_per_hour` is what the debt refilled by until now; None without a budget, or where only today's counts.
    """

    debt: float
    debt_at_ms: int
    refill_per_hour: int | None
    held: int
    messages: int
    oldest_ms: int | None


def holders(client: redis.Redis, keys: Keys) -> set[UUID]:
    """The users that may have reservations."""
    members: Reply = client.smembers(keys.holders())
    return {UUID(member) for member in members}


def states(client: redis.Redis, keys: Keys, *, user_ids: Iterable[UUID]) -> list[AccountState]:
    """The accounts of these users."""
    users = list(user_ids)
    pipeline = client.pipeline(transaction=False)
    for user_id in users:
        pipeline.hget(keys.account(user_id), "gen")
        pipeline.hgetall(keys.reservations(user_id))
    replies: Reply = pipeline.execute()
    return [
        AccountState(
            user_id=user_id,
            generation=None if generation is None else int(generation),
            reservations=[_read_reservation(name, value) for name, value in rows.items()],
        )
        for user_id, generation, rows in zip(users, replies[::2], replies[1::2], strict=True)
    ]


def counters(client: redis.Redis, keys: Keys, *, user_id: UUID, now_ms: int) -> Counters | None:
    """What the user's account counts; None when Redis does not know it."""
    within = f"({now_ms - MESSAGES_WINDOW_MS}"
    pipeline = client.pipeline(transaction=True)
    pipeline.hmget(keys.account(user_id), "gen", "debt", "debt_at", "rate")
    pipeline.hvals(keys.reservations(user_id))
    pipeline.zcount(keys.messages(user_id), within, "+inf")
    pipeline.zrangebyscore(keys.messages(user_id), within, "+inf", start=0, num=1, withscores=True)
    replies: Reply = pipeline.execute()
    (generation, debt, debt_at, rate), held, messages, oldest = replies
    if generation is None or debt is None:
        return None
    return Counters(
        debt=float(debt),
        debt_at_ms=int(debt_at),
        refill_per_hour=int(rate) if rate else None,
        held=sum(int(value.rsplit("|", 3)[1]) for value in held),
        messages=messages,
        oldest_ms=int(oldest[0][1]) if oldest else None,
    )


def _read_reservation(admission_id: str, value: str) -> Reservation:
    _, _, _, confirmed, made_at = value.rsplit("|", 4)
    return Reservation(admission_id=UUID(admission_id), is_confirmed=confirmed == "1", made_at_ms=int(made_at))


def admit(
    keys: Keys,
    *,
    user_id: UUID,
    pool: str,
    turn: str,
    base_epoch: int,
    admission_id: UUID,
    min_generation: int,
    prompt_tokens: int,
    output_tokens: int,
    output_floor: int,
    bounds: Bounds,
    tier: str,
    policy: Policy,
    now_ms: int,
) -> ScriptCall:
    """Reserve prompt and output for (turn, base_epoch), within the bounds, and a place in the pool's queue; an existing
    reservation is returned again.

    Of `output_tokens` as many are held as the budget has left, but no fewer than `output_floor`, which is at most that.
    """
    return ScriptCall(
        "admit",
        [
            keys.account(user_id),
            keys.reservations(user_id),
            keys.holders(),
            keys.messages(user_id),
            keys.workers(pool),
            keys.pool(pool),
            keys.queue(pool),
            keys.places(pool),
            keys.room(pool),
        ],
        [
            str(user_id),
            turn,
            base_epoch,
            str(admission_id),
            min_generation,
            prompt_tokens,
            output_tokens,
            output_floor,
            bounds.concurrent_runs,
            _or_empty(bounds.messages),
            MESSAGES_WINDOW_MS,
            _or_empty(bounds.budget_tokens),
            _or_empty(bounds.refill_per_hour),
            now_ms,
            WORKER_TTL_MS,
            tier or NO_TIER,
            policy.version,
            policy.text,
            PLACE_MS,
            pool,
        ],
    )


def _or_empty(number: int | None) -> str | int:
    return "" if number is None else number


def read_verdict(reply: Reply) -> Verdict:
    """The verdict in ADMIT's reply."""
    match reply:
        case ["ok", admission_id, generation, tokens]:
            return Admitted(admission_id=UUID(admission_id), generation=int(generation), tokens=int(tokens))
        case ["refused", limit, maximum, remaining, wait_ms]:
            return Refused(
                limit=limit,
                maximum=int(maximum),
                remaining=int(remaining),
                wait_ms=int(wait_ms) if int(wait_ms) >= 0 else None,
            )
        case ["full", reason, wait_ms, again_ms]:
            return Full(reason=reason, wait_ms=int(wait_ms) if int(wait_ms) >= 0 else None, again_ms=int(again_ms))
        case ["elsewhere"]:
            return Full(reason="full", wait_ms=None, again_ms=1000)
        case ["rebuild"]:
            return AccountAbsent()
        case ["stale"]:
            return AccountStale()
        case ["no_worker"]:
            return NoWorker()
        case _:
            raise ValueError(f"unexpected reply of admit: {reply!r}")


def load(
    keys: Keys,
    *,
    user_id: UUID,
    generation: int,
    used: int,
    debt: float,
    debt_at_ms: int,
    refill_per_hour: int | None,
    live: Collection[LiveReservation],
    messages: Mapping[UUID, int],
    now_ms: int,
) -> ScriptCall:
    """Put an account rebuilt from the database in place. Run it in the incarnation known before that rebuild.

    `messages`: admission id → when it was admitted (ms), for those of the window.
    """
    rows: list[str | int] = []
    for hold in live:
        rows += [str(hold.admission_id), hold.turn, hold.base_epoch, hold.tokens]
    for admission_id, at_ms in messages.items():
        rows += [str(admission_id), at_ms]
    return ScriptCall(
        "load",
        [keys.account(user_id), keys.reservations(user_id), keys.holders(), keys.messages(user_id)],
        [
            str(user_id),
            generation,
            used,
            f"{debt:.6f}",
            debt_at_ms,
            _or_empty(refill_per_hour),
            now_ms,
            MESSAGES_WINDOW_MS,
            len(live),
            *rows,
        ],
    )


def release(keys: Keys, *, user_id: UUID, pool: str, admission_id: UUID) -> ScriptCall:
    """Give back a reservation that nobody else may live on, and its place. Replies 1 when it was, else 0."""
    return ScriptCall(
        "release",
        [keys.reservations(user_id), keys.holders(), keys.messages(user_id), keys.places(pool)],
        [str(user_id), str(admission_id)],
    )


def settle(keys: Keys, *, user_id: UUID, admission_id: UUID, tokens: int, now_ms: int) -> ScriptCall:
    """End a reservation and count `tokens` as used."""
    return ScriptCall(
        "settle",
        [keys.account(user_id), keys.reservations(user_id), keys.holders()],
        [str(user_id), str(admission_id), tokens, now_ms],
    )
