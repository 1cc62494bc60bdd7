"""One epoch of a run, from its opening in the stream to the outcome that is to be settled."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from uuid import UUID

import structlog

from inference.worker.audience import TO_THE_END, Absence, Unwatched
from inference.worker.engine import Engine, EngineDead, EngineRefused, GenerationRequest, Sampling
from inference.worker.flusher import Flusher
from inference.worker.publication import Phase, Publication

log = structlog.get_logger(__name__)

# How long a finished answer waits for Redis before it is committed without its last tokens in the stream.
OUTAGE_BOUND_S = 15.0
# The same for a worker that has to go.
LEAVING_BOUND_S = 1.5
# How long an engine may take to let go of a sequence, and after what an unheard order is given again.
RELEASE_BOUND_S = 5.0
DROP_BOUND_S = 0.5
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
    # How long the answer may still take, in seconds.
    time_left_s: float
    notices: Sequence[Mapping[str, object]] = ()
    unwatched: Unwatched = TO_THE_END

    def __str__(self) -> str:
        return f"{self.run_id}:{self.epoch}"


class Result(Enum):
    """Why an epoch ended here."""

    DONE = auto()
    CANCELLED = auto()
    FAILED = auto()
    # Out of time: what is there is kept, and the answer is not finished.
    INTERRUPTED = auto()
    # The engine is lost or the worker leaves (`error_code` says which): the next epoch goes on from what is published.
    GIVEN_UP = auto()
    # Somebody else owns the run now: nothing is to be settled.
    FENCED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an epoch came to. `released_at` is when the engine let go of a cancelled sequence.

    `text` is the whole answer, `ids` its tokens; the counts include those that have no text.
    """

    result: Result
    text: str
    own_tokens: int
    total_tokens: int
    ids: Sequence[int] = ()
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
        # What the answer is to end as before its time, if anything, and why.
        self._ordered: tuple[Result, str] | None = None
        # Whether the engine has it: only then can the engine stand still.
        self.is_generating = False
        self._stop = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._cached_tokens = 0
        self._absence = Absence(allowed=assignment.unwatched) if assignment.unwatched.is_bounded else None
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
        self._order(Result.CANCELLED, "cancelled")

    def give_up(self, reason: str) -> None:
        """Stop generating because the worker has to go, and do not wait long for a Redis that is away.

        Again: no effect; the wait ends no later.
        """
        self._order(Result.GIVEN_UP, reason)
        self._outage_bound_s = min(self._outage_bound_s, LEAVING_BOUND_S)
        if self._patience is not None and not self._patience.expired():
            end, until = self._patience.when(), asyncio.get_running_loop().time() + self._outage_bound_s
            self._patience.reschedule(until if end is None else min(end, until))

    @property
    def minds_followers(self) -> bool:
        """Whether the answer ends early when nobody follows it."""
        return self._absence is not None and self.is_generating

    def note_followers(self, count: int | None) -> None:
        """How many follow at the moment; None where nobody can tell."""
        if self._absence is not None and self.is_generating:
            now = asyncio.get_running_loop().time()
            self._absence.look(followers=count, tokens=self._publication.own_tokens, now=now)
            self._end_if_unwatched()

    async def run(self) -> Outcome:
        """Generate until the answer is finished, ended early, refused, or not ours any more."""
        publication = self._publication
        deadline = asyncio.get_running_loop().call_later(
            max(0.0, self.assignment.time_left_s), self._order, Result.INTERRUPTED, "deadline"
        )
        try:
            await self._flusher.open(publication)
            return await self._generate(publication)
        finally:
            deadline.cancel()
            self._flusher.close(publication)

    @property
    def _is_given_up(self) -> bool:
        return self._ordered is not None and self._ordered[0] is Result.GIVEN_UP

    def _order(self, result: Result, reason: str) -> None:
        if self._ordered is None:
            self._ordered = result, reason
            self._stop.set()

    def _end_if_unwatched(self) -> bool:
        """End an answer that has gone on without a follower for as long as it may. Whether it has."""
        if self._absence is None or not self._absence.is_over(tokens=self._publication.own_tokens):
            return False
        self._order(Result.CANCELLED, "unwatched")
        return True

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
            result, error_code = self._ordered
        else:
            result, error_code = failure or (Result.FAILED, "engine_stopped")
        if result is Result.INTERRUPTED and not publication.text:
            result = Result.FAILED
        return Outcome(
            result=result,
            text=publication.text,
            own_tokens=publication.own_tokens,
            total_tokens=publication.total_tokens,
            ids=publication.settled_ids,
            cached_tokens=self._cached_tokens,
            finish_reason=finish_reason,
            error_code=error_code,
            first_published_at=publication.first_published_at,
            released_at=released_at if result is Result.CANCELLED else None,
        )

    async def _drain(self, publication: Publication) -> None:
        """Return when everything is in the stream, the epoch is fenced, or Redis stays away too long."""
        try:
            async with asyncio.timeout(self._outage_bound_s) as self._patience:
                await self._flusher.drain(publication)
        except TimeoutError:
            log.warning("drain_ended", run=str(self.assignment))
        finally:
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
            return "", (Result.GIVEN_UP, "worker_lost")
        except EngineRefused as error:
            log.warning("engine_refused", run=str(assignment), error=str(error))
            return "", (Result.FAILED, "engine_refused")
        except Exception:
            # A fault of the engine's own: this answer ends, the worker and the others go on.
            log.exception("engine_broke", run=str(assignment))
            return "", (Result.FAILED, "engine_error")

    async def _consume(self, request: GenerationRequest) -> str:
        """Move the engine's deltas into the publication until they end or an order comes. Returns the finish reason."""
        self.is_generating = True
        pump = asyncio.ensure_future(self._pump(request))
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({pump, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done() and not self._is_given_up:
                await self._abort(request.request_id, pump)
            return pump.result() if pump.done() and not pump.cancelled() else ""
        finally:
            self.is_generating = False
            stop.cancel()
            if not pump.done():
                # Of a worker that goes nobody asks when its engine let go: dropping the stream is enough.
                pump.cancel()
                await asyncio.wait({pump}, timeout=DROP_BOUND_S if self._is_given_up else RELEASE_BOUND_S)

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
                if self._end_if_unwatched():
                    break
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
