"""The engine seam: what the worker asks of anything that turns prompt tokens into answer tokens.

Wire types apart from behaviour: implementations live in `vllm_engine` (the real one) and `scripted_engine`.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class EngineDead(Exception):
    """The engine can serve nothing any more; every request in it is lost. Build a new one."""


class EngineRefused(Exception):
    """The engine rejects this one request (a prompt beyond its window, say); others go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 is greedy; `top_p` in (0, 1]."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One sequence to generate.

    `request_id` is unique in the engine (run id and epoch). `prompt_ids` holds the whole prompt, for a
    continuation the tokens already published included. `max_output_tokens` ≥ 1. A lower `priority` is more
    urgent. `cache_salt` separates users in the prefix cache.
    """

    request_id: str
    prompt_ids: Sequence[int]
    max_output_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    cache_salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDelta:
    """What one engine step added to one sequence.

    `text` may be empty while a multi-byte character is incomplete; `token_ids` are the step's new tokens.
    Steps that pile up while the caller is busy may come as one delta. `finish_reason` is "stop" or "length" on
    the last delta and None before it. `cached_tokens` counts prompt tokens taken from the prefix cache.

    An end-of-answer token has no text and shares no delta with tokens that have: an answer cut after any text
    can be continued. The engine counts it, so the number of all ids is the output usage.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's own counters: sequences decoding or prefilling, sequences waiting, KV cache use (0–1).

    `kv_tokens` is for how many tokens the KV cache has room in all; 0 = the engine does not tell.

    `steps` grows with every step that the engine finishes, of a prefill too: one that has work and stands still hangs.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    # Not compared: engines at rest are alike, whatever they are and have done.
    kv_tokens: int = field(default=0, compare=False)
    steps: int = field(default=0, compare=False)


class Engine(Protocol):
    """A running engine. All methods are called on the event loop that built it."""

    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineDelta, None]:
        """Yield deltas until a finish reason. Closing it early drops the sequence.

        Raises EngineRefused for this request, EngineDead when the engine is gone.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """Drop the sequence; its `generate` ends without a finish reason. Unknown ids are no error.

        Returns when the engine has let go of the sequence: how long that took is the release time.
        """
        ...

    def stats(self) -> EngineStats:
        """The latest counters the engine itself reported."""
        ...

    @property
    def alive(self) -> bool:
        """False once the engine can serve nothing any more, also when no request is there to notice."""
        ...

    async def close(self) -> None:
        """Stop the engine and free what it holds."""
        ...
