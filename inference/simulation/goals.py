"""The scheduler's numeric goals (DESIGN, the scheduler): how each is measured, and whether it is met."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from uuid import UUID

from inference.simulation.service import Interval, K, Service, backlogs, covers, left_queue
from inference.simulation.turns import FREE, PAID, Record, Turn

JAIN_WINDOW_S = 60
SHARE_WINDOW_S = 60
# Users are compared whose part in a window was so many turns' worth: of fewer, one more or less is no sign of anything.
JAIN_TURNS = 25
# Over so long the free tier's share is looked at when a paid turn is refused.
REFUSAL_WINDOW_S = 30
STEP_S = 5
# Two users are compared when both had something waiting for so long without a break.
PAIR_S = 10
SHORT_PROMPT = 2_000
TTFT = "first token, paid short prompts, p99"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a simulation was run with, as far as the goals need it. `seconds` includes the warm-up."""

    load: float
    seconds: int
    warm_up_s: int
    slots: int
    weights: Mapping[str, float]
    floor: float
    slack: int
    prompt_weight: int
    output_weight: int
    bounds: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One goal in one simulation. `value` None = it says nothing at this load, or in this workload."""

    goal: str
    target: str
    value: float | None
    passed: bool | None
    note: str = ""
    unit: str = ""
    worse_is_more: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One simulation as the goals look at it."""

    record: Record
    setting: Setting
    by_user: Service[UUID]
    by_tier: Service[str]
    user_backlogs: Mapping[UUID, Sequence[Interval]]
    tier_backlogs: Mapping[str, Sequence[Interval]]
    # Share of prompt tokens found in caches by affinity without bounds, in the same workload.
    best_hit_rate: float | None = None

    @property
    def window(self) -> list[Turn]:
        """Turns sent after the warm-up."""
        return [turn for turn in self.record.turns if turn.sent >= 1000 * self.setting.warm_up_s]

    def windows(self, length_s: int) -> Iterable[Interval]:
        """All measuring windows of this length, in seconds."""
        for begin in range(self.setting.warm_up_s, self.setting.seconds - length_s + 1, STEP_S):
            yield begin, begin + length_s


def look(record: Record, setting: Setting, *, best_hit_rate: float | None = None) -> Seen:
    """Prepare a record for measuring."""

    def service(key: Callable[[Turn], K]) -> Service[K]:
        return Service(
            record.turns,
            key=key,
            seconds=setting.seconds,
            prompt_weight=setting.prompt_weight,
            output_weight=setting.output_weight,
        )

    end_ms = 1000 * setting.seconds
    return Seen(
        record=record,
        setting=setting,
        by_user=service(lambda turn: turn.user_id),
        by_tier=service(lambda turn: turn.tier),
        user_backlogs=backlogs(record.turns, key=lambda turn: turn.user_id, end_ms=end_ms),
        tier_backlogs=backlogs(record.turns, key=lambda turn: turn.tier, end_ms=end_ms),
        best_hit_rate=best_hit_rate,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0–1) of the values lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def cost(turn: Turn, setting: Setting) -> int:
    """What a served turn took, in weighted tokens."""
    return setting.prompt_weight * turn.uncached + setting.output_weight * turn.output


