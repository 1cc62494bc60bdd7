"""How a pool's queue is served and filled: what operators set, in the form that the scripts take. No Django."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

# The tier of a run without a plan.
NO_TIER = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPolicy:
    """A plan's share of the pool: its weight, whether it gives way first, and how long its runs may wait (ms)."""

    weight: float = 1
    is_free: bool = False
    wait_ms: int = 300_000


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A pool's settings for the scheduler. Tiers are plans by their slugs; one that is missing has the default's share.

    `mode` is one of normal, shed_free, drain. `depth` bounds the runs waiting in each tier; `floor` is the share of the
    free tiers (0 to below 1). A turn may be kept `delay_ms` at most for the worker that has its chat in memory, and
    taken at most `slack` (cost) early for its sake. Cost = `prompt_weight` for each uncached prompt token and
    `output_weight` for each output token.
    """

    tiers: Mapping[str, TierPolicy] = field(default_factory=dict)
    mode: str = "normal"
    depth: int = 1000
    floor: float = 0.1
    delay_ms: int = 2000
    slack: int = 4096
    prompt_weight: int = 1
    output_weight: int = 2

    @cached_property
    def text(self) -> str:
        """The policy as the scripts read it."""
        tiers = {
            slug: {"w": tier.weight, "free": tier.is_free, "wait": tier.wait_ms} for slug, tier in self.tiers.items()
        }
        values = {
            "tiers": tiers,
            "mode": self.mode,
            "depth": self.depth,
            "floor": self.floor,
            "delay": self.delay_ms,
            "slack": self.slack,
            "wp": self.prompt_weight,
            "wq": self.output_weight,
        }
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @cached_property
    def version(self) -> str:
        """A digest: scripts read the text only when it differs from what they know."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]
