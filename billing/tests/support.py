"""What billing's tests put into the ledger."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from billing import api
from billing.contracts import Charge

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def charge(user: Any, **changes: Any) -> Charge:
    """A completed run of 10 prompt tokens, 4 of them cached, and 5 output tokens, for nothing."""
    given: dict[str, Any] = {
        "user_id": user.pk,
        "run_id": uuid4(),
        "epoch": 1,
        "admission_id": uuid4(),
        "pool": "default",
        "reason": "completed",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "wasted_tokens": 0,
        "at": NOON,
    }
    return Charge(**given | changes)


def record(user: Any, **changes: Any) -> Charge:
    recorded = charge(user, **changes)
    api.record(recorded)
    return recorded


def plan_form(**changes: str) -> dict[str, str]:
    """What the form of a plan sends: of one called free, without limits that can be left out."""
    return {
        "slug": "free",
        "name": "Free",
        "output_floor": "64",
        "concurrent_runs": "2",
        "weight": "1",
        "overflow": "smaller",
        "unwatched": "finish",
    } | changes
