"""The plan of a chaos run: who sends what when, what clients do to their connections, which process suffers what.

A pure function of its parameters: the same seed gives the same plan, on every machine.
"""

import dataclasses
import enum
import random
from collections.abc import Iterator

WEBS = ("web-1", "web-2")
WORKERS = ("worker-1", "worker-2")
LANES = 8
# The lanes of one user: its concurrency limit (2 answers at a time) is always within reach.
LANES_PER_USER = 2


class Kind(enum.StrEnum):
    """What is done to a process."""

    KILL = "kill"  # SIGKILL; started again
    FREEZE = "freeze"  # SIGSTOP; SIGCONT
    STOP = "stop"  # SIGTERM, as a deploy does; started again


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Once `after_turns` turns have begun and `delay_s` have passed, the target is hit; `down_s` later it is back."""

    number: int
    after_turns: int
    delay_s: float
    target: str
    kind: Kind
    down_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The same request once more, `delay_s` after the first; its connection is closed after `drop_s`, if not None."""

    delay_s: float
    web: int
    drop_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A reader drops its connection after `events` events on it, and is back after `away_s` at `web`."""

    events: int
    away_s: float
    web: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reader of an answer: where it begins, and where it drops its connection."""

    delay_s: float
    web: int
    cuts: tuple[Cut, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop the answer once its first reader has `events` events: `times` requests at once, over both processes."""

    events: int
    web: int
    times: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One turn as its client plays it. Token counts; `web` is an index of WEBS.

    `tokens` is the length of the script's answer, of which `max_output_tokens` may allow less.
    """

    number: int
    lane: int
    content: str
    tokens: int
    fail_after: int | None
    max_output_tokens: int | None
    streamed: bool
    web: int
    repeats: tuple[Repeat, ...]
    readings: tuple[Reading, ...]
    cancel: Cancel | None
    retries: int
    conflict: bool
    probe: bool
    late_repeat: bool
    replays: int

    @property
    def turn_id(self) -> str:
        return f"turn-{self.number}"

    @property
    def user(self) -> int:
        return self.lane // LANES_PER_USER


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run."""

    seed: int
    database: str
    engine: str
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]

    def words(self) -> Iterator[str]:
        """The plan, a line per turn and fault, for the report of a failure."""
        for fault in self.faults:
            yield (
                f"fault {fault.number}: {fault.kind} {fault.target} {fault.delay_s:.2f} s after turn "
                f"{fault.after_turns} began, back after {fault.down_s:.2f} s"
            )
        for ask in self.asks:
            yield f"turn {ask.number}: {ask}"


def make(*, seed: int, turns: int, kills: int, database: str, engine: str) -> Plan:
    """The plan of `turns` turns and `kills` faults. `database` is sqlite or postgres, `engine` scripted or vllm."""
    # Strings seed a generator the same way everywhere; each stream has its own, so that one more turn moves no fault.
    asks = random.Random(f"{seed}:turns:{engine}")
    faults = random.Random(f"{seed}:faults:{engine}:{database}")
    return Plan(
        seed=seed,
        database=database,
        engine=engine,
        asks=tuple(_ask(asks, number, engine=engine) for number in range(turns)),
        faults=tuple(_faults(faults, turns=turns, kills=kills, database=database, engine=engine)),
    )


def _ask(rng: random.Random, number: int, *, engine: str) -> Ask:
    scripted = engine == "scripted"
    tokens = rng.choice((1, 5, 30, 60, 100, 160, 240)) if scripted else rng.choice((12, 30, 60, 100))
    # Slow ones give faults the time to hit; none takes longer than a few seconds.
    rate = max(rng.choice((15, 30, 60, 120, 400)), tokens // 4)
    prefill_ms = rng.choice((0, 10, 50, 300))
    fail_after = rng.randrange(tokens) if rng.random() < 0.05 else None
    limited = not scripted or rng.random() < 0.15
    topic = rng.choice(("the sea", "a lighthouse", "numbers", "the café", "日本", "a 🙂 face"))
    if scripted:
        words = [f"tps={rate}", f"tokens={tokens}", f"prefill_ms={prefill_ms}"]
        words += [] if fail_after is None else [f"fail_after={fail_after}"]
        content = f"Turn {number}: tell me of {topic}. [[{' '.join(words)}]]"
    else:
        content = f"Turn {number}: tell me a long story of {topic}."
    web = rng.randrange(2)
    return Ask(
        number=number,
        lane=number % LANES,
        content=content,
        tokens=tokens,
        fail_after=fail_after if scripted else None,
        max_output_tokens=None if not limited else max(1, tokens // 2) if scripted else tokens,
        streamed=rng.random() < 0.3,
        web=web,
        repeats=_repeats(rng, web=web),
        readings=tuple(_reading(rng, first=index == 0) for index in range(rng.choice((1, 1, 2, 3)))),
        cancel=_cancel(rng, tokens=tokens) if rng.random() < 0.2 else None,
        retries=rng.choice((0, 1, 1, 2)),
        conflict=rng.random() < 0.15,
        probe=rng.random() < 0.2,
        late_repeat=rng.random() < 0.3,
        replays=rng.choice((0, 1, 2)),
    )


def _repeats(rng: random.Random, *, web: int) -> tuple[Repeat, ...]:
    count = rng.choice((0, 0, 1, 1, 2, 4))
    return tuple(
        Repeat(
            # At once, while the first is under way, shortly after its end.
            delay_s=rng.choice((0.0, 0.005, 0.02, 0.05, 0.2, 1.0)) * rng.random(),
            web=rng.choice((web, 1 - web, 1 - web)),
            drop_s=rng.choice((None, None, 0.001, 0.01, 0.03)),
        )
        for _ in range(count)
    )


def _reading(rng: random.Random, *, first: bool) -> Reading:
    cuts = tuple(
        Cut(events=rng.choice((0, 1, 2, 3, 5, 10, 20)), away_s=rng.choice((0.0, 0.05, 0.5, 1.5)), web=rng.randrange(2))
        for _ in range(rng.choice((0, 1, 2, 4)))
    )
    return Reading(delay_s=0.0 if first else rng.choice((0.0, 0.3, 1.0, 2.5)), web=rng.randrange(2), cuts=cuts)


def _cancel(rng: random.Random, *, tokens: int) -> Cancel:
    return Cancel(
        events=rng.choice((0, 1, 2, 3, 6, max(1, tokens // 4))), web=rng.randrange(2), times=rng.choice((1, 1, 2, 3))
    )


def _faults(rng: random.Random, *, turns: int, kills: int, database: str, engine: str) -> Iterator[Fault]:
    deck: list[tuple[str, Kind]] = []
    essential = True
    for number in range(kills):
        if not deck:
            deck = _essential(database, engine) if essential else _everything(database, engine)
            essential = False
            rng.shuffle(deck)
        target, kind = deck.pop()
        # Beyond a lease's 1.5 s and below: both a pause that nobody may notice and a loss.
        down_s = rng.choice((0.3, 1.0, 2.0, 4.0, 6.0)) * rng.uniform(0.8, 1.2)
        slot = turns / (kills + 1)
        yield Fault(
            number=number,
            after_turns=min(turns, round((number + rng.uniform(0.2, 0.9)) * slot) + 1),
            delay_s=rng.uniform(0.0, 1.5),
            target=_pick(rng, target),
            kind=kind,
            down_s=down_s,
        )


def _pick(rng: random.Random, target: str) -> str:
    return f"{target}-{rng.randrange(2) + 1}" if target in ("web", "worker", "engine") else target


def _essential(database: str, engine: str) -> list[tuple[str, Kind]]:
    """What even a short run has."""
    found = [
        ("worker", Kind.KILL),
        ("worker", Kind.FREEZE),
        ("valkey", Kind.KILL),
        ("web", Kind.KILL),
        ("database", Kind.KILL if database == "postgres" else Kind.FREEZE),
    ]
    return [*found, ("engine", Kind.KILL)] if engine == "vllm" else found


def _everything(database: str, engine: str) -> list[tuple[str, Kind]]:
    """A deck: the worker, whose loss costs most to recover from, comes most often."""
    both = [(name, kind) for name in ("web", "worker", "jobs", "beat") for kind in Kind]
    found = [*both, ("worker", Kind.KILL), ("worker", Kind.FREEZE), ("worker", Kind.STOP), ("web", Kind.KILL)]
    found += [("valkey", Kind.KILL), ("valkey", Kind.KILL), ("valkey", Kind.FREEZE), ("database", Kind.FREEZE)]
    if database == "postgres":
        found += [("database", Kind.KILL), ("database", Kind.STOP)]
    if engine == "vllm":
        found += [("engine", Kind.KILL), ("engine", Kind.KILL)]
    return found
