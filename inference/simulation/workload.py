"""Who sends what, and when: seeded, so that the same seed makes the same turns whatever the policy."""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from inference.simulation.turns import FREE, PLUS, PRO, Chat

# The engine's window less the answer, as DESIGN's context budget has it.
LONGEST_PROMPT = 6_656
SYSTEM_PROMPT = 200
MAX_OUTPUT = 1_024
TURNS_AT_MOST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Heavy tails: lognormal questions and answers, and now and then a document (Pareto), all clipped. Tokens."""

    question: tuple[float, float] = (60.0, 1.0)  # median, sigma
    document_share: float = 0.1
    document: tuple[float, float] = (800.0, 1.3)  # minimum, alpha
    answer: tuple[float, float] = (170.0, 0.9)

    def ask(self, rng: random.Random, *, first: bool) -> int:
        """Tokens of a question. Documents come with a chat's first."""
        if first and rng.random() < self.document_share:
            return int(min(5_500, self.document[0] * rng.paretovariate(self.document[1])))
        return _lognormal(rng, *self.question, low=1, high=4_000)

    def answer_tokens(self, rng: random.Random) -> int:
        return _lognormal(rng, *self.answer, low=1, high=MAX_OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The users of a tier and what they want of the pool.

    `demand` is their share of all that is wanted. Visitors open chats at random times, half of them in bursts (an
    on-off process: 10 s at 1.8 times, 20 s at 0.6 times the mean), read, think and send the next turn. Flooders, with
    `flood` of the tier's demand, send many chats in the same moment, `flood_chats` (least, most).
    """

    demand: float
    visitors: int
    flooders: int
    flood: float
    flood_chats: tuple[int, int] = (10, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is wanted of a pool over `seconds` of virtual time, at `load` times what it can do."""

    crowds: dict[str, Crowd]
    load: float
    seconds: int
    lengths: Lengths = field(default_factory=Lengths)
    turns_mean: float = 4.0
    think: tuple[float, float] = (12_000.0, 0.8)  # ms: median, sigma
    # Chats have begun for so long when the simulation does: it starts in the middle of the day.
    early_s: int = 120

    def chats(self, *, seed: int, slots: int, prefill_ms: float, token_ms: float) -> list[Chat]:
        """Every chat, in the order of their first turns.

        `prefill_ms` and `token_ms` are what a prompt and an output token take.
        """
        chats: list[Chat] = []
        for tier, crowd in sorted(self.crowds.items()):
            rng = random.Random(f"{seed} {tier}")
            wanted = self.load * crowd.demand * slots
            visitors = [_uuid(rng) for _ in range(crowd.visitors)]
            if visitors:
                cost = self._mean_slot_ms(prefill_ms=prefill_ms, token_ms=token_ms, flood=False)
                rate = wanted * (1 - crowd.flood) / cost / 2
                early = -1000 * self.early_s
                for times in (_poisson(rng, rate, early, 1000 * self.seconds), _bursty(rng, rate, early, self.seconds)):
                    for at in times:
                        chat = self._chat(rng, user=rng.choice(visitors), tier=tier, at=int(at), flood=False)
                        if _skip_to_start(chat, prefill_ms=prefill_ms, token_ms=token_ms):
                            chats.append(chat)
            for flooder in [_uuid(rng) for _ in range(crowd.flooders)]:
                cost = self._mean_slot_ms(prefill_ms=prefill_ms, token_ms=token_ms, flood=True)
                per_flood = sum(crowd.flood_chats) / 2
                rate = wanted * crowd.flood / crowd.flooders / cost / per_flood
                for at in _poisson(rng, rate, 0, 1000 * self.seconds):
                    chats += [
                        self._chat(rng, user=flooder, tier=tier, at=int(at), flood=True)
                        for _ in range(rng.randint(*crowd.flood_chats))
                    ]
        return sorted(chats, key=lambda chat: (chat.begins, chat.chat_id))

    def slots_for(self, prompts_per_s: float, *, prefill_ms: float, token_ms: float) -> int:
        """How many slots a pool has at which the load is this many prompts a second, one for each chat begun."""
        cost = self._mean_slot_ms(prefill_ms=prefill_ms, token_ms=token_ms, flood=False)
        return int(prompts_per_s / 1000 * cost / self.load)

    def _mean_slot_ms(self, *, prefill_ms: float, token_ms: float, flood: bool) -> float:
        """What a chat holds slots for on average, its prefix in the cache."""
        return _mean_slot_ms(
            lengths=self.lengths,
            turns_mean=1.0 if flood else self.turns_mean,
            prefill_ms=prefill_ms,
            token_ms=token_ms,
        )

    def _chat(self, rng: random.Random, *, user: UUID, tier: str, at: int, flood: bool) -> Chat:
        plan = [
            (question, answer, 0 if number == 0 else _lognormal(rng, *self.think, low=500, high=120_000))
            for number, (question, answer) in enumerate(
                _talk(rng, lengths=self.lengths, turns_mean=1.0 if flood else self.turns_mean)
            )
        ]
        return Chat(chat_id=_uuid(rng), user_id=user, tier=tier, plan=plan, begins=at)


def mixed(*, load: float, seconds: int) -> Workload:
    """Many visitors and a few floods; three fifths of what is wanted is wanted for nothing."""
    return Workload(
        crowds={
            FREE: Crowd(demand=0.60, visitors=600, flooders=4, flood=0.15),
            # Paid plans bound the answers under way at a time.
            PLUS: Crowd(demand=0.25, visitors=250, flooders=3, flood=0.15, flood_chats=(3, 9)),
            PRO: Crowd(demand=0.15, visitors=150, flooders=2, flood=0.15, flood_chats=(4, 12)),
        },
        load=load,
        seconds=seconds,
    )


def backlogged(*, load: float, seconds: int) -> Workload:
    """A few users in each tier who always want more than they get: each tier wants `load` times its own share."""
    return Workload(
        crowds={
            tier: Crowd(demand=share, visitors=0, flooders=6, flood=1.0, flood_chats=(3, 9))
            for tier, share in ((FREE, 0.1), (PLUS, 0.9 * 4 / 14), (PRO, 0.9 * 10 / 14))
        },
        load=load,
        seconds=seconds,
    )


def next_question(chat: Chat) -> tuple[int, int] | None:
    """Tokens of the whole prompt of the chat's next turn and of its answer; None when the chat is over."""
    if not chat.plan:
        return None
    question, answer, _ = chat.plan[0]
    prompt = (chat.context or SYSTEM_PROMPT) + question
    return (prompt, answer) if prompt <= LONGEST_PROMPT else None


def _talk(rng: random.Random, *, lengths: Lengths, turns_mean: float) -> list[tuple[int, int]]:
    """Tokens of each question and answer of a chat."""
    turns = 1 if turns_mean <= 1 else min(TURNS_AT_MOST, 1 + int(rng.expovariate(1 / (turns_mean - 0.5))))
    return [(lengths.ask(rng, first=number == 0), lengths.answer_tokens(rng)) for number in range(turns)]


@functools.cache
def _mean_slot_ms(*, lengths: Lengths, turns_mean: float, prefill_ms: float, token_ms: float) -> float:
    rng = random.Random("how long on average")
    count = 20_000
    total = 0.0
    for _ in range(count):
        context = 0
        for question, answer in _talk(rng, lengths=lengths, turns_mean=turns_mean):
            fresh = question if context else question + SYSTEM_PROMPT
            if context + fresh > LONGEST_PROMPT:
                break
            total += fresh * prefill_ms + answer * token_ms
            context += fresh + answer
    return total / count


def _skip_to_start(chat: Chat, *, prefill_ms: float, token_ms: float) -> bool:
    """Say what was said before the beginning, nobody having waited; whether anything is left to say."""
    while chat.begins < 0:
        asked = next_question(chat)
        if asked is None or len(chat.plan) == 1:
            return False
        prompt, answer = asked
        chat.plan.pop(0)
        chat.begins += int(prompt * prefill_ms + answer * token_ms) + chat.plan[0][2]
        chat.context = prompt + answer
    return True


def _lognormal(rng: random.Random, median: float, sigma: float, *, low: int, high: int) -> int:
    return int(min(high, max(low, median * rng.lognormvariate(0.0, sigma))))


def _poisson(rng: random.Random, per_ms: float, begin: float, end: float) -> Iterator[float]:
    at = begin
    while per_ms > 0:
        at += rng.expovariate(per_ms)
        if at >= end:
            return
        yield at


def _bursty(rng: random.Random, per_ms: float, begin: float, seconds: int) -> Iterator[float]:
    end, at = 1000.0 * seconds, float(begin)
    burst = rng.random() < 1 / 3
    while at < end:
        until = min(end, at + rng.expovariate(1 / (10_000 if burst else 20_000)))
        yield from _poisson(rng, per_ms * (1.8 if burst else 0.6), at, until)
        at, burst = until, not burst


def _uuid(rng: random.Random) -> UUID:
    return UUID(int=rng.getrandbits(128), version=4)
