"""One epoch's publication: the tokens an engine made, those already in the stream, and what is still to be sent.

Filled by the token loop, emptied by the flusher; both run on one event loop, so nothing here needs a lock.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from uuid import UUID

from inference.worker.engine import EngineDelta


class Phase(Enum):
    """Where a publication stands with its stream."""

    UNOPENED = auto()
    OPEN = auto()
    # The stream is gone or its state unknown: ownership must be verified in the database, then it is opened again.
    ADRIFT = auto()
    # The epoch does not own the run any more, or has nothing left to publish.
    FENCED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one flush sends for one run."""

    seq: int
    text: str
    ids: tuple[int, ...]


class Publication:
    """Text and tokens of one epoch on their way into the run's stream."""

    def __init__(
        self,
        *,
        run_id: UUID,
        epoch: int,
        base_epoch: int,
        incarnation: str,
        started: Mapping[str, object],
        notices: Sequence[Mapping[str, object]] = (),
        carry_ids: Sequence[int] = (),
        carry_text: str = "",
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.base_epoch = base_epoch
        self.incarnation = incarnation
        self.started = started
        self.notices = notices
        self.phase = Phase.UNOPENED
        self.seq = 0
        # A batch is on its way and its reply not here yet.
        self.in_flight = False
        self.first_published_at: datetime | None = None
        self.changed = asyncio.Event()
        self._on_fenced = on_fenced
        self._carry_ids = tuple(carry_ids)
        self._carry_text = carry_text
        self._sent_text: list[str] = []
        self._sent_ids: list[int] = []
        self._pending_text: list[str] = []
        self._pending_ids: list[int] = []
        # Tokens whose text is still incomplete: an entry that ended in them could not be continued from.
        self._held_ids: list[int] = []

    def add(self, delta: EngineDelta) -> None:
        """Take what the engine made."""
        self._held_ids.extend(delta.token_ids)
        if delta.text:
            # Postgres stores no NUL. It becomes something else here, once, so that stream and message stay equal.
            self._pending_text.append(delta.text.replace("\0", "\N{REPLACEMENT CHARACTER}"))
            self._pending_ids.extend(self._held_ids)
            self._held_ids.clear()

    @property
    def has_pending(self) -> bool:
        return bool(self._pending_text)

    @property
    def is_flushed(self) -> bool:
        """Whether the stream holds everything there is to show."""
        return self.phase is Phase.OPEN and not self.has_pending and not self.in_flight

    @property
    def first_published_ms(self) -> int | None:
        at = self.first_published_at
        return None if at is None else int(at.timestamp() * 1000)

    @property
    def text(self) -> str:
        """The whole answer so far, carried text included, published or not."""
        return self._carry_text + "".join(self._sent_text) + "".join(self._pending_text)

    @property
    def own_tokens(self) -> int:
        """Tokens the engine made in this epoch."""
        return len(self._sent_ids) + len(self._pending_ids) + len(self._held_ids)

    @property
    def total_tokens(self) -> int:
        return len(self._carry_ids) + self.own_tokens

    @property
    def settled_ids(self) -> tuple[int, ...]:
        """Ids of the whole answer up to the last complete text."""
        return (*self._carry_ids, *self._sent_ids, *self._pending_ids)

    def take(self) -> Batch:
        """Move everything pending into a batch; it counts as sent."""
        self.seq += 1
        self.in_flight = True
        batch = Batch(seq=self.seq, text="".join(self._pending_text), ids=tuple(self._pending_ids))
        self.fold_pending()
        return batch

    def fold_pending(self) -> None:
        """Count everything pending as sent, as when the stream is opened anew and shows the whole text."""
        self._sent_text.extend(self._pending_text)
        self._sent_ids.extend(self._pending_ids)
        self._pending_text.clear()
        self._pending_ids.clear()

    def opened(self, *, seq: int) -> None:
        """The stream was opened; its last entry is `seq` of this epoch."""
        self.seq = seq
        self._enter(Phase.OPEN)

    def adrift(self) -> None:
        if self.phase is not Phase.FENCED:
            self._enter(Phase.ADRIFT)

    def fence(self) -> None:
        """Nothing may be published any more, so nothing need be generated."""
        self._enter(Phase.FENCED)
        self._on_fenced()

    def note_published(self, at: datetime) -> None:
        """What was sent is in the stream."""
        self.in_flight = False
        if self.first_published_at is None:
            self.first_published_at = at
        self.changed.set()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.in_flight = False
        self.changed.set()
