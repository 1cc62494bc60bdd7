"""Which number format a processor is good at."""

from pathlib import Path

import pytest

from inference.worker.processor import computes_bfloat16


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("model name\t: X\nflags\t\t: fpu avx2 fma\nbogomips\t: 5\n", False),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("Features\t: fp asimd\n", False),
        ("processor\t: 0\n", True),
    ],
)
def test_the_processors_flags_decide(tmp_path: Path, text: str, has: bool) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    assert computes_bfloat16(cpu_info=info) is has


def test_bfloat16_stays_where_nothing_is_known(tmp_path: Path) -> None:
    assert computes_bfloat16(cpu_info=tmp_path / "missing")
