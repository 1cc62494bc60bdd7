"""Tickets: the wake-ups that make a pool's workers look into the queue."""

import structlog
from celery import current_app
from kombu.exceptions import OperationalError
from uuid_utils.compat import uuid7

log = structlog.get_logger(__name__)

# With a boot's own part it must fit into what an attempt says of its worker.
NODE_LENGTH = 80


def queue_of(*, pool: str, node: str) -> str:
    """The queue of tickets for one worker of a pool (by its Celery node name) alone.

    Named by what a restart keeps, so that a worker's successor finds them, and none are left behind.
    """
    return f"worker.{pool}.{node}"


def boot_id(*, node: str) -> str:
    """A new boot id of a worker: unique, and telling its queue. Raises ValueError for a name that is too long."""
    if len(node) > NODE_LENGTH:
        raise ValueError(f"the worker's node name is longer than {NODE_LENGTH} characters: {node}")
    return f"{node}/{uuid7()}"


def send(*, pool: str, boot_id: str = "", expected: bool = False) -> bool:
    """Wake this worker, or else any one of the pool. False when the broker is away; the reaper sends another.

    `expected`: the queue counts one of the worker's free slots as taken for what it will find.
    """
    queue = queue_of(pool=pool, node=boot_id.rpartition("/")[0]) if boot_id else f"pool.{pool}"
    kwargs = {"pool": pool, "expected": True} if expected else {"pool": pool}
    try:
        current_app.send_task("inference.tasks.generate", kwargs=kwargs, queue=queue, ignore_result=True)
    except (OperationalError, OSError) as error:
        log.warning("ticket_not_sent", pool=pool, error=str(error))
        return False
    return True
