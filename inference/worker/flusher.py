"""The flusher: one task per worker process that carries all publications into Redis.

The token loop never waits for Redis. What comes into an idle flusher goes out at once, so a first token is not held
back; after that, everything of one interval goes out in one pipeline.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID

import structlog

from inference.cell import stream
from inference.cell.errors import StoreUnavailable
from inference.cell.link import AsyncConnector
from inference.worker.publication import Phase, Publication

log = structlog.get_logger(__name__)

RETRY_S = 0.25

# (run, epoch, incarnation) → whether the epoch still owns the run; it may then publish in that incarnation.
Verify = Callable[[UUID, int, str], Awaitable[bool]]


class Flusher:
    """Belongs to one event loop."""

    def __init__(
        self, *, connector: AsyncConnector, verify: Verify, interval_s: float = 0.03, retry_s: float = RETRY_S
    ) -> None:
        self._connector = connector
        self._verify = verify
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._publications: set[Publication] = set()
        self._dirty = asyncio.Event()
        self._urgent = asyncio.Event()
        self._reopening: dict[Publication, asyncio.Task[None]] = {}
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def open(self, publication: Publication) -> None:
        """Begin the epoch in its stream and flush for it until `close`.

        Afterwards the publication is OPEN, ADRIFT (Redis is away; it is opened as soon as it can be) or FENCED.
        """
        self._publications.add(publication)
        try:
            await self._open(publication)
        except StoreUnavailable:
            self._reopen_later(publication)

    def notice(self, publication: Publication) -> None:
        """Something is pending; an answer's first text goes out without waiting for the interval."""
        self._dirty.set()
        if publication.first_published_at is None:
            self._urgent.set()

    async def drain(self, publication: Publication) -> None:
        """Return when everything is in the stream, or the epoch is fenced."""
        while publication.phase is not Phase.FENCED and not publication.is_flushed:
            publication.changed.clear()
            self._dirty.set()
            self._urgent.set()
            await publication.changed.wait()

    def close(self, publication: Publication) -> None:
        """Flush for it no more."""
        self._publications.discard(publication)
        task = self._reopening.pop(publication, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """End the task; what is pending stays where it is."""
        tasks = [self._task, *self._reopening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._flush()
            except Exception:
                # Nobody else flushes: this task must live. What was under way may have arrived or not.
                log.exception("flush_broke")
                for publication in [p for p in self._publications if p.in_flight]:
                    self._reopen_later(publication)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._urgent.wait()
            self._urgent.clear()

    async def _flush(self) -> None:
        if not self._ready():
            return
        try:
            cell = await self._connector.cell()
        except StoreUnavailable:
            for publication in self._ready():
                self._reopen_later(publication)
            return
        current = self._ready()
        calls = []
        now_ms = time.time_ns() // 1_000_000
        for publication in current:
            batch = publication.take()
            calls.append(
                stream.append(
                    cell.keys,
                    run_id=publication.run_id,
                    epoch=publication.epoch,
                    seq=batch.seq,
                    kind="delta",
                    data={"text": batch.text},
                    ids=batch.ids,
                    now_ms=now_ms,
                )
            )
        try:
            replies = await cell.call_many(calls)
        except StoreUnavailable as error:
            # Some may have arrived, some not: each publication says its whole text again once it is opened anew.
            log.warning("flush_failed", runs=len(current), error=str(error))
            for publication in current:
                self._reopen_later(publication)
            return
        now = datetime.now(UTC)
        for publication, reply in zip(current, replies, strict=True):
            match reply:
                case "ok":
                    publication.note_published(now)
                case "absent":
                    self._reopen_later(publication)
                case Exception():
                    # A number that the stream has passed, say: what it holds is uncertain, so show everything anew.
                    log.error("append_failed", run_id=str(publication.run_id), error=str(reply))
                    self._reopen_later(publication)
                case _:
                    publication.fence()

    def _ready(self) -> list[Publication]:
        return [p for p in self._publications if p.phase is Phase.OPEN and p.has_pending]

    async def _open(self, publication: Publication) -> None:
        """Append `started` in the incarnation that ownership was verified under. Raises StoreUnavailable."""
        cell = await self._connector.cell()
        if cell.keys.incarnation != publication.incarnation:
            self._reopen_later(publication)
            return
        publication.fold_pending()
        try:
            reply = await cell.call(
                stream.open_epoch(
                    cell.keys,
                    run_id=publication.run_id,
                    epoch=publication.epoch,
                    base_epoch=publication.base_epoch,
                    seq=publication.seq + 1,
                    started=publication.started,
                    ids_so_far=publication.settled_ids,
                    text_so_far=publication.text,
                    notices=publication.notices,
                    first_ms=publication.first_published_ms,
                )
            )
        except StoreUnavailable as error:
            log.warning("open_failed", run_id=str(publication.run_id), error=str(error))
            # It may have arrived: the next try numbers its entries above these.
            publication.seq += 2 + len(publication.notices)
            raise
        match reply:
            case ["ok", seq, _]:
                publication.opened(seq=int(seq))
                # Said once: a stream that is opened again tells no news.
                publication.notices = ()
                if publication.own_tokens:
                    publication.note_published(datetime.now(UTC))
                if publication.has_pending:
                    self._dirty.set()
            case _:
                publication.fence()

    def _reopen_later(self, publication: Publication) -> None:
        publication.adrift()
        if publication.phase is Phase.ADRIFT and publication not in self._reopening:
            self._reopening[publication] = asyncio.get_running_loop().create_task(self._reopen(publication))

    async def _reopen(self, publication: Publication) -> None:
        """Verify in the database that the epoch is still the owner, then open the stream again."""
        try:
            while publication.phase is Phase.ADRIFT:
                try:
                    cell = await self._connector.cell()
                    incarnation = cell.keys.incarnation
                    if not await self._verify(publication.run_id, publication.epoch, incarnation):
                        publication.fence()
                        return
                    publication.incarnation = incarnation
                    await self._open(publication)
                except StoreUnavailable:
                    await asyncio.sleep(self._retry_s)
                except Exception:
                    # The database is away, say: ownership stays unproven, nothing may be published yet.
                    log.exception("verify_failed", run_id=str(publication.run_id))
                    await asyncio.sleep(self._retry_s)
        finally:
            self._reopening.pop(publication, None)
