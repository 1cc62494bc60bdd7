"""A watchdog process that kills what a dead worker leaves behind.

vLLM's engine core is a process of its own, which a SIGKILL of the worker orphans together with the GPU memory
it holds. The watchdog reads from a pipe whose only writer is the worker. When the worker is gone, however it
went, the kernel closes the pipe, and the watchdog kills the rest of the worker's process group. It runs in a
session of its own, so that whatever kills the group spares it. Standard library only: it is a script too.
"""

import contextlib
import os
import signal
import subprocess
import sys

_pipes: list[int] = []
_watchdogs: list["subprocess.Popen[bytes]"] = []


def start() -> None:
    """Start the watchdog of this process, which from now on leads its process group. Once is enough."""
    if _pipes:
        return
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # started from a script or a Makefile, it shares a group that is not its to kill
    reader, writer = os.pipe()
    _pipes.append(writer)
    # A forked child (multiprocessing) would otherwise keep the pipe open after the worker's death. What is
    # exec'ed gets no copy: Python's descriptors are not inheritable.
    os.register_at_fork(after_in_child=_let_go)
    watchdog = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid())],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _watchdogs.append(watchdog)
    os.close(reader)


def end_within(*, seconds: float) -> None:
    """Have the kernel end this process unless it ends by itself, whatever hangs. The first call counts.

    SIGALRM's default action needs no Python to run, no lock and no thread: it may be asked for in a signal handler.
    """
    if not signal.getitimer(signal.ITIMER_REAL)[0]:
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _let_go() -> None:
    for writer in _pipes:
        with contextlib.suppress(OSError):
            os.close(writer)
    _pipes.clear()


def watch(*, group: int) -> None:
    """Wait until standard input ends, then SIGKILL the process group `group`."""
    while os.read(0, 1):
        pass
    if group > 1:  # group 1 would be everything; when a container's first process dies, all die anyway
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    watch(group=int(sys.argv[1]))
