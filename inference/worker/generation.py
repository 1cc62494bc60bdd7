"""One epoch of a run, from its opening in the stream to the outcome that is to be settled."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from uuid import UUID

import structlog

from inference.worker.engine import Engine, EngineDead, EngineRefused, GenerationRequest, Sampling
from inference.worker.flusher import Flusher
from inference.worker.publication import Phase, Publication

log = structlog.get_logger(__name__)

# How long a finished answer waits for Redis before it is committed without its last tokens in the stream.
OUTAGE_BOUND_S = 15.0
# The same for a worker that has to go.
LEAVING_BOUND_S = 2.0
# How long an engine may take to let go of a sequence, and after what an unheard order is given again.
RELEASE_BOUND_S = 5.0
ABORT_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A claimed epoch, as the worker needs it. Token counts; `max_output_tokens` is for the whole answer."""

    run_id: UUID
    epoch: int
    base_epoch: int
    incarnation: str
    prompt_ids: Sequence[int]
    carry_ids: Sequence[int]
    carry_text: str
    max_output_tokens: int
    sampling: Sampling
    cache_salt: str
    started: Mapping[str, object]
    notices: Sequence[Mapping[str, object]] = ()

    def __str__(self) -> str:
        return f"{self.run_id}:{self.epoch}"


