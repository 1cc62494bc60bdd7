"""Chats side by side on two workers: how much of what a worker could remember of each turn's prompt it did remember."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from inference.worker.engine_options import CPU_DEFAULTS
from tests.client import Api, Json
from tests.stack import TINY_MODEL, Stack
from tests.waiting import wait_for

# Wit is not needed: ids that nobody would spell a text with are what prompts must get right.
ENVIRONMENT = {"MODEL": str(TINY_MODEL), "WORKERS": "2"}
CHATS = 6
TURNS = 10
OUTPUT_TOKENS = 48
# Beyond what processes keep of a pool's settings (inference/policies.py).
KNOWN_S = 2.5
BLOCK = int(str(CPU_DEFAULTS["block_size"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn from the second on. In tokens: the prompt, what the engine had of it, and the beginning that it shares
    with the prompt and answer before it, in whole blocks of the engine's.
    """

    number: int
    prompt: int
    cached: int
    shared: int

    @property
    def hit(self) -> float:
        return self.cached / self.shared


def measure(stack: Stack, *, key: str, chats: int = CHATS, turns: int = TURNS) -> list[Turn]:
    """Every turn from the second on of chats that all go on at once. Raises AssertionError when one is not answered."""
    with ThreadPoolExecutor(max_workers=chats) as threads:
        done = list(threads.map(lambda number: _chat(stack, key=key, number=number, turns=turns), range(chats)))
    return [turn for chat in done for turn in chat]


def _chat(stack: Stack, *, key: str, number: int, turns: int) -> list[Turn]:
    found: list[Turn] = []
    with Api(url=stack.url, key=key) as api:
        chat = api.new_chat()
        before: Json | None = None
        for turn in range(1, turns + 1):
            asked = f"Say something about {number} lighthouses, {turn} ships and whoever lives there."
            events = list(api.stream(chat, asked, max_output_tokens=OUTPUT_TOKENS))
            assert events[-1].type == "completed", events[-1]
            data = events[-1].data
            usage = data["usage"]
            if before is not None:
                shared = before["shared"] // BLOCK * BLOCK
                found.append(Turn(number=turn, prompt=usage["prompt"], cached=usage["cached"], shared=shared))
            # What ends an answer has no text, so that it is no part of what comes after.
            closing = data["finish_reason"] == "stop"
            before = {"shared": usage["prompt"] + usage["output"] - closing}
    return found


def share(turns: list[Turn]) -> float:
    """Of all shared blocks, those that were cached (0–1)."""
    return sum(turn.cached for turn in turns) / sum(turn.shared for turn in turns)


def by_number(turns: list[Turn]) -> dict[int, float]:
    """The median hit of each turn."""
    numbers = sorted({turn.number for turn in turns})
    return {number: statistics.median(turn.hit for turn in turns if turn.number == number) for number in numbers}


def set_delay(stack: Stack, *, ms: int) -> None:
    """Let a turn be kept so long for the worker that has its chat in memory; returns when that counts."""
    command = f"from inference.models import ModelPool; ModelPool.objects.update(affinity_delay_ms={ms})"
    stack.manage("shell", "--verbosity=0", "--command", command)
    known_by = time.monotonic() + KNOWN_S
    wait_for(lambda: time.monotonic() > known_by, what="no process knows the old delay")
