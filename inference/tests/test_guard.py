"""The watchdog, for real: a worker that dies by SIGKILL takes what it started with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_for

# `{start}` starts a stand-in for the engine core, a process that outlives its parent; its number is printed.
WORKER = """
import os, signal, subprocess, sys
from inference.worker import guard
guard.start()
{start}
print(pid, flush=True)
signal.pause()
"""
BY_EXEC = "pid = subprocess.Popen(['sleep', '600']).pid"
BY_FORK = """
pid = os.fork()
if pid == 0:
    while True:
        signal.pause()
"""


def start(text: str, *, session: bool) -> tuple["subprocess.Popen[str]", int]:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER.format(start=text)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=session,
    )
    assert worker.stdout is not None
    return worker, int(worker.stdout.readline())


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def test_a_killed_worker_leaves_no_engine_process() -> None:
    worker, core = start(BY_EXEC, session=True)
    assert alive(core)
    worker.kill()
    worker.communicate()
    wait_for(lambda: not alive(core), what="the engine process is gone", seconds=5)


def test_a_forked_engine_process_does_not_hold_the_watchdog_back() -> None:
    worker, core = start(BY_FORK, session=True)
    assert alive(core)
    assert worker.stdout is not None
    worker.stdout.close()  # the fork holds the other end
    worker.kill()
    worker.wait()
    wait_for(lambda: not alive(core), what="the forked process is gone", seconds=5)


def test_a_worker_in_somebody_elses_group_leaves_the_others_alone() -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    worker, core = start(BY_EXEC, session=False)
    try:
        assert os.getpgid(worker.pid) == worker.pid
        worker.send_signal(signal.SIGTERM)
        worker.communicate()
        wait_for(lambda: not alive(core), what="the engine process is gone", seconds=5)
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_the_watchdog_goes_when_its_work_is_done() -> None:
    worker, core = start(BY_EXEC, session=True)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    (watchdog,) = {int(pid) for pid in children} - {core}
    worker.kill()
    worker.communicate()
    wait_for(lambda: not alive(watchdog), what="the watchdog is gone", seconds=5)


def test_a_process_that_may_not_stay_is_ended_by_the_kernel_whatever_it_does() -> None:
    hanging = """
from inference.worker import guard
guard.end_within(seconds=0.2)
guard.end_within(seconds=3600)
while True:
    pass
"""
    done = subprocess.run([sys.executable, "-c", hanging], check=False, timeout=20)
    assert done.returncode == -signal.SIGALRM
