"""Sets the project up, each step once: virtual environment, locked packages, engine, small model, database.

A step leaves a stamp that names its inputs; a step whose stamp still fits is passed over. Every step can be
interrupted anywhere and done again. Configured by the same variables as the site (docs/operations.md).
"""

import argparse
import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts import checks, running
from scripts.troubles import SetupFailed

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
MODEL_NAME = "smollm2-135m-instruct"
# Bytes a step needs at its fullest, measured: packages, and the downloads beside them.
NEEDS = {"web": 600_000_000, "engine-cpu": 4_500_000_000, "engine-gpu": 22_000_000_000, "dev": 800_000_000}
MODEL_NEEDS = 700_000_000


def setting(name: str) -> str | None:
    """A variable of the environment; set to nothing counts as unset."""
    return os.environ.get(name, "").strip() or None


class Installation:
    """The steps, for one choice of parts."""

    def __init__(self, *, dev: bool) -> None:
        self.dev = dev
        self.state = Path(setting("STATE_DIR") or ROOT / "var").expanduser().resolve()
        self.log = self.state / "log" / "setup.log"
        self.model = self.state / "models" / MODEL_NAME
        self.engine = self._choose_engine()

    def _choose_engine(self) -> str | None:
        """Which engine file to install; None when no worker with a real engine runs here."""
        hardware = setting("HARDWARE") or "cpu"
        if hardware not in {"cpu", "gpu"}:
            raise SetupFailed(cause=f"HARDWARE is {hardware!r}.", cure="Set it to cpu or gpu.")
        if not self.dev and (setting("ENGINE") == "scripted" or setting("WORKER_SLOTS") == "0"):
            return None
        return f"engine-{hardware}"

    def run(self) -> None:
        """Do what is still to be done."""
        for folder in (self.state, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        lock = (self.state / "setup.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("- Waiting for another set-up of this folder to end …", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        with lock:
            self._check()
            self._make_venv()
            self._install()
            self._prepare_model()

    def _check(self) -> None:
        needed = sum(NEEDS[name] for name, _ in self._packages() if not self._stamped(name))
        if self._model_is_missing():
            needed += MODEL_NEEDS
        if needed:
            checks.disk_has(needed=needed, folder=ROOT)
        if self.engine == "engine-cpu" and not self._stamped("engine-cpu"):
            checks.engine_can_run_here()
        if self.engine == "engine-cpu":
            checks.libnuma(log=self.log)
        if self.dev:
            checks.chromium(log=self.log)

    def _packages(self) -> list[tuple[str, Sequence[Path]]]:
        """Each set of packages with the files that lock it."""
        sets: list[tuple[str, Sequence[Path]]] = [("web", [ROOT / "requirements.txt"])]
        folder = ROOT / "requirements"
        if self.engine == "engine-cpu":
            sets.append(("engine-cpu", [folder / "engine-cpu-torch.txt", folder / "engine-cpu.txt"]))
        elif self.engine is not None:
            sets.append((self.engine, [folder / f"{self.engine}.txt"]))
        if self.dev:
            sets.append(("dev", [folder / "dev.txt"]))
        return sets

    def _make_venv(self) -> None:
        """A new virtual environment, unless the one that is there runs on a Python that is new enough."""
        if PYTHON.exists() and subprocess.run([PYTHON, "-c", _NEW_ENOUGH], capture_output=True).returncode == 0:
            return
        checks.can_make_venv(log=self.log)
        command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        running.run(command, title="Making the virtual environment .venv", log=self.log)

    def _install(self) -> None:
        titles = {
            "web": "Installing the packages of web and jobs",
            "engine-cpu": "Installing vLLM for the CPU (about 2.5 GB)",
            "engine-gpu": "Installing vLLM for GPUs (about 10 GB)",
            "dev": "Installing the tools for tests and checks",
        }
        for name, files in self._packages():
            if self._stamped(name):
                continue
            remove_half_installed(VENV)
            for file in files:
                if file.name == "engine-cpu-torch.txt":
                    self._install_torch(file)
                else:
                    self._pip(["install", "--no-deps", "--require-hashes", "-r", str(file)], title=titles[name])
            if name == "engine-cpu":
                for package in ("vllm", "torchvision", "torchaudio", "torchcodec"):
                    self._refuse(package)
            self._stamp(name)

    def _install_torch(self, file: Path) -> None:
        """From the index that pip is set up for; where that has no CPU build, from PyTorch's own."""
        command = ["install", "--no-deps", "-r", str(file)]
        try:
            self._pip(command, title="Installing torch for the CPU (about 200 MB)")
        except SetupFailed as failure:
            if "No matching distribution" not in failure.cause:
                raise
            title = "Installing torch for the CPU from PyTorch's own index"
            self._pip([*command, "--extra-index-url", TORCH_INDEX], title=title)

    def _pip(self, arguments: Sequence[str], *, title: str) -> None:
        scratch = VENV / "tmp"  # on this disk: /tmp may be small
        scratch.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
        environment = {**kept, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
        command = [str(PYTHON), "-m", "pip", *arguments, "--progress-bar", "off"]
        try:
            running.run(command, title=title, log=self.log, environment=environment)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
