"""Celery's signals that make a process a GPU worker: one that consumes a pool's queue gets that pool's engine."""

import os
import signal
from typing import Any

import structlog
from celery.signals import celeryd_after_setup, worker_ready, worker_shutdown, worker_shutting_down

from inference import serving, tickets
from inference.worker import guard

log = structlog.get_logger(__name__)

POOL_QUEUE = "pool."
# How long a worker that was told to stop may take to hand its answers over and close its engine. Then it is killed:
# what is left goes on elsewhere as after any kill -9. Below the grace that supervisors give it.
LEAVING_BOUND_S = 4.5


@celeryd_after_setup.connect(dispatch_uid="inference.boot_engine")
def boot_engine(*, instance: Any, **_: Any) -> None:
    """Load the engine before the worker takes its first ticket.

    Raises SystemExit where it cannot: Celery swallows other exceptions of receivers, and a worker without an engine
    would only take tickets away from those that have one.
    """
    pools = [
        name.removeprefix(POOL_QUEUE) for name in instance.app.amqp.queues.consume_from if name.startswith(POOL_QUEUE)
    ]
    if not pools:
        return
    try:
        if len(pools) > 1:
            raise ValueError(f"an engine serves one pool, not {', '.join(pools)}")
        guard.start()
        serving.boot(pool_slug=pools[0], concurrency=int(instance.concurrency), node=instance.hostname)
        instance.app.amqp.queues.select_add(tickets.queue_of(pool=pools[0], node=instance.hostname))
    except Exception as error:
        log.exception("engine_not_started", pools=pools)
        raise SystemExit(1) from error


@worker_shutting_down.connect(dispatch_uid="inference.leave")
def leave(**_: Any) -> None:
    """Hand over from the moment that the process is told to stop, and be gone in time."""
    if serving.leave():
        guard.end_within(seconds=LEAVING_BOUND_S)


@worker_ready.connect(dispatch_uid="inference.quit_in_order")
def quit_in_order(**_: Any) -> None:
    """SIGQUIT does what SIGTERM does: Celery's own way waits inside the handler, for answers that nobody hands over."""
    if serving.has_engine():
        signal.signal(signal.SIGQUIT, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


@worker_shutdown.connect(dispatch_uid="inference.stop_engine")
def stop_engine(**_: Any) -> None:
    """Stop the engine once the last task is done."""
    serving.shutdown()
