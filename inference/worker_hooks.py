"""Celery's signals that make a process a GPU worker: one that consumes a pool's queue gets that pool's engine."""

from typing import Any

from celery.signals import celeryd_after_setup, worker_shutdown

from inference import serving
from inference.worker import guard

POOL_QUEUE = "pool."


@celeryd_after_setup.connect(dispatch_uid="inference.boot_engine")
def boot_engine(*, instance: Any, **_: Any) -> None:
    """Load the engine before the worker takes its first ticket.

    Raises ValueError for a worker of several pools: an engine serves one.
    """
    pools = [
        name.removeprefix(POOL_QUEUE) for name in instance.app.amqp.queues.consume_from if name.startswith(POOL_QUEUE)
    ]
    if not pools:
        return
    if len(pools) > 1:
        raise ValueError(f"a worker serves one pool, not {', '.join(pools)}")
    guard.start()
    serving.boot(pool_slug=pools[0], concurrency=int(instance.concurrency))


@worker_shutdown.connect(dispatch_uid="inference.stop_engine")
def stop_engine(**_: Any) -> None:
    """Stop the engine once the last task is done."""
    serving.shutdown()
