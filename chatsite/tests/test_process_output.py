"""Where supervised output goes: named lines on the console, bounded files."""

import asyncio
import io
import os
from pathlib import Path

import pytest

from chatsite import process_output
from chatsite.process_output import Console, Log, Output


class Gone(io.StringIO):
    """A terminal that was closed."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise BrokenPipeError


def test_a_log_that_has_grown_is_moved_aside_and_one_older_copy_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_output, "LOG_BYTES", 20)
    log = Log(path=tmp_path / "web.log")
    for number in range(7):
        log.write(b"line %d...." % number)
    log.close()
    assert (tmp_path / "web.log").read_bytes() == b"line 6....\n"
    assert (tmp_path / "web.log.1").read_bytes() == b"line 4....\nline 5....\n"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_log_is_continued_by_the_next_start(tmp_path: Path) -> None:
    for text in (b"first", b"second"):
        log = Log(path=tmp_path / "web.log")
        log.write(text)
        log.close()
    assert (tmp_path / "web.log").read_bytes() == b"first\nsecond\n"


def test_a_closed_terminal_ends_the_showing_and_nothing_else() -> None:
    gone = Gone()
    console = Console(stream=gone)
    console.say("one")
    console.say("two")
    assert gone.tries == 1


async def show(tmp_path: Path, written: bytes) -> tuple[str, bytes]:
    """What console and log get when a program writes `written` and ends."""
    screen = io.StringIO()
    log = Log(path=tmp_path / "web.log")
    reader, writer = os.pipe()
    output = Output(descriptor=reader, name="web", log=log, console=Console(stream=screen))
    await asyncio.to_thread(os.write, writer, written)
    os.close(writer)
    await output.finish()
    log.close()
    return screen.getvalue(), log.path.read_bytes()


async def test_a_last_line_without_an_end_is_shown_too(tmp_path: Path) -> None:
    screen, log = await show(tmp_path, b"one\r\ntwo")
    assert screen == "web    | one\nweb    | two\n"
    assert log == b"one\ntwo\n"


async def test_what_is_no_text_is_shown_as_well_as_may_be(tmp_path: Path) -> None:
    screen, log = await show(tmp_path, b"\xff\n")
    assert screen == "web    | \N{REPLACEMENT CHARACTER}\n"
    assert log == b"\xff\n"


async def test_an_endless_line_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_output, "LINE_BYTES", 10)
    _, log = await show(tmp_path, b"x" * 60_000)
    assert log.replace(b"\n", b"") == b"x" * 60_000


async def test_a_pipe_that_somebody_else_holds_open_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_output, "DRAIN_S", 0.05)
    screen = io.StringIO()
    log = Log(path=tmp_path / "web.log")
    reader, writer = os.pipe()
    output = Output(descriptor=reader, name="web", log=log, console=Console(stream=screen))
    try:
        await asyncio.wait_for(output.finish(), 5)
    finally:
        os.close(writer)
        log.close()
