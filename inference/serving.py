"""The worker's side of Django: boot of the engine, the claim loop, and the settlement of outcomes."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections
from django.utils import timezone
from uuid_utils.compat import uuid7

from inference import publishing, runs, store, token_ids
from inference.cell import queue
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.models import ModelPool, Run
from inference.worker import engine_choice
from inference.worker.engine import Sampling
from inference.worker.generation import Assignment, Outcome, Result
from inference.worker.host import Host, Identity, Ports

log = structlog.get_logger(__name__)

# How long running answers may go on after the worker was told to stop: flushing and settling what is left, and closing
# the engine, must fit into the rest of the supervisor's grace (20 s).
LEAVING_PATIENCE_S = 8.0
# How long a settlement is tried while the database is away. After that the run is left to the reaper.
SETTLE_PATIENCE_S = 15.0
SETTLE_AGAIN_S = 0.5

_STATUS = {
    Result.DONE: Run.Status.DONE,
    Result.CANCELLED: Run.Status.CANCELLED,
    Result.FAILED: Run.Status.FAILED,
    Result.INTERRUPTED: Run.Status.INTERRUPTED,
}


class Server:
    """A worker process serving one pool."""

    def __init__(self, *, pool: ModelPool, host: Host) -> None:
        self._pool = pool.slug
        self._host = host
        self._slots = threading.Semaphore(host.identity.slots)
        self._knocked = threading.Event()

    def serve_waiting(self) -> None:
        """Serve runs for as long as some wait and this worker has room; gives the slot back only then.

        A ticket that finds no slot leaves a knock: whoever gives a slot back then looks again. Without it, a run could
        arrive between another thread's last look into the queue and the return of its slot, and wait for nobody.
        """
        self._knocked.set()
        while self._knocked.is_set() and self._slots.acquire(blocking=False):
            try:
                self._knocked.clear()
                while self._serve_one():
                    pass
            finally:
                self._slots.release()

    def leave(self) -> None:
        """Claim nothing more; what runs may go on for a while. May be called from a signal handler."""
        self._host.leave(patience_s=LEAVING_PATIENCE_S)

    def stop(self) -> None:
        """End what still runs, and the engine."""
        self._host.stop()

    def _serve_one(self) -> bool:
        """Serve the best waiting run. False when there is none to be had."""
        if not self._host.takes_runs:
            return False
        try:
            cell, ticketed = store.connector().run(self._claim)
        except StoreUnavailable as error:
            log.warning("claim_failed", pool=self._pool, error=str(error))
            return False
        if ticketed is None:
            return False
        began = time.monotonic()
        held_ms = -1
        try:
            with self._host.holding(str(ticketed)):
                if self._generate(ticketed, incarnation=cell.keys.incarnation):
                    held_ms = round((time.monotonic() - began) * 1000)
        except Exception:
            # Whatever state the run is in, the reaper finds it; this worker may be what is wrong, so no next one now.
            log.exception("run_not_served", run=str(ticketed))
            return False
        finally:
            self._unlease(cell, ticketed, held_ms=held_ms)
        return True

    def _claim(self, cell: Cell) -> tuple[Cell, queue.Ticketed | None]:
        boot_id = self._host.identity.boot_id
        call = queue.claim(cell.keys, pool=self._pool, boot_id=boot_id, now_ms=store.now_ms())
        return cell, queue.read_claim(cell.call(call))

    def _unlease(self, cell: Cell, ticketed: queue.Ticketed, *, held_ms: int) -> None:
        boot_id = self._host.identity.boot_id
        try:
            cell.call(queue.unlease(cell.keys, pool=self._pool, run=ticketed, boot_id=boot_id, held_ms=held_ms))
        except StoreUnavailable as error:
            log.warning("unlease_failed", run=str(ticketed), error=str(error))

    def _generate(self, ticketed: queue.Ticketed, *, incarnation: str) -> bool:
        """Whether there was something to generate: a run cancelled in the meantime is only dropped."""
        run = runs.claim(
            run_id=ticketed.run_id,
            epoch=ticketed.epoch,
            worker=self._host.identity.boot_id,
            incarnation=incarnation,
            now=timezone.now(),
        )
        if run is None:
            return False
        # No database connection is held while the answer is generated.
        close_old_connections()
        settle(run, self._host.run(assignment_of(run, incarnation=incarnation)))
        return True


def assignment_of(run: Run, *, incarnation: str) -> Assignment:
    """A claimed run as the engine room needs it."""
    started: dict[str, object] = {
        "epoch": run.epoch,
        "pool": run.pool.slug,
        "model": run.model,
        "degraded": run.degraded,
    }
    if run.epoch > 1:
        started["reason"] = "retry" if run.epoch == run.base_epoch else "worker_lost"
    return Assignment(
        run_id=run.id,
        epoch=run.epoch,
        base_epoch=run.base_epoch,
        incarnation=incarnation,
        prompt_ids=token_ids.unpack(run.prompt_ids),
        carry_ids=token_ids.unpack(run.carry_ids),
        carry_text=run.carry_text,
        max_output_tokens=run.max_output_tokens,
        sampling=Sampling(temperature=run.pool.temperature, top_p=run.pool.top_p),
        # A prefix cache hit must not tell one user what another asked.
        cache_salt=str(run.owner_id),
        started=started,
        # A later epoch's reader has seen them, or was told by the epoch before.
        notices=run.context.get("notices", ()) if run.epoch == run.base_epoch else (),
    )


def settle(run: Run, outcome: Outcome, *, patience_s: float = SETTLE_PATIENCE_S) -> None:
    """Commit an outcome, then announce it. Nothing happens when the epoch is not the owner any more.

    Raises the database's error when it is away for longer than `patience_s`.
    """
    if outcome.result is Result.FENCED:
        return
    deadline = time.monotonic() + patience_s
    while True:
        try:
            ended = _commit(run, outcome)
            break
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            log.warning("settlement_repeated", run_id=str(run.id), exc_info=True)
            close_old_connections()
            time.sleep(SETTLE_AGAIN_S)
    if ended is not None:
        publishing.announce_end(ended, text=outcome.text)


def _commit(run: Run, outcome: Outcome) -> Run | None:
    requested_at = runs.cancel_requests(run_ids=[run.id]).get(run.id)
    release_ms = None
    if outcome.released_at is not None and requested_at is not None:
        release_ms = max(0, round((outcome.released_at - requested_at).total_seconds() * 1000))
    return runs.settle(
        run_id=run.id,
        epoch=run.epoch,
        ending=runs.Ending(
            status=_STATUS[outcome.result],
            text=outcome.text,
            own_tokens=outcome.own_tokens,
            output_tokens=outcome.total_tokens,
            cached_tokens=outcome.cached_tokens,
            finish_reason=outcome.finish_reason,
            error_code=outcome.error_code,
            first_token_at=outcome.first_published_at,
            release_ms=release_ms,
        ),
        now=datetime.now(UTC),
    )


_server: Server | None = None


def boot(*, pool_slug: str, concurrency: int) -> None:
    """Start this process's engine for a pool. Called once, before the first ticket. Raises ModelPool.DoesNotExist."""
    global _server  # noqa: PLW0603 - one engine per process is the design
    from inference import api

    pool = ModelPool.objects.get(slug=pool_slug)
    model = api.model_of(pool)
    host = Host(
        identity=Identity(
            pool=pool.slug,
            boot_id=f"{socket.gethostname()}-{os.getpid()}-{uuid7()}",
            engine=str(settings.ENGINE),
            model=model,
            slots=min(concurrency, pool.max_concurrent_runs),
        ),
        start_engine=engine_choice.starter(
            engine=str(settings.ENGINE),
            model=model,
            context_window=pool.context_window,
            max_concurrent_runs=pool.max_concurrent_runs,
            options=pool.engine_options,
        ),
        redis_url=settings.REDIS_URL_SOURCE,
        ports=Ports(verify_owner=_verify_owner, cancel_requests=_cancel_requests),
        on_death=_end_process,
    )
    host.start()
    _server = Server(pool=pool, host=host)


