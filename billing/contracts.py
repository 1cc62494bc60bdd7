"""What billing hands to the other apps: frozen values, no Django."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A user's limits at one moment, from the plan that applies. None = the pool's own maximum decides."""

    plan: str
    concurrent_runs: int
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One attempt's tokens at settlement. `reason` is a UsageEntry reason; see there for the token counts."""

    user_id: UUID | None
    run_id: UUID
    epoch: int
    admission_id: UUID
    pool: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    wasted_tokens: int
    at: datetime