def same_tier_difference(seen: Seen) -> Measured:
    """How far the service of two users of a tier came apart while both had something waiting, by the bound on it.

    At the worst pair: (largest less smallest of the difference of their services) ÷ (2(C_max + Q) + what estimates of
    their turns then under way were off by). C_max is the dearest turn served in the tier.
    """
    setting = seen.setting
    turns: dict[UUID, list[Turn]] = defaultdict(list)
    tiers: dict[str, list[UUID]] = defaultdict(list)
    dearest: dict[str, int] = defaultdict(int)
    for turn in seen.record.turns:
        if turn.finished is not None:
            if turn.user_id not in turns:
                tiers[turn.tier].append(turn.user_id)
            turns[turn.user_id].append(turn)
            dearest[turn.tier] = max(dearest[turn.tier], cost(turn, setting))
    worst: float | None = None
    note = ""
    for tier, users in sorted(tiers.items()):
        fixed = 2 * (dearest[tier] + setting.slack)
        long = {
            user: clipped for user in users if (clipped := list(_clipped(seen.user_backlogs.get(user, ()), setting)))
        }
        for one, other in combinations(sorted(long, key=str), 2):
            for begin, end in _common(long[one], long[other]):
                made = seen.by_user.between(one, begin, end) + seen.by_user.between(other, begin, end)
                if worst is not None and made / fixed <= worst:
                    continue  # they cannot have come further apart than both were given
                low, high, lowest, highest = _apart(seen.by_user, one, other, begin, end)
                under_way = turns[one] + turns[other]
                off = _misjudged(under_way, low, setting) + _misjudged(under_way, high, setting)
                ratio = (highest - lowest) / (fixed + off)
                if worst is None or ratio > worst:
                    worst = ratio
                    note = f"{tier}: {highest - lowest:,.0f} of {fixed + off:,.0f}"
    return Measured(
        goal="same-tier service difference",
        target="≤ 2(C_max+Q)+Σ|est−act|",
        value=worst,
        passed=None if worst is None else worst <= 1,
        unit="× the bound",
        note=note,
    )


def jain_index(seen: Seen) -> Measured:
    """The least even window among users of a tier who had something waiting all through it: three of them at least, and
    JAIN_TURNS mean turns' worth of service for each on average.
    """
    worst: float | None = None
    note = ""
    tiers: dict[str, set[UUID]] = defaultdict(set)
    for turn in seen.record.turns:
        tiers[turn.tier].add(turn.user_id)
    costs = [cost(turn, seen.setting) for turn in seen.record.turns if turn.finished is not None]
    mean = sum(costs) / max(1, len(costs))
    for begin, end in seen.windows(JAIN_WINDOW_S):
        for tier, users in sorted(tiers.items()):
            served = [
                seen.by_user.between(user, begin, end)
                for user in users
                if covers(seen.user_backlogs.get(user, ()), 1000 * begin, 1000 * end)
            ]
            enough = len(served) >= 3 and sum(served) / len(served) >= JAIN_TURNS * mean
            if enough and (worst is None or jain(served) < worst):
                worst = jain(served)
                note = f"{tier}, {len(served)} users"
    return Measured(
        goal="Jain's index over 60 s",
        target="≥ 0.99",
        value=worst,
        passed=None if worst is None else worst >= 0.99,
        note=note,
        worse_is_more=False,
    )


def free_share(seen: Seen) -> Measured:
    """The free tier's smallest share of service in a window all through which it had something waiting."""
    shares = [
        seen.by_tier.share(FREE, begin, end)
        for begin, end in seen.windows(SHARE_WINDOW_S)
        if covers(seen.tier_backlogs.get(FREE, ()), 1000 * begin, 1000 * end)
    ]
    worst = min(shares, default=None)
    return Measured(
        goal="free share while backlogged",
        target=f"≥ {100 * seen.setting.floor - 1:.0f} %",
        value=None if worst is None else 100 * worst,
        passed=None if worst is None else worst >= seen.setting.floor - 0.01,
        unit="%",
        worse_is_more=False,
    )


def paid_refusals(seen: Seen) -> Measured:
    """Paid turns that were refused although free ones had more than the floor and 2 pp of the service before."""
    sent = [turn for turn in seen.window if turn.tier in PAID]
    refused = [turn for turn in sent if turn.refused]
    shares = []
    for turn in refused:
        now_s = turn.sent // 1000
        shares.append(seen.by_tier.share(FREE, max(0, now_s - REFUSAL_WINDOW_S), now_s))
    wrong = [share for share in shares if share > seen.setting.floor + 0.02]
    most = f", free then up to {100 * max(shares):.1f} %" if shares else ""
    return Measured(
        goal="paid refused, free above floor + 2 pp",
        target="0",
        value=len(wrong) if sent else None,
        passed=not wrong if sent else None,
        note=f"{len(refused)} of {len(sent)} paid turns refused{most}",
    )


