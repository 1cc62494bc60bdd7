"""Turns and simulations with known answers."""

from collections.abc import Iterable
from itertools import count
from uuid import UUID

from inference.simulation.goals import Seen, Setting, look
from inference.simulation.turns import FREE, PLUS, PRO, Chat, Record, Turn

_numbers = count()


def user(number: int) -> UUID:
    return UUID(int=number)


def setting(*, seconds: int = 120, warm_up_s: int = 0, load: float = 1.3, slots: int = 4, slack: int = 50) -> Setting:
    """Weights 1, 4 and 10; output alone counts, each token once."""
    return Setting(
        load=load,
        seconds=seconds,
        warm_up_s=warm_up_s,
        slots=slots,
        weights={FREE: 1, PLUS: 4, PRO: 10},
        floor=0.1,
        slack=slack,
        prompt_weight=0,
        output_weight=1,
        bounds={FREE: 30_000, PLUS: 20_000, PRO: 20_000},
    )


def turn(
    whose: int = 1,
    tier: str = PLUS,
    *,
    sent: int = 0,
    claimed: int | None = None,
    first: float = 0.0,
    finished: float | None = None,
    output: int = 100,
    prompt: int = 100,
    cached: int = 0,
    promised: int = 0,
    refused: bool = False,
    expired: int | None = None,
    charged: int | None = None,
    idle: int = 0,
) -> Turn:
    """One turn: its answer grows from `first` until `finished` (ms)."""
    return Turn(
        number=0,
        run_id=UUID(int=next(_numbers)),
        chat=Chat(chat_id=UUID(int=0), user_id=user(whose), tier=tier, plan=[], begins=0),
        known=0,
        prompt=prompt,
        output=output,
        max_output=1_024,
        sent=sent,
        refused=refused,
        expired=expired,
        promised=promised,
        claimed=claimed,
        idle=idle,
        cached=cached,
        charged=charged,
        prefill_from=first,
        first_token=first,
        finished=finished,
    )


def served_evenly(whose: int, tier: str, *, per_s: int, seconds: int = 120) -> list[Turn]:
    """A user who always has a turn waiting and is served so many tokens every second."""
    waiting = turn(whose, tier, sent=0)
    answers = [
        turn(whose, tier, claimed=1000 * at, first=1000.0 * at, finished=1000.0 * (at + 1), output=per_s)
        for at in range(seconds)
    ]
    return [waiting, *answers]


def seen(
    turns: Iterable[Turn], its: Setting | None = None, *, levels: Iterable[tuple[int, int, int]] = (), best: float = 0.0
) -> Seen:
    return look(Record(turns=list(turns), levels=list(levels)), its or setting(), best_hit_rate=best or None)