class Result(Enum):
    """Why an epoch ended here."""

    DONE = auto()
    CANCELLED = auto()
    FAILED = auto()
    # The engine died or the worker leaves: what is there is kept, and the answer is not finished.
    INTERRUPTED = auto()
    # Somebody else owns the run now: nothing is to be settled.
    FENCED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an epoch came to. `released_at` is when the engine let go of a cancelled sequence."""

    result: Result
    text: str
    own_tokens: int
    total_tokens: int
    cached_tokens: int = 0
    finish_reason: str = ""
    error_code: str = ""
    first_published_at: datetime | None = None
    released_at: datetime | None = None


class Generation:
    """Runs one assignment on an engine; may be ended early from the same event loop."""

    def __init__(
        self, *, assignment: Assignment, engine: Engine, flusher: Flusher, outage_bound_s: float = OUTAGE_BOUND_S
    ) -> None:
        self.assignment = assignment
        self._engine = engine
        self._flusher = flusher
        self._outage_bound_s = outage_bound_s
        # What the answer is to end as before its time, if anything.
        self._ordered: Result | None = None
        self._stop = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._cached_tokens = 0
        self._publication = Publication(
            run_id=assignment.run_id,
            epoch=assignment.epoch,
            base_epoch=assignment.base_epoch,
            incarnation=assignment.incarnation,
            started=assignment.started,
            notices=assignment.notices,
            carry_ids=assignment.carry_ids,
            carry_text=assignment.carry_text,
            on_fenced=self._stop.set,
        )

    def cancel(self) -> None:
        """Stop generating; `run` then ends with what there is. Again: no effect."""
        self._order(Result.CANCELLED)

    def interrupt(self) -> None:
        """Stop generating because the worker has to go, and do not wait long for a Redis that is away."""
        self._outage_bound_s = min(self._outage_bound_s, LEAVING_BOUND_S)
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._outage_bound_s)
        self._order(Result.INTERRUPTED)

    async def run(self) -> Outcome:
        """Generate until the answer is finished, ended early, refused, or not ours any more."""
        publication = self._publication
        try:
            await self._flusher.open(publication)
            return await self._generate(publication)
        finally:
            self._flusher.close(publication)

    def _order(self, result: Result) -> None:
        if self._ordered is None:
            self._ordered = result
            self._stop.set()

    async def _generate(self, publication: Publication) -> Outcome:
        remaining = self.assignment.max_output_tokens - len(self.assignment.carry_ids)
        finish_reason, failure = ("length" if remaining <= 0 else ""), None
        if remaining > 0 and self._ordered is None and publication.phase is not Phase.FENCED:
            finish_reason, failure = await self._attempt(remaining)
        released_at = datetime.now(UTC)
        await self._drain(publication)
        if publication.phase is Phase.FENCED:
            result, error_code = Result.FENCED, ""
        elif finish_reason:
            # An answer that was finished before the engine saw the order to stop is done.
            result, error_code = Result.DONE, ""
        elif self._ordered is not None:
            result, error_code = self._ordered, _CODES[self._ordered]
        else:
            result, error_code = failure or (Result.FAILED, "engine_stopped")
        return Outcome(
            result=result,
            text=publication.text,
            own_tokens=publication.own_tokens,
            total_tokens=publication.total_tokens,
            cached_tokens=self._cached_tokens,
            finish_reason=finish_reason,
            error_code=error_code,
            first_published_at=publication.first_published_at,
            released_at=released_at if result is Result.CANCELLED else None,
        )

    async def _drain(self, publication: Publication) -> None:
        """Return when everything is in the stream, the epoch is fenced, or Redis stays away too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._outage_bound_s) as self._patience:
                await self._flusher.drain(publication)
        self._patience = None

    async def _attempt(self, max_output_tokens: int) -> tuple[str, tuple[Result, str] | None]:
        """Have the engine generate. Returns the finish reason ('' when broken off), and what went wrong if it did."""
        assignment = self.assignment
        request = GenerationRequest(
            request_id=str(assignment),
            prompt_ids=[*assignment.prompt_ids, *assignment.carry_ids],
            max_output_tokens=max_output_tokens,
            sampling=assignment.sampling,
            cache_salt=assignment.cache_salt,
        )
        try:
            return await self._consume(request), None
        except EngineDead as error:
            log.warning("engine_dead", run=str(assignment), error=str(error))
            return "", (Result.INTERRUPTED, "engine_dead")
        except EngineRefused as error:
            log.warning("engine_refused", run=str(assignment), error=str(error))
            return "", (Result.FAILED, "engine_refused")
        except Exception:
            # A fault of the engine's own: this answer ends, the worker and the others go on.
            log.exception("engine_broke", run=str(assignment))
            return "", (Result.FAILED, "engine_error")

    async def _consume(self, request: GenerationRequest) -> str:
        """Move the engine's deltas into the publication until they end or an order comes. Returns the finish reason."""
        pump = asyncio.ensure_future(self._pump(request))
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({pump, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                await self._abort(request.request_id, pump)
            return pump.result() if pump.done() and not pump.cancelled() else ""
        finally:
            stop.cancel()
            if not pump.done():
                pump.cancel()
                await asyncio.wait({pump}, timeout=RELEASE_BOUND_S)

    async def _pump(self, request: GenerationRequest) -> str:
        publication = self._publication
        # Closing the iterator drops the sequence, whatever made the loop end.
        async with contextlib.aclosing(self._engine.generate(request)) as deltas:
            async for delta in deltas:
                self._cached_tokens = max(self._cached_tokens, delta.cached_tokens)
                publication.add(delta)
                if publication.has_pending:
                    self._flusher.notice(publication)
                if delta.finish_reason:
                    return delta.finish_reason
        return ""

    async def _abort(self, request_id: str, pump: "asyncio.Future[str]") -> None:
        """Return when the engine has let go of the sequence, or has not answered in time."""
        try:
            async with asyncio.timeout(RELEASE_BOUND_S):
                while True:
                    await self._engine.abort(request_id)
                    await asyncio.wait({pump}, timeout=ABORT_AGAIN_S)
                    if pump.done():
                        return
                    # It came before the engine knew the request.
        except Exception as error:
            # A hung or dead engine holds nobody up; what it made until now is the answer.
            log.warning("abort_failed", run=str(self.assignment), error=repr(error))


_CODES = {Result.CANCELLED: "cancelled", Result.INTERRUPTED: "worker_stopped"}