def expired(seen: Seen) -> Measured:
    """Turns that were taken in and then not served within their bound."""
    last = 1000 * seen.setting.seconds
    known = [turn for turn in seen.window if not turn.refused and turn.sent + seen.setting.bounds[turn.tier] <= last]
    late = sum(turn.expired is not None for turn in known)
    return Measured(
        goal="admitted, then expired",
        target="≤ 1 %",
        value=100 * late / len(known) if known else None,
        passed=late <= 0.01 * len(known) if known else None,
        unit="%",
        note=f"{late} of {len(known)}",
    )


def wait_estimate(seen: Seen) -> Measured:
    """How far the wait foretold on arrival is off, relative to the one experienced, or to 1 s; of all that had to wait.

    A turn whose wait was foretold as 0 and that began within 50 ms had none.
    """
    last = 1000 * seen.setting.seconds
    errors = []
    for turn in seen.window:
        if turn.refused or (turn.claimed is None and turn.expired is None):
            continue
        waited = left_queue(turn, end_ms=last) - turn.sent
        if turn.promised or waited > 50:
            errors.append(abs(turn.promised - waited) / max(waited, 1000))
    enough = len(errors) >= 100
    worst = 100 * percentile(errors, 0.9) if enough else None
    return Measured(
        goal="wait estimate, error at p90",
        target="≤ 25 %",
        value=worst,
        passed=None if worst is None else worst <= 25,
        unit="%",
        note=f"{len(errors)} waits, median error {100 * percentile(errors, 0.5):.0f} %" if errors else "no waits",
    )


def hit_rate(turns: Iterable[Turn]) -> float:
    """Share of the prompt tokens of served turns that were in the cache."""
    prompts = cached = 0
    for turn in turns:
        if turn.claimed is not None:
            prompts, cached = prompts + turn.prompt, cached + turn.cached
    return cached / prompts if prompts else 0.0


def prefix_hits(seen: Seen) -> Measured:
    """The hit rate as a part of what affinity without bounds reaches."""
    own = hit_rate(seen.window)
    best = seen.best_hit_rate
    applies = best is not None and best > 0 and seen.setting.load <= 0.95
    ratio = own / best if applies and best else None
    return Measured(
        goal="prefix hits, of unbounded affinity's",
        target="≥ 95 %",
        value=None if ratio is None else 100 * ratio,
        passed=None if ratio is None else ratio >= 0.95,
        unit="%",
        note=f"hit rate {100 * own:.1f} %" + (f", unbounded {100 * best:.1f} %" if best else ""),
        worse_is_more=False,
    )


def idle_slots(seen: Seen) -> Measured:
    """Slot time that was idle while something waited that could have had it, of all slot time."""
    begin, end = 1000 * seen.setting.warm_up_s, 1000 * seen.setting.seconds
    wasted = 0
    levels = seen.record.levels
    for (since, waiting, free), (until, _, _) in zip(levels, [*levels[1:], (end, 0, 0)], strict=True):
        wasted += max(0, min(until, end) - max(since, begin)) * min(waiting, free)
    share = wasted / (seen.setting.slots * (end - begin))
    return Measured(
        goal="slots idle while turns wait", target="≤ 2 %", value=100 * share, passed=share <= 0.02, unit="%"
    )


def own_delay(seen: Seen) -> Measured:
    """The scheduler's part of the time to the first token: its scripts, and what the worker that took the turn had
    been free for it without taking it.
    """
    served = [turn for turn in seen.window if turn.claimed is not None]
    if not served:
        return Measured(goal="scheduler's part of TTFT, p99", target="≤ 20 ms", value=None, passed=None)
    # Whole ms, rounded up: what the server's clock says differs from one run of a simulation to the next.
    scripts = math.ceil(seen.record.script_us / max(1, len(seen.record.turns)) / 1000)
    worst = percentile([turn.idle for turn in served], 0.99) + scripts
    return Measured(
        goal="scheduler's part of TTFT, p99",
        target="≤ 20 ms",
        value=worst,
        passed=worst <= 20,
        unit="ms",
        note=f"median {percentile([turn.idle for turn in served], 0.5) + scripts:.0f} ms",
    )


