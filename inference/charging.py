"""What the attempts of a run cost: rows for the ledger, by the charging rule (docs/turn.md).

The user pays the prompt once, on the run's last row, and each visible token once, in the row of the epoch that made
it. What was computed in vain is waste, which nobody pays. Prices are the pool's as they are at settlement.
"""

from datetime import datetime
from uuid import UUID

from billing.contracts import Charge, Prices
from inference.models import ModelPool, Run

_REASONS = {Run.Status.DONE: "completed"}


def of_end(run: Run, *, own_tokens: int, began: bool, now: datetime) -> Charge | None:
    """The row of a run's last epoch; `run` is terminal already, `began` = a worker had claimed that epoch.

    None for a run that nobody began and that shows nothing: it costs nothing. One that broke before it showed anything
    is our loss, not the user's.
    """
    if not began and not run.output_tokens:
        return None
    status = Run.Status(run.status)
    wasted = status in (Run.Status.FAILED, Run.Status.INTERRUPTED) and not run.output_tokens
    return Charge(
        user_id=_payer(run),
        run_id=run.id,
        epoch=run.epoch,
        admission_id=run.admission_id,
        pool=run.pool.slug,
        reason=_REASONS.get(status, status.value),
        prompt_tokens=0 if wasted else run.prompt_tokens,
        cached_tokens=0 if wasted else run.cached_tokens,
        output_tokens=own_tokens,
        wasted_tokens=run.prompt_tokens if wasted else 0,
        at=now,
        prices=_prices_of(run.pool),
        purpose=run.kind,
    )


def of_lost(run: Run, *, own_tokens: int, now: datetime) -> Charge:
    """The row of an epoch whose worker was lost, with the tokens that it had published; `run` is as it was then.

    The next epoch computes the prompt again. Whether this one had, only its tokens prove.
    """
    return Charge(
        user_id=_payer(run),
        run_id=run.id,
        epoch=run.epoch,
        admission_id=run.admission_id,
        pool=run.pool.slug,
        reason="lost",
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=own_tokens,
        wasted_tokens=run.prompt_tokens if own_tokens else 0,
        at=now,
        prices=_prices_of(run.pool),
        purpose=run.kind,
    )


def _payer(run: Run) -> UUID | None:
    """What works in the background for a chat, nobody asked for: the system pays."""
    return run.owner_id if run.is_turn else None


def _prices_of(pool: ModelPool) -> Prices:
    return Prices(prompt=pool.prompt_price, cached=pool.cached_price, output=pool.output_price)
