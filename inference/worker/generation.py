"""One epoch of a run, from its opening in the stream to the outcome that is to be settled."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from uuid import UUID

from inference.worker.engine import Engine, EngineRefused, GenerationRequest, Sampling
from inference.worker.flusher import Flusher
from inference.worker.publication import Phase, Publication

# How long a finished answer waits for Redis before it is committed without its last tokens in the stream.
OUTAGE_BOUND_S = 15.0


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
    started: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.run_id}:{self.epoch}"


class Result(Enum):
    """Why an epoch ended here."""

    DONE = auto()
    CANCELLED = auto()
    FAILED = auto()
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
    """Runs one assignment on an engine; may be cancelled from the same event loop."""

    def __init__(self, *, assignment: Assignment, engine: Engine, flusher: Flusher) -> None:
        self.assignment = assignment
        self.progressed_at = time.monotonic()
        self._engine = engine
        self._flusher = flusher
        self._cancelled = False
        self._generating = False
        self._cached_tokens = 0
        self._publication = Publication(
            run_id=assignment.run_id,
            epoch=assignment.epoch,
            base_epoch=assignment.base_epoch,
            incarnation=assignment.incarnation,
            started=assignment.started,
            carry_ids=assignment.carry_ids,
            carry_text=assignment.carry_text,
        )

    async def cancel(self) -> None:
        """Stop generating; `run` then ends with what there is. Again: no effect."""
        if not self._cancelled:
            self._cancelled = True
            if self._generating:
                await self._engine.abort(str(self.assignment))

    async def run(self) -> Outcome:
        """Generate until the answer is finished, cancelled, refused, or not ours any more. Raises EngineDead."""
        publication = self._publication
        await self._flusher.open(publication)
        try:
            return await self._generate(publication)
        finally:
            self._flusher.close(publication)

    async def _generate(self, publication: Publication) -> Outcome:
        assignment = self.assignment
        remaining = assignment.max_output_tokens - len(assignment.carry_ids)
        finish_reason, error_code = ("length" if remaining <= 0 else ""), ""
        if remaining > 0 and not self._cancelled and publication.phase is not Phase.FENCED:
            request = GenerationRequest(
                request_id=str(assignment),
                prompt_ids=[*assignment.prompt_ids, *assignment.carry_ids],
                max_output_tokens=remaining,
                sampling=assignment.sampling,
                cache_salt=assignment.cache_salt,
            )
            try:
                finish_reason = await self._consume(request, publication)
            except EngineRefused:
                error_code = "engine_refused"
        released_at = datetime.now(UTC) if self._cancelled else None
        await self._flusher.drain(publication, patience_s=OUTAGE_BOUND_S)
        if publication.phase is Phase.FENCED:
            result = Result.FENCED
        elif finish_reason:
            # An answer that was finished before the engine saw the cancel is done, not stopped.
            result = Result.DONE
        elif self._cancelled:
            result, error_code = Result.CANCELLED, "cancelled"
        else:
            result, error_code = Result.FAILED, error_code or "engine_stopped"
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

    async def _consume(self, request: GenerationRequest, publication: Publication) -> str:
        """Move the engine's deltas into the publication. Returns the finish reason, '' when broken off."""
        self._generating = True
        deltas = self._engine.generate(request)
        try:
            async for delta in deltas:
                self.progressed_at = time.monotonic()
                self._cached_tokens = max(self._cached_tokens, delta.cached_tokens)
                publication.add(delta)
                if publication.phase is Phase.FENCED:
                    await self._engine.abort(request.request_id)
                    return ""
                if publication.has_pending:
                    self._flusher.notice(publication)
                if delta.finish_reason:
                    return delta.finish_reason
            return ""
        finally:
            self._generating = False
            aclose = getattr(deltas, "aclose", None)
            if aclose is not None:
                await asyncio.shield(aclose())
