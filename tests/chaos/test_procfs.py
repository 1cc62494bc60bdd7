"""Processes are found by what they descend from, by their group and by their mark, dead ones not."""

import os
import sys
from collections.abc import Iterator

import pytest

from chatsite import processes
from tests.chaos import procfs
from tests.waiting import wait_for

MARK = "CHATSITE_TEST_MARK=here"


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that has a child, both waiting for ever."""
    wait = "import signal; signal.pause()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}]); {wait}"
    name, _, value = MARK.partition("=")
    process = processes.spawn([sys.executable, "-c", code], environment={**os.environ, name: value})
    try:
        wait_for(lambda: len(procfs.descendants(process.pid)) == 1, what="it has a child")
        yield process.pid
    finally:
        processes.kill_group(process)


def test_a_child_is_a_descendant_of_its_parent_and_of_ours(parent: int) -> None:
    [child] = procfs.descendants(parent)
    assert {parent, child} <= set(procfs.descendants(os.getpid()))


def test_an_orphan_is_found_by_group_and_mark(parent: int) -> None:
    [child] = procfs.descendants(parent)
    wait_for(lambda: set(procfs.marked(MARK)) == {parent, child}, what="both began")
    os.kill(parent, 9)
    wait_for(lambda: not procfs.alive(parent), what="the parent is dead")
    assert procfs.alive(child)
    assert procfs.members({parent}) == [child]
    assert procfs.marked(MARK) == [child]
