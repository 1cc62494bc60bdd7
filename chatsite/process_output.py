"""Where supervised processes' output goes: to the terminal, line by line and named, and to bounded files."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import BinaryIO, TextIO

LOG_BYTES = 10_000_000  # grown to this, a log file is moved aside (one older copy is kept)
LINE_BYTES = 32_768  # longer lines are broken: a child must not make the supervisor hold its output
DRAIN_S = 1.0  # how long an ended child's last output is waited for, should something else hold its pipe


class Log:
    """One program's log file. A full disk loses lines, never the site."""

    def __init__(self, *, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab")

    def write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):
            self._file.write(line + b"\n")
            self._file.flush()
            if self._file.tell() >= LOG_BYTES:
                self._file.close()
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
                self._file = self.path.open("ab")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class Console:
    """What the person at the terminal sees. A reader that went away ends the showing, never the site."""

    def __init__(self, *, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = sys.stdout if stream is None else stream

    def say(self, text: str, *, name: str = "serve") -> None:
        """Print one line that begins with who says it."""
        if self._stream is None:
            return
        try:
            self._stream.write(f"{name:<6} | {text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None


class Output:
    """Reads the pipe `descriptor`, a process's stdout and stderr, until it ends."""

    def __init__(self, *, descriptor: int, name: str, log: Log, console: Console) -> None:
        self._descriptor = descriptor
        self._name = name
        self._log = log
        self._console = console
        self._rest = b""
        self._ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    async def finish(self) -> None:
        """Take what is still in the pipe and close it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), DRAIN_S)
        self._end()

    def _read(self) -> None:
        try:
            chunk = os.read(self._descriptor, 65_536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._end()
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._show(line)

    def _show(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        self._log.write(line)
        self._console.say(line.decode(errors="replace"), name=self._name)

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if self._rest:
            self._show(self._rest)
