"""Admission: may this turn run, and what is held for it until it settles.

The reservation is one Redis script; the account it is made in is rebuilt from the database when Redis does not know
it. Source of the rules: the turn protocol's P2 and RB (docs/turn.md).
"""

import time
from datetime import datetime
from uuid import UUID

from django.db import transaction
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Limits
from inference import store
from inference.cell import admission
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.contracts import Admission
from inference.errors import AdmissionRefused, ServiceUnavailable
from inference.models import ModelPool, Run

# A refusal by concurrency ends when one of the user's answers does; nobody knows when, so ask again soon.
RETRY_CONCURRENCY_S = 5
# How long a send waits for its account to be rebuilt by somebody else.
PATIENCE_S = 2.0
POLL_S = 0.01


def admit(
    *,
    user_id: UUID,
    pool: ModelPool,
    turn: str,
    base_epoch: int,
    tokens: int,
    limits: Limits,
    min_generation: int,
    now: datetime,
) -> Admission:
    """Hold `tokens` (prompt plus allowed output) for one turn's present admission, all or nothing.

    The same turn and base epoch get the first hold again. Raises AdmissionRefused at a limit of the user's own and
    ServiceUnavailable when Redis or every worker of the pool is away.
    """

    def attempt(cell: Cell) -> Admission:
        until = time.monotonic() + PATIENCE_S
        while True:
            call = admission.admit(
                cell.keys,
                user_id=user_id,
                pool=pool.slug,
                turn=turn,
                base_epoch=base_epoch,
                admission_id=uuid7(),
                min_generation=min_generation,
                tokens=tokens,
                concurrent_runs=limits.concurrent_runs,
                now_ms=int(now.timestamp() * 1000),
            )
            match admission.read_verdict(cell.call(call)):
                case admission.Admitted(admission_id=admission_id, generation=generation):
                    return Admission(admission_id=admission_id, generation=generation, user_id=user_id)
                case admission.Refused(limit=limit, maximum=maximum):
                    raise AdmissionRefused(limit=limit, maximum=maximum, retry_after=RETRY_CONCURRENCY_S)
                case admission.NoWorker():
                    raise ServiceUnavailable(reason="no worker can answer at the moment")
                case admission.AccountAbsent() if elected(cell, user_id=user_id):
                    rebuild(cell, user_id=user_id, now=now)
                case admission.AccountAbsent() | admission.AccountStale():
                    if time.monotonic() > until:
                        raise ServiceUnavailable(reason="the quota account is being rebuilt", retry_after=1)
                    time.sleep(POLL_S)

    try:
        return store.connector().run(attempt)
    except StoreUnavailable as error:
        raise ServiceUnavailable(reason="the service's memory is away") from error


def elected(cell: Cell, *, user_id: UUID) -> bool:
    """Whether this process is the one to rebuild an account, for a second.

    Only a courtesy: every rebuild voids the admissions made since the one before, so that a new user's first sends,
    coming all at once, would void each other.
    """
    key = cell.keys.rebuilder(user_id)
    return cell.run(lambda client: bool(client.set(key, "1", nx=True, px=round(PATIENCE_S * 500))))


def rebuild(cell: Cell, *, user_id: UUID, now: datetime) -> None:
    """Load the user's account into `cell` from the ledger and the runs in progress.

    The new generation voids acceptances made under counters that are gone. The cell is bound to the incarnation
    known before the database is read, so that a late load never lands in a newer one. Raises StoreUnavailable.
    """
    with transaction.atomic():
        generation = billing.advance_generation(user_id=user_id)
        live = [
            admission.LiveReservation(
                admission_id=run.admission_id,
                turn=run.turn,
                base_epoch=run.base_epoch,
                tokens=run.reserved_tokens,
            )
            for run in Run.objects.filter(owner_id=user_id, status__in=Run.ACTIVE).defer("prompt_ids", "carry_ids")
        ]
        used = billing.used_tokens(user_id=user_id, except_admissions=[hold.admission_id for hold in live])
    cell.call(
        admission.load(
            cell.keys,
            user_id=user_id,
            generation=generation,
            used=used,
            live=live,
            now_ms=int(now.timestamp() * 1000),
        )
    )


def settle(*, user_id: UUID, admission_id: UUID) -> None:
    """Turn a settled turn's hold into what its ledger rows charge. Raises StoreUnavailable."""
    tokens = billing.charged(admission_id=admission_id)
    store.connector().run(
        lambda cell: cell.call(admission.settle(cell.keys, user_id=user_id, admission_id=admission_id, tokens=tokens))
    )


def release(held: Admission) -> None:
    """Give back the hold of a turn that was not accepted. Raises StoreUnavailable."""
    store.connector().run(
        lambda cell: cell.call(admission.release(cell.keys, user_id=held.user_id, admission_id=held.admission_id))
    )
