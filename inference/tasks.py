"""Celery tasks of the inference app."""

import structlog
from celery import shared_task
from django.utils import timezone

from inference import checkpoints, reaper, restoring, serving, telling, worker_hooks
from inference.cell.errors import StoreUnavailable

# Imported for its signal receivers: Celery loads this module in every worker.
__all__ = ["checkpoint", "generate", "reap", "restore", "tell", "worker_hooks"]

log = structlog.get_logger(__name__)


@shared_task(name="inference.tasks.generate", ignore_result=True, acks_late=False)
def generate(pool: str, expected: bool = False) -> None:
    """A wake-up for a pool's worker: serve what waits. It names no run, so losing it loses nothing.

    `expected`: the worker has room for one run that the queue already counts as taken.
    """
    serving.serve_waiting(pool=pool, expected=expected)


@shared_task(name="inference.tasks.reap", ignore_result=True, acks_late=False)
def reap() -> None:
    """One pass of the reaper; beat asks for one every second."""
    reaper.reap(now=timezone.now())


@shared_task(name="inference.tasks.tell", ignore_result=True, acks_late=False)
def tell() -> None:
    """Tell those who wait where they stand; beat asks for it every second."""
    try:
        telling.tell()
    except StoreUnavailable as error:
        log.warning("not_told", error=str(error))


@shared_task(name="inference.tasks.restore", ignore_result=True, acks_late=False)
def restore() -> None:
    """Bring back quota accounts that Redis has lost; beat asks for it every 5 seconds."""
    try:
        restored = restoring.restore(now=timezone.now())
    except StoreUnavailable as error:
        log.warning("not_restored", error=str(error))
        return
    if restored:
        log.info("restored", accounts=restored)


@shared_task(name="inference.tasks.checkpoint", ignore_result=True, acks_late=False)
def checkpoint() -> None:
    """Note how far token budgets are used; beat asks for it every 5 minutes."""
    noted = checkpoints.checkpoint(now=timezone.now())
    if noted:
        log.info("checkpointed", accounts=noted)
