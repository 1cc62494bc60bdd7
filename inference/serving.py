"""The worker's side of Django: boot of the engine, the claim loop, and the settlement of outcomes."""

import os
import socket
import threading
import time
from datetime import UTC, datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.utils import timezone
from uuid_utils.compat import uuid7

from inference import publishing, runs, store, token_ids
from inference.cell import queue
from inference.cell.errors import StoreUnavailable
from inference.models import ModelPool, Run
from inference.worker import engine_choice
from inference.worker.engine import EngineDead, Sampling
from inference.worker.generation import Assignment, Outcome, Result
from inference.worker.host import Host, Identity, Ports

log = structlog.get_logger(__name__)

_STATUS = {
    Result.DONE: Run.Status.DONE,
    Result.CANCELLED: Run.Status.CANCELLED,
    Result.FAILED: Run.Status.FAILED,
}


class Server:
    """A worker process serving one pool."""

    def __init__(self, *, pool: ModelPool, host: Host) -> None:
        self._pool = pool.slug
        self._host = host
        self._slots = threading.Semaphore(host.identity.slots)

    def serve_waiting(self) -> None:
        """Serve runs for as long as some wait and this worker has room; gives the slot back only then."""
        while self._slots.acquire(blocking=False):
            try:
                served = self._serve_one()
            finally:
                self._slots.release()
            if not served:
                return

    def stop(self) -> None:
        self._host.stop()

    def _serve_one(self) -> bool:
        try:
            cell = store.connector().cell()
            boot_id = self._host.identity.boot_id
            ticketed = queue.read_claim(
                cell.call(queue.claim(cell.keys, pool=self._pool, boot_id=boot_id, now_ms=store.now_ms()))
            )
        except StoreUnavailable as error:
            log.warning("claim_failed", pool=self._pool, error=str(error))
            return False
        if ticketed is None:
            return False
        began = time.monotonic()
        served = self._generate(ticketed, incarnation=cell.keys.incarnation)
        held_ms = round((time.monotonic() - began) * 1000) if served else -1
        try:
            cell.call(queue.unlease(cell.keys, pool=self._pool, run=ticketed, boot_id=boot_id, held_ms=held_ms))
        except StoreUnavailable as error:
            log.warning("unlease_failed", run_id=str(ticketed.run_id), error=str(error))
        return True

    def _generate(self, ticketed: queue.Ticketed, *, incarnation: str) -> bool:
        run = runs.claim(
            run_id=ticketed.run_id,
            epoch=ticketed.epoch,
            worker=self._host.identity.boot_id,
            incarnation=incarnation,
            now=timezone.now(),
        )
        if run is None:
            return False
        try:
            outcome = self._host.run(assignment_of(run, incarnation=incarnation))
        except EngineDead as error:
            log.error("engine_dead", run_id=str(run.id), error=str(error))
            outcome = Outcome(
                result=Result.FAILED,
                text=run.carry_text,
                own_tokens=0,
                total_tokens=0,
                error_code="engine_dead",
            )
        settle(run, outcome)
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
    )


def settle(run: Run, outcome: Outcome) -> None:
    """Commit an outcome, then announce it. Nothing happens when the epoch is not the owner any more."""
    if outcome.result is Result.FENCED:
        return
    requested_at = runs.cancel_requests(run_ids=[run.id]).get(run.id)
    release_ms = None
    if outcome.released_at is not None and requested_at is not None:
        release_ms = max(0, round((outcome.released_at - requested_at).total_seconds() * 1000))
    ended = runs.settle(
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
    if ended is not None:
        publishing.announce_end(ended, text=outcome.text)


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
    )
    host.start()
    _server = Server(pool=pool, host=host)


def shutdown() -> None:
    """Stop this process's engine, if it has one."""
    if _server is not None:
        _server.stop()


def serve_waiting(*, pool: str) -> None:
    """Serve what waits in the pool. Raises RuntimeError in a process that has no engine for it."""
    if _server is None:
        raise RuntimeError(f"this process has no engine: tickets of pool {pool!r} are for a worker")
    _server.serve_waiting()


def _verify_owner(run_id: UUID, epoch: int, incarnation: str) -> bool:
    return runs.verify_owner(run_id=run_id, epoch=epoch, incarnation=incarnation)


def _cancel_requests(run_ids: list[UUID]) -> dict[UUID, datetime]:
    return runs.cancel_requests(run_ids=run_ids)
