"""The real vLLM engine with the real small model keeps the seam's promises."""

import pytest

pytest.importorskip("vllm")
