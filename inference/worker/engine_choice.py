"""Which engine a worker starts, from its settings."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from inference import tokenization
from inference.worker.engine import Engine


def starter(
    *, engine: str, model: str, context_window: int, max_concurrent_runs: int, options: Mapping[str, Any]
) -> Callable[[], Awaitable[Engine]]:
    """What starts the engine named "vllm" or "scripted" for a model. Raises ValueError for another name.

    The pool's window and concurrency bound the engine, unless its options say otherwise.
    """
    match engine:
        case "vllm":

            async def start_vllm() -> Engine:
                from inference.worker import vllm_engine

                return await vllm_engine.start(
                    model=model,
                    options={"max_model_len": context_window, "max_num_seqs": max_concurrent_runs, **options},
                )

            return start_vllm
        case "scripted":

            async def start_scripted() -> Engine:
                from inference.worker.scripted_engine import ScriptedEngine

                return ScriptedEngine(
                    tokenizer=tokenization.load(model),
                    max_running=max_concurrent_runs,
                    max_model_len=context_window,
                )

            return start_scripted
        case _:
            raise ValueError(f"unknown engine {engine!r}: vllm or scripted")
