"""What billing hands to the other apps: frozen values, no Django."""

from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from uuid import UUID

# Prices are for so many tokens.
PER_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A user's limits at one moment: the plan's that applies, and in their place what the user alone may.

    None = no limit of the user's own: for tokens of an answer and for waiting, the pool's decides. There is a refill
    where there is a budget. `output_floor` is in tokens; `overflow` and `unwatched` are choices of `Plan`.
    """

    plan: str
    concurrent_runs: int
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    weight: int
    budget_tokens: int | None
    refill_per_hour: int | None
    output_floor: int
    messages_per_hour: int | None
    queue_wait_s: int | None
    overflow: str
    unwatched: str
    unwatched_tokens: int | None
    unwatched_s: int | None
    long_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A plan (its slug) as one of those that share a busy pool; `queue_wait_s` None = the pool's bound."""

    plan: str
    weight: int
    is_free: bool
    queue_wait_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """What was taken from a token budget and has not been refilled at one moment; parts of tokens come of refilling."""

    tokens: float
    at: datetime

    def later(self, *, refill_per_hour: int, now: datetime) -> "Debt":
        """The same after refilling until `now`; what is not later than `at` changes nothing."""
        passed = max(timedelta(0), now - self.at)
        left = max(0.0, self.tokens - refill_per_hour * (passed / timedelta(hours=1)))
        return Debt(tokens=left, at=self.at + passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a million tokens cost, in millionths of the currency. `prompt` is for those that were not cached."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


FREE = Prices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One attempt's tokens at settlement. `reason` and `purpose` are UsageEntry's; see there for the token counts.

    Without a `user_id` it is charged to the system.

    `prices` are the pool's at that moment: what is changed later changes no charge.
    """

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
    prices: Prices = FREE
    purpose: str = "turn"

    @property
    def cost(self) -> int:
        """In millionths of the currency, rounded once, half up. What was wasted costs nothing."""
        parts = (
            (self.prompt_tokens - self.cached_tokens) * self.prices.prompt,
            self.cached_tokens * self.prices.cached,
            self.output_tokens * self.prices.output,
        )
        return (sum(parts) + PER_TOKENS // 2) // PER_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInfo:
    """A plan as one of its subscribers may see it, with that user's own numbers; the limits as in `Limits`.

    A chat unused for `history_days` is deleted; None = never.
    """

    slug: str
    name: str
    concurrent_runs: int
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    budget_tokens: int | None
    refill_per_hour: int | None
    messages_per_hour: int | None
    queue_wait_s: int | None
    history_days: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Sums over the ledger, in tokens. `prompt` includes `cached`; `wasted` was computed and is paid by nobody.

    `cost` is in millionths of the currency. `runs` ended in that time, however often each was tried, where they are
    asked for; those that used nothing are not in the ledger. Adjustments are not among it: see `Adjusted`.
    """

    prompt: int = 0
    cached: int = 0
    output: int = 0
    wasted: int = 0
    cost: int = 0
    runs: int = 0

    @property
    def charged(self) -> int:
        return self.prompt + self.output

    @property
    def uncached(self) -> int:
        return self.prompt - self.cached

    @property
    def computed(self) -> int:
        """What stands in the ledger at all, charged or not."""
        return self.charged + self.wasted

    def __add__(self, other: "Used") -> "Used":
        return Used(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(Used)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCharge:
    """What all attempts of one run come to: tokens that the user is charged, and tokens computed in vain."""

    charged: int
    wasted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """Sums of what people added to a user's charges, or took off them (negative): tokens, millionths of the currency.

    A user's balance is what the ledger has, `Used.charged` and `Used.cost`, plus this.
    """

    tokens: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUsage:
    """What one day (UTC) used in one pool."""

    day: date
    pool: str
    used: Used


@dataclass(frozen=True, slots=True, kw_only=True)
class HourOfUse:
    """Tokens of everybody's settlements in one hour, in UTC."""

    begins_at: datetime
    tokens: Used
