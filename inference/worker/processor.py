"""What this machine's processor computes well."""

from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
# Linux's names: x86's first, then Arm's. x86 has the instructions from Cooper Lake and Zen 4 on, Arm from v8.6 on.
_FLAGS = ("flags", "Features")
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


def computes_bfloat16(*, cpu_info: Path = _CPU_INFO) -> bool:
    """Whether the processor has instructions for bfloat16. True where nothing says (no such file).

    Without them PyTorch converts each number: measured at a quarter of float32's speed (docs/engine.md).
    """
    try:
        lines = cpu_info.read_text().splitlines()
    except OSError:
        return True
    flags = (value.split() for key, _, value in (line.partition(":") for line in lines) if key.strip() in _FLAGS)
    return not _BFLOAT16.isdisjoint(next(flags, _BFLOAT16))
