"""The engine options a model pool may set: an allow-list with kinds, limits and meanings.

Names are those of vLLM's engine arguments. The admin form checks options here without vllm installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its kind, what it means, and its limits (inclusive) or choices."""

    kind: type
    meaning: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> None:
        """Raise ValueError that names the option and the limit it breaks."""
        # A bool is an int to Python, and JSON has one number type: 1 is fine where 1.0 is meant.
        allowed = (int, float) if self.kind is float else self.kind
        if not isinstance(value, allowed) or (isinstance(value, bool) and self.kind is not bool):
            raise ValueError(f"engine option {name!r} must be {_KINDS[self.kind]}, not {value!r}")
        if self.choices and value not in self.choices:
            choices = ", ".join(self.choices)
            raise ValueError(f"engine option {name!r} must be one of {choices}, not {value!r}")
        if isinstance(value, int | float):  # `not >=` and not `<`, so that NaN fails too
            if self.least is not None and not value >= self.least:
                raise ValueError(f"engine option {name!r} must be at least {self.least:g}, not {value!r}")
            if self.most is not None and not value <= self.most:
                raise ValueError(f"engine option {name!r} must be at most {self.most:g}, not {value!r}")


_KINDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    dict: "an object",
}


def _count(meaning: str, *, least: int = 1, most: int | None = None) -> Option:
    return Option(kind=int, meaning=meaning, least=least, most=most)


def _flag(meaning: str) -> Option:
    return Option(kind=bool, meaning=meaning)


def _text(meaning: str, *choices: str) -> Option:
    return Option(kind=str, meaning=meaning, choices=choices)


OPTIONS: Mapping[str, Option] = {
    "tensor_parallel_size": _count("GPUs that share every layer", most=64),
    "pipeline_parallel_size": _count("GPU groups that each hold some of the layers", most=64),
    "data_parallel_size": _count("engine copies behind one queue", most=64),
    "enable_expert_parallel": _flag("spread the experts of a mixture model over the GPUs"),
    "distributed_executor_backend": _text("how the engine starts its workers", "uni", "mp", "ray"),
    "dtype": _text("number format of weights and activations", "auto", "bfloat16", "float16", "float32"),
    "quantization": _text("weight quantisation, where the model does not name its own (awq, fp8, …)"),
    "kv_cache_dtype": _text(
        "number format of the KV cache", "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"
    ),
    "gpu_memory_utilization": Option(
        kind=float, meaning="share of each GPU's memory the engine may take", least=0.05, most=0.99
    ),
    "kv_cache_memory_bytes": _count("size of the KV cache in bytes; replaces the share", least=1 << 20),
    "cpu_offload_gb": Option(kind=float, meaning="GiB of weights kept in main memory per GPU", least=0),
    "block_size": _count("tokens per KV block, the unit of prefix-cache hits", least=8, most=256),
    "max_model_len": _count("the window: prompt and answer, in tokens", least=256),
    "max_num_seqs": _count("sequences in one batch; further ones wait", most=4096),
    "max_num_batched_tokens": _count("tokens in one step: bounds how long a step may take", least=16),
    "enable_chunked_prefill": _flag("split long prompts over several steps"),
    "long_prefill_token_threshold": _count("tokens of one long prompt in one step; 0 is no limit", least=0),
    "enable_prefix_caching": _flag("reuse the KV blocks of prompts that begin alike"),
    "scheduling_policy": _text("order of waiting requests", "priority", "fcfs"),
    "enforce_eager": _flag("no CUDA graphs: faster start, slower steps"),
    "async_scheduling": _flag("plan the next step while this one runs"),
    "speculative_config": Option(kind=dict, meaning="speculative decoding: a cheap draft checked in one step"),
    "load_format": _text("how weights are read", "auto", "safetensors", "dummy"),
    "revision": _text("the model's revision on the Hugging Face hub"),
    "seed": _count("seed of the engine's own random numbers", least=0),
}

