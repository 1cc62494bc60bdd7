"""Writes the lock files: the newest versions that requirements/*.in allow, with hashes, for every platform at
once.

The web set is chosen first; what is installed into the same environment (engines, tools) is bound to its
versions.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.9"
OPTIONS = "--universal --generate-hashes --python-version 3.11 --no-header --no-emit-index-url --no-emit-find-links"
# Resolved so that their dependents agree, and installed from elsewhere or not at all
# (engine-cpu-overrides.txt).
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "triton")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"
        subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", UV], check=True)
        uv = programs / "uv"
        lock(uv, "base.in", "../requirements.txt")
        overrides = ["--override", "requirements/engine-cpu-overrides.txt"]
        left_out = [word for package in LEFT_OUT for word in ("--no-emit-package", package)]
        lock(uv, "engine-cpu.in", "engine-cpu.txt", "-c", "requirements.txt", *overrides, *left_out)
        lock(uv, "engine-gpu.in", "engine-gpu.txt", "-c", "requirements.txt")
        beside = ["-c", "requirements.txt", "-c", "requirements/engine-cpu.txt"]
        no_triton = ["--no-emit-package", "triton"]
        lock(uv, "engine-cpu-torch-cuda.in", "engine-cpu-torch-cuda.txt", *beside, *no_triton)
        lock(uv, "tokenizer.in", "tokenizer.txt", *beside)
        lock(uv, "dev.in", "dev.txt", *beside)
    return 0


def lock(uv: Path, source: str, target: str, *extra: str) -> None:
    """Write `target` from `source`, both in requirements/, without a look at what `target` was."""
    output = (ROOT / "requirements" / target).resolve().relative_to(ROOT)
    print(f"- {output}", flush=True)
    command: list[str | Path] = [
        uv,
        "pip",
        "compile",
        "--quiet",
        "--upgrade",
        *OPTIONS.split(),
        f"requirements/{source}",
    ]
    subprocess.run([*command, "--output-file", str(output), *extra], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
