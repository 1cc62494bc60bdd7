"""The worker's side of Django: boot of the engine, the claim loop, and the settlement of outcomes."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections
from django.utils import timezone

from inference import publishing, runs, store, takeover, tickets, token_ids
from inference.cell import queue
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Cell
from inference.models import Attempt, ModelPool, Run
from inference.worker import engine_choice
from inference.worker.audience import Unwatched
from inference.worker.engine import Sampling
from inference.worker.generation import Assignment, Outcome, Result
from inference.worker.host import Host, Identity, Ports

log = structlog.get_logger(__name__)

# How long a settlement is tried while the database is away. After that the run is left to the reaper.
SETTLE_PATIENCE_S = 15.0
SETTLE_AGAIN_S = 0.5

_STATUS = {
    Result.DONE: Run.Status.DONE,
    Result.CANCELLED: Run.Status.CANCELLED,
    Result.FAILED: Run.Status.FAILED,
    Result.INTERRUPTED: Run.Status.INTERRUPTED,
}
# Why an epoch was given up: the attempt's outcome, and the reason that the next epoch's `started` tells.
_REASONS = {Attempt.Outcome.LOST: "worker_lost", Attempt.Outcome.DRAINED: "drained"}
_CAUSES = {reason: cause for cause, reason in _REASONS.items()}


class Server:
    """A worker process serving one pool."""

    def __init__(self, *, pool: ModelPool, host: Host) -> None:
        self._pool = pool.slug
        self._host = host
        self._slots = threading.Semaphore(host.identity.slots)
        self._knocked = threading.Event()
        self._later = _Later(self._knock)

    def serve_waiting(self, *, expected: bool = False) -> None:
        """Serve runs for as long as some wait and this worker has room; gives the slot back only then.

        A ticket that finds no slot leaves a knock: whoever gives a slot back then looks again. Without it, a run could
        arrive between another thread's last look into the queue and the return of its slot, and wait for nobody.
        `expected`: the ticket is for this worker alone, and one of its free slots was counted as taken for it.
        """
        if not self._host.takes_runs:
            # Celery takes one more ticket after it was told to stop, often one for an answer just handed over.
            tickets.send(pool=self._pool)
            return
        self._knocked.set()
        while self._knocked.is_set() and self._slots.acquire(blocking=False):
            try:
                self._knocked.clear()
                while self._serve_one(expected=expected):
                    expected = False
                expected = False
            finally:
                self._slots.release()

    def leave(self) -> None:
        """Claim nothing more, and hand over what runs. May be called from a signal handler."""
        self._host.leave()

    def stop(self) -> None:
        """Hand over what still runs; stop the engine."""
        self._host.stop()

    def _serve_one(self, *, expected: bool) -> bool:
        """Serve the best waiting run. False when there is none to be had."""
        if not self._host.takes_runs:
            return False
        try:
            cell, claimed = store.connector().run(lambda cell: self._claim(cell, expected=expected))
        except StoreUnavailable as error:
            log.warning("claim_failed", pool=self._pool, error=str(error))
            return False
        match claimed:
            case None:
                self._later.none_waits()
                return False
            case queue.Later(ms=ms):
                self._later.look(after_s=ms / 1000)
                return False
            case ticketed:
                self._later.one_taken()
                return self._serve(cell, ticketed)

    def _serve(self, cell: Cell, ticketed: queue.Ticketed) -> bool:
        """Serve a claimed run and give its lease back. False when this worker should not go on to the next."""
        claim = _Claim(began=time.monotonic())
        try:
            with self._host.holding(str(ticketed)):
                self._generate(ticketed, claim, incarnation=cell.keys.incarnation)
        except Exception:
            # Whatever state the run is in, the reaper finds it; this worker may be what is wrong, so no next one now.
            log.exception("run_not_served", run=str(ticketed))
            return False
        finally:
            self._give_back(cell, ticketed, claim)
        if claim.ended is not None and claim.outcome is not None:
            # Only now: who reads the end may send the next turn at once, which is to find the chat's home and the slot.
            self._tell_end(claim.ended, text=claim.outcome.text)
        return True

    def _tell_end(self, ended: Run, *, text: str) -> None:
        try:
            publishing.tell_end(ended, text=text)
        except Exception:
            log.exception("end_not_told", run_id=str(ended.id))

    def _claim(self, cell: Cell, *, expected: bool) -> tuple[Cell, queue.Ticketed | queue.Later | None]:
        call = queue.claim(
            cell.keys,
            pool=self._pool,
            boot_id=self._host.identity.boot_id,
            room_tokens=self._host.room_tokens,
            now_ms=store.now_ms(),
            expected=expected,
        )
        return cell, queue.read_claim(cell.call(call))

    def _knock(self) -> None:
        tickets.send(pool=self._pool, boot_id=self._host.identity.boot_id)

    def _give_back(self, cell: Cell, ticketed: queue.Ticketed, claim: "_Claim") -> None:
        """End the lease, charged for what was served. The slot was held until the settlement: that counts."""
        boot_id = self._host.identity.boot_id
        if claim.run is None or claim.outcome is None:
            call = queue.abort(cell.keys, pool=self._pool, run=ticketed, boot_id=boot_id, shown_tokens=None)
        else:
            call = queue.finish(
                cell.keys,
                pool=self._pool,
                run=ticketed,
                boot_id=boot_id,
                chat_id=claim.run.thread_id,
                served=_served(claim.run, claim.outcome, began=claim.began, worker_tokens=self._host.computed_tokens),
            )
        try:
            cell.call(call)
        except StoreUnavailable as error:
            log.warning("lease_not_given_back", run=str(ticketed), error=str(error))
        except Exception:
            # It lapses. What the answer's readers are to be told does not depend on it.
            log.exception("lease_not_given_back", run=str(ticketed))

    def _generate(self, ticketed: queue.Ticketed, claim: "_Claim", *, incarnation: str) -> None:
        """Generate and settle; `claim` learns what was. A run cancelled in the meantime is only dropped."""
        run = runs.claim(
            run_id=ticketed.run_id,
            epoch=ticketed.epoch,
            worker=self._host.identity.boot_id,
            incarnation=incarnation,
            now=timezone.now(),
        )
        if run is None:
            return
        # No database connection is held while the answer is generated.
        close_old_connections()
        outcome = self._host.run(assignment_of(run, incarnation=incarnation, now=timezone.now()))
        if outcome.result is Result.GIVEN_UP:
            takeover.hand_over(run_id=run.id, epoch=run.epoch, cause=_CAUSES[outcome.error_code], now=timezone.now())
            return
        claim.run, claim.outcome = run, outcome
        claim.ended = settle(run, outcome)
        if claim.ended is not None:
            publishing.settle_hold(claim.ended)


@dataclass(slots=True)
class _Claim:
    """A claimed run while it is served: since when (monotonic seconds), its row, what came of it, and its row when it
    has ended.
    """

    began: float
    run: Run | None = None
    outcome: Outcome | None = None
    ended: Run | None = None


class _Later:
    """Has a worker come back to what it could not take: runs kept for others, or too large for its memory just then.

    `knock` wakes one of its threads. Once it finds something, each run that is taken wakes one more: what was kept
    comes free together, and one thread alone would serve it one by one. Thread-safe.
    """

    def __init__(self, knock: Callable[[], object]) -> None:
        self._knock = knock
        self._timer: threading.Timer | None = None
        self._due = 0.0
        self._some_wait = False
        self._lock = threading.Lock()

    def look(self, *, after_s: float) -> None:
        """Something waits that may be had in so many seconds. The soonest such look is enough."""
        due = time.monotonic() + after_s
        with self._lock:
            self._some_wait = True
            if self._timer is not None:
                if self._due <= due:
                    return
                self._timer.cancel()
            self._due = due
            self._timer = threading.Timer(after_s, self._fire)
            self._timer.daemon = True
            self._timer.start()

    def _fire(self) -> None:
        with self._lock:
            # Whoever the knock wakes may ask for another look before it returns.
            self._timer = None
        self._knock()

    def one_taken(self) -> None:
        """A run was claimed: the next may be to be had as well."""
        if self._some_wait:
            self._knock()

    def none_waits(self) -> None:
        """Nothing waits any more."""
        self._some_wait = False


def _served(run: Run, outcome: Outcome, *, began: float, worker_tokens: int) -> queue.Served:
    prompt = run.prompt_tokens + token_ids.count(run.carry_ids)
    cached = min(prompt, outcome.cached_tokens)
    first_ms = 0.0
    if outcome.first_published_at is not None and run.claimed_at is not None:
        first_ms = (outcome.first_published_at - run.claimed_at).total_seconds() * 1000
    return queue.Served(
        computed_tokens=prompt - cached,
        cached_tokens=cached,
        output_tokens=outcome.own_tokens,
        held_ms=round((time.monotonic() - began) * 1000),
        worker_tokens=worker_tokens,
        # Of answers: what jobs take says nothing about the next answer.
        is_whole=run.is_turn and outcome.result is Result.DONE and run.epoch == run.base_epoch,
        # Of a later epoch this would be since the first one's claim.
        first_token_ms=max(0, round(first_ms)) if run.epoch == run.base_epoch else 0,
    )


def assignment_of(run: Run, *, incarnation: str, now: datetime) -> Assignment:
    """A claimed run as the engine room needs it."""
    started: dict[str, object] = {
        "epoch": run.epoch,
        "pool": run.pool.slug,
        "model": run.model,
        "degraded": run.degraded,
    }
    if run.epoch > 1:
        started["reason"] = "retry" if run.epoch == run.base_epoch else _reason(run)
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
        time_left_s=(run.deadline_at - now).total_seconds(),
        # Text shows that an earlier epoch has said them; one that shows none may have been lost before it did. Said
        # twice they do no harm.
        notices=() if run.carry_ids else run.context.get("notices", ()),
        unwatched=Unwatched(tokens=run.unwatched_tokens, seconds=run.unwatched_s),
    )


def _reason(run: Run) -> str:
    """Why the epoch before this one ended."""
    before = Attempt.objects.filter(run_id=run.id, epoch=run.epoch - 1).values_list("outcome", flat=True).first()
    return _REASONS[Attempt.Outcome(before or Attempt.Outcome.LOST)]


def settle(run: Run, outcome: Outcome, *, patience_s: float = SETTLE_PATIENCE_S) -> Run | None:
    """Commit an outcome; the run as it ended. None, and nothing happens, when the epoch is not the owner any more.

    Raises the database's error when it is away for longer than `patience_s`.
    """
    if outcome.result is Result.FENCED:
        return None
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _commit(run, outcome)
        except (OperationalError, InterfaceError):
            if time.monotonic() > deadline:
                raise
            log.warning("settlement_repeated", run_id=str(run.id), exc_info=True)
            close_old_connections()
            time.sleep(SETTLE_AGAIN_S)


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
            ids=outcome.ids,
            cached_tokens=outcome.cached_tokens,
            finish_reason=outcome.finish_reason,
            error_code=outcome.error_code,
            first_token_at=outcome.first_published_at,
            release_ms=release_ms,
        ),
        now=datetime.now(UTC),
    )


_server: Server | None = None


def boot(*, pool_slug: str, concurrency: int, node: str) -> None:
    """Start this process's engine for a pool. Called once, before the first ticket. Raises ModelPool.DoesNotExist.

    `node` is the process's Celery node name.
    """
    global _server  # noqa: PLW0603 - one engine per process is the design
    from inference import api

    pool = ModelPool.objects.get(slug=pool_slug)
    model = api.model_of(pool)
    host = Host(
        identity=Identity(
            pool=pool.slug,
            boot_id=tickets.boot_id(node=node),
            engine=str(settings.ENGINE),
            model=model,
            slots=min(concurrency, pool.max_concurrent_runs),
            stall_s=pool.stall_s,
        ),
        start_engine=engine_choice.starter(
            engine=str(settings.ENGINE),
            model=model,
            context_window=pool.context_window,
            max_concurrent_runs=pool.max_concurrent_runs,
            options=pool.engine_options,
        ),
        redis_url=settings.REDIS_URL_SOURCE,
        ports=Ports(
            verify_owner=_verify_owner,
            cancel_requests=_cancel_requests,
            take_over_lapsed=lambda names: _take_over_lapsed(pool=pool_slug, names=names),
        ),
        on_death=_end_process,
        on_hung=_kill_process,
    )
    host.start()
    _server = Server(pool=pool, host=host)


def leave() -> bool:
    """The process was told to stop: claim nothing more, hand over what runs. May be called from a signal handler.

    False in a process without an engine.
    """
    if _server is None:
        return False
    _server.leave()
    return True


def has_engine() -> bool:
    """Whether this process serves a pool."""
    return _server is not None


def shutdown() -> None:
    """Stop this process's engine, if it has one."""
    if _server is not None:
        _server.stop()


