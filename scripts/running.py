"""Runs a tool while a person waits: shows what happens, for how long and how much; keeps its output."""

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from scripts import troubles

SAY_EVERY_S = 10.0  # without a terminal: a line now and then shows that it is alive
REDRAW_EVERY_S = 0.5
_DOWNLOAD = re.compile(r"(?:Downloading|Using cached) (\S+) \(([\d.]+) (kB|MB|GB)\)")
_MEGABYTES = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}


class Progress:
    """One step's line: title, seconds, megabytes, what it is at."""

    def __init__(self, *, title: str) -> None:
        self.title = title
        self._began = self._said = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._megabytes = 0.0
        self._at = ""
        print(f"- {title} …", flush=True)

    def notice(self, line: str) -> None:
        """Learn from a line that the tool printed."""
        if found := _DOWNLOAD.search(line):
            self._megabytes += float(found[2]) * _MEGABYTES[found[3]]
            self._at = found[1].split("/")[-1]
        elif line.startswith("Installing collected packages"):
            self._at = "unpacking"

    def tick(self) -> None:
        """Show where things are, if it is time to."""
        now = time.monotonic()
        if now - self._said < (REDRAW_EVERY_S if self._terminal else SAY_EVERY_S):
            return
        self._said = now
        size = f", {self._megabytes:.0f} MB" if self._megabytes else ""
        text = f"  … {now - self._began:.0f} s{size}{f', {self._at[:40]}' if self._at else ''}"
        print(f"\r{text:<78}" if self._terminal else text, end="" if self._terminal else "\n", flush=True)

    def done(self) -> None:
        size = f", {self._megabytes:.0f} MB" if self._megabytes else ""
        text = f"  done in {time.monotonic() - self._began:.0f} s{size}"
        print(f"\r{text:<78}" if self._terminal else text, flush=True)


def run(
    command: Sequence[str],
    *,
    title: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    known: Sequence[troubles.Trouble] = troubles.TOOLS,
) -> str:
    """Run `command` in `folder` to its end and return its output, which is also appended to `log`.

    Raises SetupFailed, explained by `known` from the output, when it fails.
    """
    progress = Progress(title=title)
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    output: list[str] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        try:
            process = subprocess.Popen(
                list(command),
                env=dict(os.environ if environment is None else environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise troubles.explain(output=str(error), doing=title, log=str(log), known=known) from error
        assert process.stdout is not None
        threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=REDRAW_EVERY_S)
                except queue.Empty:
                    progress.tick()
                    continue
                if line is None:
                    break
                output.append(line)
                file.write(line)
                progress.notice(line)
                progress.tick()
        finally:
            if process.poll() is None and sys.exc_info()[0] is not None:
                process.terminate()
            status = process.wait()
    if status != 0:
        raise troubles.explain(output="".join(output) + _ending(status), doing=title, log=str(log), known=known)
    progress.done()
    return "".join(output)


def _forward(stream: IO[str], lines: "queue.SimpleQueue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _ending(status: int) -> str:
    return "\nKilled\n" if status == -9 else ""
