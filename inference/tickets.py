"""Tickets: the wake-ups that make a pool's workers look into the queue."""

import structlog
from celery import current_app
from kombu.exceptions import OperationalError

log = structlog.get_logger(__name__)


def send(*, pool: str) -> bool:
    """Wake one worker of the pool. False when the broker is away; the reaper sends another."""
    try:
        current_app.send_task(
            "inference.tasks.generate", kwargs={"pool": pool}, queue=f"pool.{pool}", ignore_result=True
        )
    except (OperationalError, OSError) as error:
        log.warning("ticket_not_sent", pool=pool, error=str(error))
        return False
    return True
