"""Reservations: what a turn may use is held here from admission to settlement.

Source of the rules: the turn protocol's P2, RB, T4 (docs/turn.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import Reply, ScriptCall
from inference.cell.workers import WORKER_TTL_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A reservation holds the turn's tokens; the acceptance must be made under `generation`."""

    admission_id: UUID
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A limit of the user is reached."""

    limit: str
    maximum: int


@dataclass(frozen=True, slots=True)
class AccountAbsent:
    """Redis does not know the account: rebuild it from the database."""


@dataclass(frozen=True, slots=True)
class AccountStale:
    """Somebody is rebuilding the account."""


@dataclass(frozen=True, slots=True)
class NoWorker:
    """No worker of the pool is alive."""


Verdict = Admitted | Refused | AccountAbsent | AccountStale | NoWorker


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
    tokens: int,
    concurrent_runs: int,
    now_ms: int,
) -> ScriptCall:
    """Reserve `tokens` for (turn, base_epoch); an existing reservation of it is returned again."""
    return ScriptCall(
        "admit",
        [keys.account(user_id), keys.reservations(user_id), keys.holders(), keys.workers(pool)],
        [
            str(user_id),
            turn,
            base_epoch,
            str(admission_id),
            min_generation,
            tokens,
            concurrent_runs,
            now_ms,
            WORKER_TTL_MS,
        ],
    )


def read_verdict(reply: Reply) -> Verdict:
    """The verdict in ADMIT's reply."""
    match reply:
        case ["ok", admission_id, generation]:
            return Admitted(admission_id=UUID(admission_id), generation=int(generation))
        case ["refused", limit, maximum]:
            return Refused(limit=limit, maximum=int(maximum))
        case ["rebuild"]:
            return AccountAbsent()
        case ["stale"]:
            return AccountStale()
        case ["no_worker"]:
            return NoWorker()
        case _:
            raise ValueError(f"unexpected reply of admit: {reply!r}")


def load(
    keys: Keys, *, user_id: UUID, generation: int, used: int, live: Iterable[LiveReservation], now_ms: int
) -> ScriptCall:
    """Put an account rebuilt from the database in place. Run it in the incarnation known before that rebuild."""
    rows: list[str | int] = []
    for hold in live:
        rows += [str(hold.admission_id), hold.turn, hold.base_epoch, hold.tokens]
    return ScriptCall(
        "load",
        [keys.account(user_id), keys.reservations(user_id), keys.holders()],
        [str(user_id), generation, used, now_ms, *rows],
    )


def release(keys: Keys, *, user_id: UUID, admission_id: UUID) -> ScriptCall:
    """Give back a reservation that nobody else may live on. Replies 1 when it was, else 0."""
    return ScriptCall("release", [keys.reservations(user_id), keys.holders()], [str(user_id), str(admission_id)])


def settle(keys: Keys, *, user_id: UUID, admission_id: UUID, tokens: int) -> ScriptCall:
    """End a reservation and count `tokens` as used."""
    return ScriptCall(
        "settle",
        [keys.account(user_id), keys.reservations(user_id), keys.holders()],
        [str(user_id), str(admission_id), tokens],
    )
