"""What inference hands to the other apps: frozen values, no Django."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from inference.cell.hub import Quiet, RunState, StreamHub
from inference.cell.stream import START, TERMINAL_SEQ, Cursor, Entry
from inference.tokenization import ChatTokenizer, ChatTurn

# The imported ones are part of this contract and defined where they are made.
__all__ = [
    "START",
    "TERMINAL_SEQ",
    "Admission",
    "ChatTokenizer",
    "ChatTurn",
    "Cursor",
    "Entry",
    "PoolGauges",
    "PoolInfo",
    "Quiet",
    "RunInfo",
    "RunState",
    "SettledRun",
    "StreamHub",
    "Timings",
    "Usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInfo:
    """A pool as a user may see it. `engine` is "vllm" or "scripted"; sizes in tokens.

    `model` is the folder or name that is loaded, `label` what the outside is shown of it.
    """

    id: UUID
    slug: str
    name: str
    model: str
    label: str
    revision: str | None
    engine: str
    is_default: bool
    context_window: int
    max_output_tokens: int
    system_prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauges:
    """The engines' own counters, summed over a pool's live workers."""

    pool: str
    workers: int
    slots: int
    running: int
    waiting: int
    kv_usage: float
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A reservation made for a turn; its acceptance counts only under `generation`."""

    admission_id: UUID
    generation: int
    user_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a run; `prompt` includes `cached`."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """In ms: accepted → claimed, accepted → first delta, accepted → terminal, cancel → engine let go."""

    queue_ms: int | None
    ttft_ms: int | None
    total_ms: int | None
    release_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as its owner may see it. `context` is the snapshot that was stored with it."""

    id: UUID
    owner_id: UUID
    chat_id: UUID
    admission_id: UUID
    status: str
    is_active: bool
    pool: str
    model: str
    epoch: int
    degraded: bool
    finish_reason: str
    error_code: str
    created_at: datetime
    message_id: UUID | None
    usage: Usage
    timings: Timings
    context: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledRun:
    """A run that just became terminal. `message_id` is the id that its answer's message must take."""

    run_id: UUID
    owner_id: UUID
    chat_id: UUID
    status: str
    text: str
    output_tokens: int
    message_id: UUID
    finished_at: datetime
