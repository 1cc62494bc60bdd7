"""Runs the site's processes as one: starts them in order, restarts what dies, shows all output, stops in order.

It knows processes and their output, not what they are: `manage.py serve` says that. Every process leads a
group of its own and is killed by the kernel when the supervisor dies, so that kill -9 leaves nothing behind
(Linux). One asyncio loop on the main thread does everything: the kernel watches the thread that forks.
"""

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from chatsite import processes
from chatsite.process_output import Console, Log, Output

# Seconds before each restart in a row; the last repeats. A process that lived for STEADY_S starts again at the first.
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S = 60.0
# Ending this often in a row before the site was ever ready is a fault that no restart cures.
HOPELESS = 4
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CannotStart(Exception):
    """A program ended again and again before the site was ready once."""

    def __init__(self, *, name: str, status: int, log: Path) -> None:
        super().__init__(f"{name} ended {HOPELESS} times, last with {_in_words(status)}; see {log}")
        self.name = name
        self.log = log


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One process to keep running.

    `environment` is added to the supervisor's own. The next program starts when `started` returns. Programs
    of one `stop_stage` stop together, before those of a higher one: each gets SIGTERM, and SIGKILL after
    `grace_s` seconds; what is left of its group is always killed. `ended` is called then, on a thread, before the
    program starts again, which takes `pause_s` seconds at least.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    grace_s: float = 10.0
    started: Callable[[], Awaitable[None]] | None = None
    ended: Callable[[], None] | None = None
    pause_s: float = 0.0
    stop_stage: int = 0


class Supervisor:
    """Keeps `programs` running, from `run` until a signal or `request_stop`."""

    def __init__(self, *, programs: Sequence[Program], folder: Path, log_dir: Path, console: Console) -> None:
        self._programs = programs
        self._folder = folder
        self._log_dir = log_dir
        self._console = console
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._child_ended = asyncio.Event()
        self._ready = False
        self._failure: Exception | None = None
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def request_stop(self) -> None:
        """Stop in order; asked a second time, stop at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def mark_ready(self) -> None:
        """From now on a process that ends is restarted, however often."""
        self._ready = True

    async def run(self, *, watch: Callable[[], Awaitable[None]]) -> None:
        """Start everything, with `watch` beside it, and return when all has stopped again.

        Raises CannotStart, or what `watch` raised, after stopping the rest.
        """
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup, to outlive its terminal
            loop.add_signal_handler(number, self.request_stop)
        loop.add_signal_handler(signal.SIGCHLD, self._wake_waiters)
        tasks: list[asyncio.Task[None]] = []
        try:
            for program in self._programs:
                tasks.append(asyncio.create_task(self._or_stop(self._keep(program))))
                if program.started is not None:
                    await self._unless_stopped(program.started())
                if self._stop.is_set():
                    break
            tasks.append(asyncio.create_task(self._or_stop(_call(watch))))
            await self._stop.wait()
        finally:
            self._stop.set()
            await self._stop_in_order()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for number in (*STOP_SIGNALS, signal.SIGCHLD):
                loop.remove_signal_handler(number)
        if self._failure is not None:
            raise self._failure

    async def _or_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`; should it fail, keep the failure for `run` and stop everything."""
        try:
            await work
        except Exception as error:
            self._failure = self._failure or error
            self._stop.set()

    async def _unless_stopped(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._or_stop(_call(lambda: work)))
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        for unfinished in (task, stop):
            unfinished.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)

    async def _keep(self, program: Program) -> None:
        """Start `program` again whenever it ends, with growing pauses, until the stop."""
        log = Log(path=self._log_dir / f"{program.name}.log")
        ends_in_a_row = 0
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                status = await self._run_once(program, log)
                if self._stop.is_set():
                    break
                lived = time.monotonic() - began
                ends_in_a_row = 1 if lived >= STEADY_S else ends_in_a_row + 1
                if ends_in_a_row >= HOPELESS and not self._ready:
                    raise CannotStart(name=program.name, status=status, log=log.path)
                pause = max(program.pause_s, BACKOFF_S[min(ends_in_a_row, len(BACKOFF_S)) - 1])
                ending = f"{_in_words(status)} after {lived:.1f} s"
                self._console.say(f"{program.name} ended with {ending}; again in {pause:g} s")
                await self._see_to(program)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)
        finally:
            log.close()

    async def _see_to(self, program: Program) -> None:
        """Do what is to be done when a program has ended. Its failure must not keep the site from going on."""
        if program.ended is None:
            return
        try:
            await asyncio.to_thread(program.ended)
        except Exception as error:
            self._console.say(f"{program.name}: {type(error).__name__} in what follows its end: {error}")

    async def _run_once(self, program: Program, log: Log) -> int:
        """One life of `program`; returns its exit status."""
        reader, writer = os.pipe()
        output = Output(descriptor=reader, name=program.name, log=log, console=self._console)
        try:
            process = processes.spawn(
                program.command,
                environment={**os.environ, **program.environment},
                folder=self._folder,
                output=writer,
            )
        finally:
            os.close(writer)
        self._running[program.name] = process
        try:
            while (status := process.poll()) is None:
                await self._child_ended.wait()
        finally:
            processes.kill_group(process)
            del self._running[program.name]
            await output.finish()
        return status

    def _wake_waiters(self) -> None:
        """SIGCHLD: some child ended; everyone who waits looks at its own."""
        self._child_ended.set()
        self._child_ended = asyncio.Event()

    async def _stop_in_order(self) -> None:
        for stage in sorted({program.stop_stage for program in self._programs}):
            programs = [program for program in self._programs if program.stop_stage == stage]
            await asyncio.gather(*map(self._stop_one, programs))

    async def _stop_one(self, program: Program) -> None:
        process = self._running.get(program.name)
        if process is None:
            return
        self._console.say(f"stopping {program.name} (within {program.grace_s:g} s; a second Ctrl-C stops at once)")
        process.terminate()
        if not await self._ends(process, within=program.grace_s):
            why = "stopping at once" if self._hurry.is_set() else f"still there after {program.grace_s:g} s"
            self._console.say(f"{program.name}: {why}, killed")
            processes.kill_group(process)
            self._wake_waiters()

    async def _ends(self, process: subprocess.Popen[bytes], *, within: float) -> bool:
        """Whether `process` ended before `within` seconds had passed or somebody was in a hurry."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        end = time.monotonic() + within
        try:
            while process.poll() is None and not hurry.done() and (left := end - time.monotonic()) > 0:
                ended = asyncio.ensure_future(self._child_ended.wait())
                await asyncio.wait({hurry, ended}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
        finally:
            hurry.cancel()
        return process.poll() is not None


async def _call(work: Callable[[], Awaitable[None]]) -> None:
    await work()


def _in_words(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
