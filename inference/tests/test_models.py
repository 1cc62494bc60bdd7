"""What a model pool refuses before it is stored."""

import pytest
from django.core.exceptions import ValidationError

from inference.models import ModelPool


def pool(**fields: object) -> ModelPool:
    return ModelPool(slug="p", name="P", **fields)


def test_sensible_engine_options_are_taken() -> None:
    pool(engine_options={"tensor_parallel_size": 2, "max_model_len": 8192}).clean()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "object"),
        ({"tensor_paralel_size": 2}, "tensor_paralel_size"),
        ({"gpu_memory_utilization": 2}, "at most"),
        ({"max_model_len": 2048}, "below the pool's window"),
        ({"max_num_batched_tokens": 16}, "below the concurrent runs"),
    ],
)
def test_engine_options_that_cannot_work_are_refused_with_the_reason(options: object, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        pool(engine_options=options).clean()