def leave() -> None:
    """The process was told to stop: claim nothing more. May be called from a signal handler."""
    if _server is not None:
        _server.leave()


def shutdown() -> None:
    """Stop this process's engine, if it has one."""
    if _server is not None:
        _server.stop()


def _end_process() -> None:
    """Have Celery shut down in order; what supervises the worker starts another one, with a new engine."""
    os.kill(os.getpid(), signal.SIGTERM)


def serve_waiting(*, pool: str) -> None:
    """Serve what waits in the pool. Raises RuntimeError in a process that has no engine for it."""
    if _server is None:
        raise RuntimeError(f"this process has no engine: tickets of pool {pool!r} are for a worker")
    _server.serve_waiting()


def _verify_owner(run_id: UUID, epoch: int, incarnation: str) -> bool:
    with _own_connection():
        return runs.verify_owner(run_id=run_id, epoch=epoch, incarnation=incarnation)


def _cancel_requests(run_ids: list[UUID]) -> dict[UUID, datetime]:
    with _own_connection():
        return runs.cancel_requests(run_ids=run_ids)


@contextlib.contextmanager
def _own_connection() -> Iterator[None]:
    """The engine room's helper threads live on: a connection kept in one would outlast a restart of the database."""
    try:
        yield
    finally:
        close_old_connections()
