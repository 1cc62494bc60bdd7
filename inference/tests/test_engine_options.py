"""Engine options are checked where they are entered."""

import pytest

from inference.worker import engine_options


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
        {"quantization": "awq", "dtype": "bfloat16"},
        {"gpu_memory_utilization": 0.9, "cpu_offload_gb": 4},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}},
        {"enable_chunked_prefill": False},
    ],
)
def test_known_options_within_their_limits_pass_unchanged(options: dict[str, object]) -> None:
    assert engine_options.validate(options) == options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tensor_paralel_size": 2}, "unknown engine option 'tensor_paralel_size'"),
        ({"model": "/etc/passwd"}, "unknown engine option 'model'"),
        ({"tensor_parallel_size": 0}, "'tensor_parallel_size' must be at least 1"),
        ({"tensor_parallel_size": "2"}, "'tensor_parallel_size' must be a whole number"),
        ({"tensor_parallel_size": 1.5}, "'tensor_parallel_size' must be a whole number"),
        ({"max_num_seqs": True}, "'max_num_seqs' must be a whole number"),
        ({"enforce_eager": 1}, "'enforce_eager' must be true or false"),
        ({"gpu_memory_utilization": 1.5}, "'gpu_memory_utilization' must be at most 0.99"),
        ({"gpu_memory_utilization": float("nan")}, "'gpu_memory_utilization' must be"),
        ({"dtype": "int3"}, "'dtype' must be one of auto"),
        ({"speculative_config": "ngram"}, "'speculative_config' must be an object"),
        ({"speculative_config": {}}, "'speculative_config' needs a 'method' or a 'model'"),
        ({"speculative_config": {"method": "guess"}}, "'speculative_config.method' must be one of ngram"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 65}, "must be at least 'max_num_seqs'"),
        ({"speculative_config": {"tokens": 3}}, "unknown engine option 'speculative_config.tokens'"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine_options.validate(options)


def test_a_pools_own_option_replaces_the_hardwares_default() -> None:
    assert engine_options.resolve({}, on_gpu=False)["max_model_len"] == 4096
    assert engine_options.resolve({"max_model_len": 8192}, on_gpu=False)["max_model_len"] == 8192


def test_an_option_that_contradicts_a_default_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 'max_model_len'"):
        engine_options.resolve({"enable_chunked_prefill": False}, on_gpu=False)


def test_on_gpus_sizes_are_left_to_the_engine() -> None:
    assert engine_options.resolve({}, on_gpu=True) == {
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
    }


def test_a_processor_without_bfloat16_computes_in_float32_and_holds_as_many_tokens() -> None:
    usual, other = (engine_options.resolve({}, on_gpu=False, bfloat16=has) for has in (True, False))
    assert (usual["dtype"], other["dtype"]) == ("bfloat16", "float32")
    assert other["kv_cache_memory_bytes"] == 2 * usual["kv_cache_memory_bytes"]
    assert engine_options.resolve({"dtype": "bfloat16"}, on_gpu=False, bfloat16=False) == usual
    assert engine_options.resolve({"dtype": "float32"}, on_gpu=False, bfloat16=True) == other


@pytest.mark.parametrize(
    ("on_gpu", "bfloat16"),
    [(False, True), (False, False), (True, True)],
)
def test_the_defaults_themselves_are_allowed(on_gpu: bool, bfloat16: bool) -> None:
    defaults = engine_options.resolve({}, on_gpu=on_gpu, bfloat16=bfloat16)
    assert engine_options.validate(defaults) == defaults
