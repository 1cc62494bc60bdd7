"""Which pool answers a turn: the one that is asked for, or the smaller one that it overflows to (docs/overload.md)."""

from collections.abc import Callable
from dataclasses import dataclass

from billing.contracts import Limits
from conversations.errors import TooLong
from conversations.preparation import Ready
from inference import api as inference
from inference.contracts import Admission, PoolInfo
from inference.errors import ChatTemplateRefused, NoWorkerAlive, PoolFull, ServiceUnavailable

# Why a smaller model answers, as readers are told it, and counters name it.
_SAID = {
    "full": "{asked} is busy: {smaller}, a smaller and faster model, answers.",
    "shed_free": "{asked} is busy: {smaller}, a smaller and faster model, answers.",
    "drain": "{asked} takes nothing new for now: {smaller}, a smaller and faster model, answers.",
    "away": "{asked} is away for now: {smaller}, a smaller and faster model, answers.",
    "short": "Short messages are answered by {smaller}, a smaller and faster model.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A turn that has its place: the prompt made for the pool that answers it, and what is held there."""

    ready: Ready
    held: Admission


def place(
    *,
    pool: PoolInfo,
    allowed: Limits,
    may_route: bool,
    prepare: Callable[[PoolInfo], Ready],
    admit: Callable[[Ready], Admission],
) -> Placed:
    """Admit the turn to `pool`, or to its overflow pool where the plan takes a smaller model's answer.

    That pool answers what `pool` refuses, and with `may_route` also prompts that are short by the pool's setting. It
    need not be offered to the plan by name, and overflows no further. Raises what `prepare` and `admit` raise for
    `pool`, and AdmissionRefused and HoldTooSmall for either.
    """
    ready = prepare(pool)
    smaller = pool.overflow if allowed.overflow == "smaller" else None
    if smaller is None:
        return Placed(ready=ready, held=admit(ready))

    def elsewhere(why: str) -> Placed | None:
        try:
            made = prepare(smaller).in_place_of(pool, notice=_SAID[why].format(asked=pool.name, smaller=smaller.name))
            placed = Placed(ready=made, held=admit(made))
        except (PoolFull, ServiceUnavailable, TooLong, ChatTemplateRefused):
            # The refusal to be told is that of the pool that was asked for.
            return None
        inference.note_overflow(pool=pool, tier=allowed.plan, reason=why)
        return placed

    if may_route and len(ready.prompt.ids) <= pool.short_prompt_tokens:
        return elsewhere("short") or Placed(ready=ready, held=admit(ready))
    try:
        return Placed(ready=ready, held=admit(ready))
    except (PoolFull, NoWorkerAlive) as refusal:
        placed = elsewhere(refusal.reason if isinstance(refusal, PoolFull) else "away")
        if placed is None:
            raise
        return placed
