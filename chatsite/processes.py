"""Child processes that cannot outlive their parent, and the loopback ports they listen on. No Django."""

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec nothing may be imported.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with(*, parent: int) -> Callable[[], None]:
    """What a child of `parent` runs before exec so that the kernel kills it when `parent` dies (Linux).

    The kernel watches the *thread* that forked: spawn from one that lives as long as the process.
    """

    def before_exec() -> None:
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the request was made
                os._exit(1)

    return before_exec


def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    output: int | IO[Any] | None = None,
    user: int | None = None,
    group: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a process group of its own, to be killed when this process dies.

    `output` takes stdout and stderr together. With `user` and `group` (numbers) it runs as somebody else.
    """
    as_user: dict[str, Any] = {} if user is None else {"user": user, "group": group, "extra_groups": []}
    return subprocess.Popen(
        list(command),
        env=None if environment is None else dict(environment),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        process_group=0,
        preexec_fn=die_with(parent=os.getpid()),  # noqa: PLW1509 - one call, prepared before the fork
        **as_user,
    )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL everything left in the process group of `process`, and reap it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    """A loopback port that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(*, host: str, port: int) -> bool:
    """Whether a connection to `host`:`port` is accepted."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def can_bind(*, host: str, port: int) -> OSError | None:
    """Why a server could not listen on `host`:`port`, or None when it could."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return error
    return None


def write_private(path: Path, text: str) -> None:
    """Write `path` whole or not at all, readable by this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def web_environment() -> dict[str, str]:
    """What a web process gets besides.

    Python's own allocator gives back whole megabytes only, and a thousand followers that have left keep nearly all of
    theirs: memory stayed at 1.17 times what it was. With the C library's it is 1.08 times (docs/benchmarks.md).
    """
    return {"PYTHONMALLOC": os.environ.get("PYTHONMALLOC", "malloc")}
