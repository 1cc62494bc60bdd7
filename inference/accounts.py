"""A user's quota account as the database knows it: what Redis counts can be made of it anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q

from billing import api as billing
from billing.contracts import Debt, Limits
from inference.cell.admission import MESSAGES_WINDOW_MS, LiveReservation
from inference.models import Run

WINDOW = timedelta(milliseconds=MESSAGES_WINDOW_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What was charged (in all, and as the budget's debt), what is held, and the window's messages by admission id."""

    used: int
    debt: Debt
    live: list[LiveReservation]
    messages: Mapping[UUID, datetime]

    @property
    def held(self) -> int:
        return sum(hold.tokens for hold in self.live)


def recall(*, user_id: UUID, limits: Limits, now: datetime) -> Account:
    """The user's account from the ledger and the runs."""
    turns = Run.objects.filter(owner_id=user_id, kind=Run.Kind.TURN)
    active = turns.filter(status__in=Run.ACTIVE).defer("prompt_ids", "carry_ids", "carry_text")
    live = [
        LiveReservation(
            admission_id=run.admission_id, turn=run.turn, base_epoch=run.base_epoch, tokens=run.reserved_tokens
        )
        for run in active
    ]
    # What a live run has used so far is covered by its hold, and counted when that is settled.
    covered = [hold.admission_id for hold in live]
    return Account(
        used=billing.used_tokens(user_id=user_id, except_admissions=covered),
        debt=billing.debt_of(
            user_id=user_id, refill_per_hour=limits.refill_per_hour, now=now, except_admissions=covered
        ),
        live=live,
        messages=_messages(user_id=user_id, since=now - WINDOW),
    )


def _messages(*, user_id: UUID, since: datetime) -> dict[UUID, datetime]:
    """Admission id → when it was asked for, of everything asked for after `since`.

    What is known only by its charge (its chat was deleted, or two retries followed it) counts from then on, a little
    too long. What was stopped before it began and then retried is known by its run alone, whose id stands for it.
    """
    charges = billing.charges_of(user_id=user_id, since=since)
    messages: dict[UUID, datetime] = {}
    first: dict[UUID, UUID] = {}
    for charge in charges:
        at = messages.setdefault(charge.admission_id, charge.at)
        messages[charge.admission_id] = min(at, charge.at)
        if charge.epoch == 1:
            first[charge.run_id] = charge.admission_id
    asked = Run.objects.filter(owner_id=user_id, kind=Run.Kind.TURN).filter(
        Q(created_at__gt=since) | Q(retried_at__gt=since) | Q(id__in={charge.run_id for charge in charges})
    )
    for run_id, admission_id, created_at, retried_at in asked.values_list(
        "id", "admission_id", "created_at", "retried_at"
    ):
        if retried_at is not None:
            messages[first.get(run_id, run_id)] = created_at
        messages[admission_id] = retried_at or created_at
    return {admission_id: at for admission_id, at in messages.items() if at > since}
