"""Celery tasks of billing."""

from celery import shared_task

from billing import metering

# Of one pass: half a second's work. What is left has its turn with the next.
_BATCHES = 20


@shared_task(name="billing.tasks.meter", ignore_result=True)
def meter() -> None:
    """Work off events of the ledger; beat asks for it every few seconds."""
    for _ in range(_BATCHES):
        if not metering.meter(limit=metering.BATCH):
            break
