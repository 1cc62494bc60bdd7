"""Celery tasks of the inference app."""

from celery import shared_task
from django.utils import timezone

from inference import reaper, serving, worker_hooks

# Imported for its signal receivers: Celery loads this module in every worker.
__all__ = ["generate", "reap", "worker_hooks"]


@shared_task(name="inference.tasks.generate", ignore_result=True, acks_late=False)
def generate(pool: str) -> None:
    """A wake-up for a pool's worker: serve what waits. It names no run, so losing it loses nothing."""
    serving.serve_waiting(pool=pool)


@shared_task(name="inference.tasks.reap", ignore_result=True, acks_late=False)
def reap() -> None:
    """One pass of the reaper; beat asks for one every second."""
    reaper.reap(now=timezone.now())
