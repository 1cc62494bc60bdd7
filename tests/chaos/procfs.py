"""Reading /proc: who descends from a process, and which processes carry a mark in their environment."""

import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

_PROC = Path("/proc")


def _numbers() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """The fields after the command's name: state, parent, process group, …; empty when there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet waited for does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for number in _numbers():
        fields = _stat(number)
        if fields:
            children.setdefault(int(fields[1]), []).append(number)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def members(groups: Collection[int]) -> list[int]:
    """The running processes of these process groups."""
    found = []
    for pid in _numbers():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX" and int(fields[2]) in groups:
            found.append(pid)
    return found


def named(pids: list[int], part: str) -> list[int]:
    """Those of the processes whose name or command line has `part`."""
    return [pid for pid in pids if part in name(pid)]


def name(pid: int) -> str:
    """The command line, or the name that the process gave itself."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return words or (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def marked(mark: str) -> list[int]:
    """The running processes, this one excepted, with `mark` ('NAME=value') in the environment they began with."""
    found = []
    for pid in _numbers():
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in environment and alive(pid) and pid != os.getpid():
            found.append(pid)
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
