"""A run's event stream: its entries, their ids, and the scripts that write them.

Entries are numbered `<epoch>-<seq>`; `queued` uses epoch 0, a terminal event a fixed largest seq of its epoch. An
entry's public data is one line of JSON; token ids travel beside it and are never shown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import AsyncCell, Reply, ScriptCall

TERMINAL_SEQ = 4_294_967_295
TERMINAL_TYPES = frozenset({"completed", "cancelled", "interrupted", "failed"})
# An active run's stream outlives any run; a settled one's stays long enough for a phone to come back to it.
STREAM_TTL_MS = 24 * 3_600_000
SETTLED_TTL_MS = 10 * 60_000


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The id of an entry; ordered as the stream is."""

    epoch: int
    seq: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `<epoch>-<seq>`. Raises ValueError for anything else."""
        epoch, dash, seq = text.partition("-")
        if not (dash and epoch.isascii() and epoch.isdigit() and seq.isascii() and seq.isdigit()):
            raise ValueError("a cursor is <epoch>-<seq>")
        cursor = cls(int(epoch), int(seq))
        if cursor.epoch >= 2**32 or cursor.seq > TERMINAL_SEQ:
            raise ValueError("a cursor's parts are below 2**32")
        return cursor

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"


START = Cursor(0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """One event: its id, type and one-line JSON data."""

    id: Cursor
    type: str
    data: str

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL_TYPES

    @property
    def is_content(self) -> bool:
        """Whether missing it would leave a hole that a terminal event's `last` reveals."""
        return self.type in ("started", "delta", "notice")


def encode(data: Mapping[str, object]) -> str:
    """One line of JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def join_ids(token_ids: Sequence[int]) -> str:
    return ",".join(map(str, token_ids))


def read_notification(payload: str) -> Entry:
    """The entry in a message on a run's channel."""
    entry_id, kind, data = payload.split("\n", 2)
    return Entry(Cursor.parse(entry_id), kind, data)


def open_epoch(
    keys: Keys,
    *,
    run_id: UUID,
    epoch: int,
    base_epoch: int,
    seq: int,
    started: Mapping[str, object],
    ids_so_far: Sequence[int],
    text_so_far: str,
    notices: Sequence[Mapping[str, object]] = (),
    first_ms: int | None = None,
) -> ScriptCall:
    """Begin an epoch, telling the reader `notices` before its text. `started` must not be empty.

    `first_ms` is when the answer's first text was shown, where the owner knows it.

    Replies ['ok', last seq, continues] or ['refused'].
    """
    return ScriptCall(
        "open",
        [keys.stream(run_id), keys.stream_state(run_id), keys.open_streams()],
        [
            keys.events_channel(run_id),
            epoch,
            base_epoch,
            seq,
            encode(started),
            join_ids(ids_so_far),
            encode({"text": text_so_far}) if text_so_far else "",
            STREAM_TTL_MS,
            str(run_id),
            "" if first_ms is None else first_ms,
            *map(encode, notices),
        ],
    )


def append(
    keys: Keys,
    *,
    run_id: UUID,
    epoch: int,
    seq: int,
    kind: str,
    data: Mapping[str, object],
    ids: Sequence[int] = (),
    now_ms: int | None = None,
) -> ScriptCall:
    """Append one entry; `now_ms` with text that may be the answer's first. Replies 'ok', 'absent' or 'stop'."""
    return ScriptCall(
        "append",
        [keys.stream(run_id), keys.stream_state(run_id)],
        [keys.events_channel(run_id), epoch, seq, kind, encode(data), join_ids(ids), "" if now_ms is None else now_ms],
    )


def seal(keys: Keys, *, run_id: UUID, epoch: int, base_epoch: int) -> ScriptCall:
    """Fence an epoch and read what was published. Replies ['ok', ids, text, when its first was shown] or ['lost']."""
    return ScriptCall(
        "seal",
        [keys.stream(run_id), keys.stream_state(run_id), keys.open_streams()],
        [epoch, base_epoch, STREAM_TTL_MS, str(run_id)],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What a stream shows of an answer, and since when (ms; None = nothing yet)."""

    ids: list[int]
    text: str
    first_ms: int | None


def read_seal(reply: Reply) -> Sealed | None:
    """What was published, from SEAL's reply; None when the stream is lost."""
    match reply:
        case ["ok", ids, text, first]:
            return Sealed(
                ids=[int(token) for token in ids.split(",") if token], text=text, first_ms=int(first) if first else None
            )
        case ["lost"]:
            return None
        case _:
            raise ValueError(f"unexpected reply of seal: {reply!r}")


def close(
    keys: Keys, *, run_id: UUID, epoch: int, base_epoch: int, kind: str, data: Mapping[str, object], text: str
) -> ScriptCall:
    """Append the terminal event once. `data` must not be empty."""
    return ScriptCall(
        "close",
        [keys.stream(run_id), keys.stream_state(run_id), keys.open_streams()],
        [
            keys.events_channel(run_id),
            epoch,
            base_epoch,
            TERMINAL_SEQ,
            kind,
            encode(data),
            text,
            SETTLED_TTL_MS,
            str(run_id),
        ],
    )


async def followers(cell: AsyncCell, *, run_ids: Sequence[UUID]) -> list[int]:
    """How many processes follow each of the runs at this moment, for whoever asks them. Raises StoreUnavailable."""
    channels = [cell.keys.events_channel(run_id) for run_id in run_ids]
    reply: Reply = await cell.run(lambda client: client.pubsub_numsub(*channels))
    return [int(count) for _, count in reply]


def left_open(client: redis.Redis, keys: Keys) -> set[UUID]:
    """The runs whose stream has no terminal event yet."""
    members: Reply = client.smembers(keys.open_streams())
    return {UUID(member) for member in members}


def forget_open(client: redis.Redis, keys: Keys, *, run_ids: Iterable[UUID]) -> None:
    """List the streams of these runs, which are gone, no longer; they expire."""
    client.srem(keys.open_streams(), *map(str, run_ids))
