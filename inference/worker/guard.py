"""A watchdog process that kills what a dead worker leaves behind.

vLLM's engine core is a process of its own, which a SIGKILL of the worker orphans together with the GPU memory it
holds. The watchdog reads from a pipe whose only writer is the worker. When the worker is gone, however it went,
the kernel closes the pipe, and the watchdog kills the rest of the worker's process group. It runs in a session of
its own, so that whatever kills the group spares it. Standard library only: it is also run as a script.
"""

import contextlib
import os
import signal
import subprocess
import sys

_pipes: list[int] = []


def start() -> None:
    """Start the watchdog of this process, which from now on leads its process group. A second call does nothing."""
    if _pipes:
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # started from a script or a Makefile: its group holds processes that are not ours to kill
    reader, writer = os.pipe()
    _pipes.append(writer)
    # A forked child (multiprocessing) would otherwise keep the pipe open when the worker is dead. What is
    # exec'ed gets no copy: Python's descriptors are not inheritable.
    os.register_at_fork(after_in_child=_let_go)
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid())],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reader)


def _let_go() -> None:
    for writer in _pipes:
        with contextlib.suppress(OSError):
            os.close(writer)
    _pipes.clear()


def watch(*, group: int) -> None:
    """Wait until standard input ends, then SIGKILL the process group `group`."""
    while os.read(0, 1):
        pass
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    watch(group=int(sys.argv[1]))