def _end_process() -> None:
    """Have Celery shut down in order; what supervises the worker starts another one, with a new engine."""
    os.kill(os.getpid(), signal.SIGTERM)


def _kill_process() -> None:
    """End like any process that is killed: the watchdog ends what the engine left, leases lapse, others go on."""
    os.kill(os.getpid(), signal.SIGKILL)


def serve_waiting(*, pool: str, expected: bool = False) -> None:
    """Serve what waits in the pool. Raises RuntimeError in a process that has no engine for it."""
    if _server is None:
        raise RuntimeError(f"this process has no engine: tickets of pool {pool!r} are for a worker")
    _server.serve_waiting(expected=expected)


def _verify_owner(run_id: UUID, epoch: int, incarnation: str) -> bool:
    with _own_connection():
        return runs.verify_owner(run_id=run_id, epoch=epoch, incarnation=incarnation)


def _cancel_requests(run_ids: list[UUID]) -> dict[UUID, datetime]:
    with _own_connection():
        return runs.cancel_requests(run_ids=run_ids)


def _take_over_lapsed(*, pool: str, names: Sequence[str]) -> None:
    with _own_connection():
        try:
            takeover.take_over_lapsed(pool=pool, names=names, now=timezone.now())
        except StoreUnavailable as error:
            log.warning("take_over_failed", runs=names, error=str(error))


@contextlib.contextmanager
def _own_connection() -> Iterator[None]:
    """The engine room's helper threads live on: a connection kept in one would outlast a restart of the database."""
    try:
        yield
    finally:
        close_old_connections()