SPECULATIVE_OPTIONS: Mapping[str, Option] = {
    "method": _text("draft method", "ngram", "draft_model", "eagle", "eagle3", "mtp", "medusa", "suffix"),
    "model": _text("the draft model"),
    "num_speculative_tokens": _count("tokens drafted per step", most=32),
    "prompt_lookup_min": _count("ngram: shortest match, in tokens", most=64),
    "prompt_lookup_max": _count("ngram: longest match, in tokens", most=64),
    "draft_tensor_parallel_size": _count("GPUs for the draft model", most=64),
}

# vLLM's own defaults fit GPUs; only what the protocol needs is set there.
GPU_DEFAULTS: Mapping[str, object] = {
    "enable_prefix_caching": True,
    "scheduling_policy": "priority",
}

CPU_DEFAULTS: Mapping[str, object] = {
    **GPU_DEFAULTS,
    "distributed_executor_backend": "uni",
    "dtype": "bfloat16",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 30,
    # A hit needs whole blocks: the CPU build's 128 would never hit on short chats.
    "block_size": 32,
    "max_model_len": 4096,
    "max_num_seqs": 32,
    # One step of a cold prompt holds up every other stream, and an abort waits for it. The threshold leaves half
    # of a step to short prompts while a long one is prefilled. Measured: docs/engine.md.
    "max_num_batched_tokens": 256,
    "long_prefill_token_threshold": 128,
}

# Numbers twice as long: as many tokens need twice the KV cache.
CPU_FLOAT32: Mapping[str, object] = {"dtype": "float32", "kv_cache_memory_bytes": 2 << 30}


def validate(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, checked: each known, of its kind and within its limits.

    Raises ValueError naming the first bad one.
    """
    _check(options, OPTIONS, prefix="")
    speculative = options.get("speculative_config")
    if speculative is not None:
        _check(speculative, SPECULATIVE_OPTIONS, prefix="speculative_config.")
        if not {"method", "model"} & speculative.keys():
            raise ValueError("engine option 'speculative_config' needs a 'method' or a 'model'")
    _check_together(options)
    return dict(options)


def resolve(options: Mapping[str, Any], *, on_gpu: bool, bfloat16: bool = True) -> dict[str, Any]:
    """The arguments to start the engine with: the hardware's defaults, replaced by the pool's own options.

    `bfloat16` says whether a CPU has instructions for it. Raises ValueError.
    """
    given = validate(options)
    if on_gpu:
        return validate({**GPU_DEFAULTS, **given})
    # A processor that would emulate bfloat16 is given float32.
    dtype = given.get("dtype", "bfloat16" if bfloat16 else "float32")
    return validate({**CPU_DEFAULTS, **(CPU_FLOAT32 if dtype == "float32" else {}), **given})


def _check_together(options: Mapping[str, Any]) -> None:
    """Limits that vLLM sets between options; it would refuse to start."""
    step, batch = options.get("max_num_batched_tokens"), options.get("max_num_seqs")
    if step is not None and batch is not None and step < batch:
        raise ValueError(
            f"engine option 'max_num_batched_tokens' ({step}) must be at least 'max_num_seqs' ({batch}): "
            "every sequence of a batch takes a token of each step"
        )
    window, chunked = options.get("max_model_len"), options.get("enable_chunked_prefill", True)
    if step is not None and window is not None and not chunked and step < window:
        raise ValueError(
            f"engine option 'max_num_batched_tokens' ({step}) must be at least 'max_model_len' ({window}) "
            "where 'enable_chunked_prefill' is off"
        )


def _check(options: Mapping[str, Any], known: Mapping[str, Option], *, prefix: str) -> None:
    for name, value in options.items():
        if name not in known:
            names = ", ".join(sorted(known))
            raise ValueError(f"unknown engine option {prefix + name!r}; known are: {names}")
        known[name].check(prefix + name, value)
