"""Carrying out the planned faults while the clients play."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from tests.chaos import procfs
from tests.chaos.plan import Fault, Kind
from tests.chaos.records import Hit
from tests.chaos.site import STOP_S, Process, Site
from tests.chaos.waiting import until

# What vLLM calls the process that holds the model.
ENGINE_CORE = "EngineCore"
# The whole run has a bound of its own.
NEVER_S = 86_400.0


class Injector:
    """Hits the site when it is time; `begun` tells how many turns have begun, `say` shows a line of progress."""

    def __init__(self, *, site: Site, begun: Callable[[], int], say: Callable[[str], None]) -> None:
        self.hits: list[Hit] = []
        self._site = site
        self._begun = begun
        self._say = say
        self._stores = {"valkey": asyncio.Lock(), "database": asyncio.Lock()}

    async def carry_out(self, faults: tuple[Fault, ...]) -> None:
        """Return when every fault has been done and undone."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await until(partial(self._is_due, fault), what=f"turn {fault.after_turns} begins", seconds=NEVER_S)
                # Faults overlap: the next is not kept waiting until this one is undone.
                group.create_task(self._hit(fault))

    def _is_due(self, fault: Fault) -> bool:
        return self._begun() >= fault.after_turns

    async def _hit(self, fault: Fault) -> None:
        await asyncio.sleep(fault.delay_s)
        match fault.target:
            case "valkey":
                async with self._stores["valkey"]:
                    await self._hit_valkey(fault)
            case "database":
                async with self._stores["database"]:
                    await self._hit_database(fault)
            case name if name.startswith("engine-"):
                process = self._site.processes[name.replace("engine", "worker")]
                async with process.busy:
                    await self._hit_engine(fault, process)
            case name:
                process = self._site.processes[name]
                async with process.busy:
                    await self._hit_process(fault, process)

    def _note(self, fault: Fault, pid: int | None) -> Hit:
        hit = Hit(fault=fault, at=time.monotonic(), pid=pid)
        self.hits.append(hit)
        self._say(f"fault {fault.number}: {fault.kind} {fault.target}, back in {fault.down_s:.1f} s")
        return hit

    async def _hit_process(self, fault: Fault, process: Process) -> None:
        hit = self._note(fault, process.pid)
        match fault.kind:
            case Kind.KILL:
                left = await process.kill()
                self._site.complaints += [
                    f"{process.name}'s death left process {pid} behind: {procfs.name(pid)[:100]}" for pid in left
                ]
                await asyncio.sleep(fault.down_s)
            case Kind.STOP:
                hit.stop_s = await process.stop()
                if hit.stop_s is None:
                    self._site.complaints.append(f"{process.name} did not stop within {STOP_S:g} s")
                await asyncio.sleep(fault.down_s)
            case Kind.FREEZE:
                process.freeze()
                await asyncio.sleep(fault.down_s)
                process.thaw()
                return
        process.clear()
        process.start()

    async def _hit_engine(self, fault: Fault, process: Process) -> None:
        """Kill the engine's own process: its worker must notice and end, and is then started again as by anybody."""
        cores = procfs.named(procfs.descendants(process.pid), ENGINE_CORE)
        self._note(fault, process.pid)
        if not cores:
            self._say(f"  {process.name} has no engine core at the moment")
            return
        process.may_end = True
        procfs.send(cores, signal.SIGKILL)

    async def _hit_valkey(self, fault: Fault) -> None:
        valkey = self._site.valkey
        assert valkey.process is not None
        self._note(fault, valkey.process.pid)
        if fault.kind is Kind.FREEZE:
            os.kill(valkey.process.pid, signal.SIGSTOP)
            await asyncio.sleep(fault.down_s)
            os.kill(valkey.process.pid, signal.SIGCONT)
            return
        valkey.kill()
        await asyncio.sleep(fault.down_s)
        valkey.start()

    async def _hit_database(self, fault: Fault) -> None:
        database = self._site.database
        self._note(fault, None)
        match fault.kind:
            case Kind.FREEZE:
                await database.freeze()
                await asyncio.sleep(fault.down_s)
                await database.thaw()
                return
            case Kind.KILL:
                await database.kill()
            case Kind.STOP:
                await database.stop()
        await asyncio.sleep(fault.down_s)
        await database.start()
