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
    "BudgetStanding",
    "ChatTokenizer",
    "ChatTurn",
    "Cursor",
    "Entry",
    "PoolCount",
    "PoolGauges",
    "PoolInfo",
    "PoolLoad",
    "PoolWatch",
    "PromptBase",
    "Quiet",
    "QuotaStanding",
    "RunBrief",
    "RunInfo",
    "RunState",
    "SettledRun",
    "StreamHub",
    "TierWatch",
    "Timings",
    "Usage",
    "WindowStanding",
    "WorkerWatch",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolInfo:
    """A pool as a user may see it. `engine` is "vllm" or "scripted"; sizes in tokens.

    `reserve_tokens` of the window are for system prompt and tools; of the rest, but for the answer, a chat may take
    `high_water` percent before its oldest turns are summarised, and then `low_water`.

    `model` is the folder or name that is loaded, `label` what the outside is shown of it. `overflow` is the smaller
    pool that answers what this one has no room for, while that is open and takes new messages; its own is left out. It
    answers prompts of at most `short_prompt_tokens` at any time.
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
    queue_wait_s: int
    short_prompt_tokens: int
    system_prompt: str
    reserve_tokens: int
    high_water: int
    low_water: int
    overflow: "PoolInfo | None" = None


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
class PoolLoad:
    """A pool as operators see it: its active runs, as stored, and what its engines report: None while Redis is away."""

    id: UUID
    slug: str
    name: str
    is_open: bool
    is_default: bool
    running: int
    waiting: int
    engines: PoolGauges | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierWatch:
    """A plan's part of a pool's queue. `weight` is None for a plan that is gone. `is_system`: no plan's, but that of
    what is made of chats in the background.

    `share` (0 to 1) is what it had of the service given lately, `due` what its weight gives it among those that wait
    now, floors included: None while nobody of it waits. `wait_s`: of a message that comes now.
    """

    plan: str
    weight: float | None
    is_free: bool
    due: float | None
    share: float
    waiting: int
    users: int
    wait_s: float
    is_system: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWatch:
    """A live worker and its engine's own counters. `kv_tokens`: for how many its memory has room; None = not told."""

    boot_id: str
    engine: str
    model: str
    slots: int
    running: int
    waiting: int
    kv_usage: float
    kv_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWatch:
    """A pool as operators watch it. At most `depth` messages wait of each plan.

    Of those that wait `begun` lost their worker; `pending` are admitted and not queued yet. `is_squeezed`: free plans
    have only their floor for now, so that others' waits keep their bound.
    """

    id: UUID
    slug: str
    name: str
    is_open: bool
    mode: str
    depth: int
    waiting: int
    begun: int
    pending: int
    is_squeezed: bool
    tiers: list[TierWatch]
    workers: list[WorkerWatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCount:
    """How often something happened to turns that asked for a pool: `what` is refused or overflowed.

    A turn that was refused and then overflowed counts in both. `reason` is a PoolFull's, of an overflow also `away`
    (no worker was alive) or `short` (the prompt was).
    """

    what: str
    pool: str
    tier: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBrief:
    """A run in an operator's table."""

    id: UUID
    owner_id: UUID
    pool: str
    status: str
    error_code: str
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A reservation made for a turn, with a place in its pool's queue; its acceptance counts only under `generation`.

    `max_output_tokens` is what the answer may have: as asked for, or less where the user's budget has no more.
    `reserved_tokens` are held in all, at least as many as prompt and answer may use.
    """

    admission_id: UUID
    generation: int
    user_id: UUID
    pool: str
    max_output_tokens: int
    reserved_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBase:
    """A stored prompt of the same chat that another begins with: the first `shared` ids are its.

    `depth` is its own: of how many others it is made.
    """

    run_id: UUID
    shared: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStanding:
    """Where a user stands in the token budget. `held` is reserved by answers under way and no part of `remaining`.

    `full_at` is when it is full again if nothing more is used than is held: the present moment where it is full.
    """

    capacity: int
    remaining: int
    held: int
    refill_per_hour: int
    full_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowStanding:
    """Messages of the last 60 minutes. `resets_at` is when the oldest of them counts no more; None without any."""

    maximum: int
    used: int
    resets_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStanding:
    """Where a user stands in the limits that refill; None for a limit that the user has not."""

    budget: BudgetStanding | None
    messages: WindowStanding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a run; `prompt` includes `cached`."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """In ms: accepted → claimed, accepted → first delta, accepted → terminal, cancel → engine let go.

    A retry counts as accepted anew.
    """

    queue_ms: int | None
    ttft_ms: int | None
    total_ms: int | None
    release_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as its owner may see it. `context` is the snapshot that was stored with it; `kind` is what it is for.

    `cancel_requested_at`: since when a streaming run's worker is asked to stop; a waiting run ends without that.
    `charged` and `waste` are tokens of all its attempts, those before a retry included: what the owner pays, and what
    was computed in vain. None while it is active. `usage` is the present admission's.
    """

    id: UUID
    kind: str
    owner_id: UUID
    chat_id: UUID
    admission_id: UUID
    status: str
    is_active: bool
    is_retryable: bool
    pool: str
    pool_id: UUID
    model: str
    epoch: int
    tier: str
    degraded: bool
    max_output_tokens: int
    finish_reason: str
    error_code: str
    created_at: datetime
    retried_at: datetime | None
    cancel_requested_at: datetime | None
    message_id: UUID | None
    usage: Usage
    charged: int | None
    waste: int | None
    timings: Timings
    context: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledRun:
    """A run that just became terminal: a turn's, or a job's (`kind` summary or title).

    `message_id` is the id that a turn's answer's message must take. `pool` is the slug of the pool that answered, and
    `context` the snapshot that was stored with the run.

    `degraded`: a smaller model answered than was asked for. `token_ids` are those of the text (little-endian uint32),
    as `ChatTurn` takes them for prompts of the same `model`; empty where they are not known. `output_tokens` also
    counts tokens without text.
    """

    run_id: UUID
    kind: str
    owner_id: UUID
    chat_id: UUID
    pool: str
    context: Mapping[str, object]
    status: str
    error_code: str
    text: str
    output_tokens: int
    token_ids: bytes
    model: str
    message_id: UUID
    degraded: bool
    finished_at: datetime