def first_token(seen: Seen) -> Measured:
    """Time to the first token of paid turns with short prompts that were taken in; one that expired had none.

    A turn that waits behind its own user's other turns is not looked at: the order within a user is the user's.
    """
    if seen.setting.load > 0.95:
        return Measured(goal=TTFT, target="< 500 ms", value=None, passed=None)
    last = 1000 * seen.setting.seconds
    times = []
    queued: dict[UUID, int] = {}  # until when (ms) the user's turns so far waited
    for turn in seen.record.turns:
        alone = queued.get(turn.user_id, 0) <= turn.sent
        if not turn.refused:
            queued[turn.user_id] = max(queued.get(turn.user_id, 0), left_queue(turn, end_ms=last))
        if turn.sent < 1000 * seen.setting.warm_up_s:
            continue
        if alone and turn.tier in PAID and turn.prompt <= SHORT_PROMPT and not turn.refused:
            if turn.claimed is not None:
                times.append(turn.first_token - turn.sent)
            elif turn.expired is not None or turn.sent < last - 5_000:
                times.append(math.inf)
    worst = percentile(times, 0.99) if times else None
    return Measured(
        goal=TTFT,
        target="< 500 ms",
        value=worst,
        passed=None if worst is None else worst < 500,
        unit="ms",
        note=f"{len(times)} turns, median {percentile(times, 0.5):.0f} ms" if times else "",
    )


def tier_shares(seen: Seen) -> Measured:
    """How far a tier's share of service was from its weight's, in a window all through which all had something waiting.

    The free tier's weight counts as its floor where that is more.
    """
    weights = dict(seen.setting.weights)
    floor = seen.setting.floor
    paid = sum(weight for tier, weight in weights.items() if tier != FREE)
    weights[FREE] = max(weights[FREE], floor / (1 - floor) * paid)
    total = sum(weights.values())
    worst: float | None = None
    note = ""
    for begin, end in seen.windows(SHARE_WINDOW_S):
        if all(covers(seen.tier_backlogs.get(tier, ()), 1000 * begin, 1000 * end) for tier in weights):
            for tier, weight in weights.items():
                off = 100 * abs(seen.by_tier.share(tier, begin, end) - weight / total)
                if worst is None or off > worst:
                    worst = off
                    note = f"{tier}, due {100 * weight / total:.1f} %"
    return Measured(
        goal="tiers' shares off their weights",
        target="≤ 3 pp",
        value=worst,
        passed=None if worst is None else worst <= 3,
        unit="pp",
        note=note,
    )


ALL: Sequence[Callable[[Seen], Measured]] = (
    same_tier_difference,
    jain_index,
    free_share,
    paid_refusals,
    expired,
    wait_estimate,
    prefix_hits,
    idle_slots,
    own_delay,
    first_token,
    tier_shares,
)


def measure(seen: Seen) -> list[Measured]:
    """Every goal in one simulation."""
    return [goal(seen) for goal in ALL]


def _clipped(intervals: Iterable[Interval], setting: Setting) -> Iterable[Interval]:
    """Whole seconds of the backlogs that lie in the measuring time and are long enough to compare."""
    for begin, end in intervals:
        first = max(setting.warm_up_s, -(-begin // 1000))
        last = min(setting.seconds, end // 1000)
        if last - first >= PAIR_S:
            yield first, last


def _common(some: Iterable[Interval], others: Iterable[Interval]) -> Iterable[Interval]:
    for one in some:
        for other in others:
            begin, end = max(one[0], other[0]), min(one[1], other[1])
            if end - begin >= PAIR_S:
                yield begin, end


def _apart(service: Service[UUID], one: UUID, other: UUID, begin: int, end: int) -> tuple[int, int, float, float]:
    """When (s) the difference of two users' services was smallest and largest, and what it was."""
    ones, others = service.until[one], service.until[other]
    differences = [(ones[second] - others[second], second) for second in range(begin, end + 1)]
    lowest, low = min(differences)
    highest, high = max(differences)
    return low, high, lowest, highest


def _misjudged(turns: Iterable[Turn], second: int, setting: Setting) -> int:
    """How far the charges of turns under way at that second were from what they cost in the end."""
    at = 1000 * second
    return sum(
        abs(turn.charged - cost(turn, setting))
        for turn in turns
        if turn.charged is not None
        and turn.claimed is not None
        and turn.finished is not None
        and turn.claimed <= at < turn.finished
    )
