"""The processes of the site under test: two webs, two workers, jobs, beat, Valkey, with the command lines of `serve`.

Nothing restarts here by itself, except a process that ended on its own account, as under any supervisor.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from chatsite import processes
from chatsite.management.commands import serve
from tests import services
from tests.chaos import procfs
from tests.chaos.databases import Database
from tests.chaos.plan import LANES, LANES_PER_USER, WEBS, WORKERS
from tests.chaos.waiting import until
from tests.services import Valkey
from tests.stack import ROOT

MARK = "CHATSITE_CHAOS"
POOL = "default"
# Two workers have room for all lanes together, one alone has not: then answers wait.
SLOTS = 5
RESTART_S = 0.5
# `serve` kills sooner; what does not end in this time hangs, on however busy a machine.
STOP_S = 60.0
# One interpreter for both: each takes seconds to start.
_PREPARATION = """
import json
from django.core.management import call_command
from django.utils import timezone
from billing.models import Plan
from chatsite.accounts import accounts, keys
call_command("migrate", verbosity=0)
# Out of reach, and counted all the same.
Plan.objects.update(budget_tokens=10**9, refill_per_hour=10**6, messages_per_hour=10**6)
users = [accounts.open_account(email=f"chaos-{number}@example.com", password=None) for number in range(USERS)]
secrets = [keys.create(user=user, name="chaos", now=timezone.now()).secret for user in users]
print(json.dumps([[str(user.pk), secret] for user, secret in zip(users, secrets)]))
"""


class Process:
    """One process of the site. `busy` is held by whoever is doing something to it."""

    def __init__(self, *, name: str, command: list[str], environment: Mapping[str, str], folder: Path):
        self.name = name
        self.log = folder / f"{name}.log"
        self.busy = asyncio.Lock()
        # The engine's core was killed: it ends by itself, rightly.
        self.may_end = False
        # The process group of each life.
        self.groups: list[int] = []
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status of one that ended."""
        assert self._process is not None
        return self._process.poll()

    def start(self) -> None:
        """Call it on the main thread: the process dies with the thread that starts it."""
        self.may_end = False
        with self.log.open("ab") as output:
            self._process = processes.spawn(self._command, environment=self._environment, folder=ROOT, output=output)
        self.groups.append(self.pid)

    async def kill(self) -> list[int]:
        """SIGKILL to the process alone. Returns those of its group that outlive it by seconds."""
        assert self._process is not None
        self._process.kill()
        await until(lambda: self.status is not None, what=f"{self.name} is dead")
        group = self.pid
        with contextlib.suppress(AssertionError):
            await until(lambda: not procfs.members({group}), what="its group is dead", seconds=5)
        return procfs.members({group})

    async def stop(self) -> float | None:
        """SIGTERM; the seconds that it took to end, None when it had to be killed."""
        assert self._process is not None
        began = time.monotonic()
        self._process.terminate()
        try:
            await until(lambda: self.status is not None, what=f"{self.name} stops", seconds=STOP_S)
        except AssertionError:
            self.clear()
            return None
        return time.monotonic() - began

    def freeze(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    def clear(self) -> None:
        """Kill what is left of it and its group, as a supervisor does before a restart."""
        if self._process is not None:
            processes.kill_group(self._process)


class Site:
    """All of them, in `folder`."""

    def __init__(self, *, folder: Path, database: Database, valkey: Valkey, engine: str) -> None:
        self.folder = folder
        self.database = database
        self.valkey = valkey
        self.engine = engine
        self.complaints: list[str] = []
        self._mark = secrets.token_hex(8)
        self.ports = [processes.free_port() for _ in WEBS]
        self.processes: dict[str, Process] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._environment = self._variables()
        for number, name in enumerate(WEBS):
            self._add(name, "web", port=self.ports[number])
        for name in WORKERS:
            self._add(name, "worker", hostname=name)
        self._add("jobs", "jobs")
        self._add("beat", "beat")

    def _variables(self) -> dict[str, str]:
        ours = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PORT", "HOST")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        database = {} if self.database.url is None else {"DATABASE_URL": self.database.url}
        return {
            **inherited,
            **database,
            "DJANGO_SETTINGS_MODULE": "chatsite.settings.local",
            "STATE_DIR": str(self.folder),
            "REDIS_URL": self.valkey.url,
            "SECRET_KEY": secrets.token_hex(32),
            "ENGINE": self.engine,
            "MODEL": model(),
            "PYTHONUNBUFFERED": "1",
            "LOG_FORMAT": "json",
            # What is looked for here are losses, not refusals.
            "API_REQUESTS_PER_MINUTE": "0",
            "API_REQUESTS_PER_MINUTE_PER_ADDRESS": "0",
            MARK: self._mark,
        }

    def _add(self, name: str, program: str, *, port: int = 0, hostname: str = "") -> None:
        found = serve.programs(host="127.0.0.1", port=port, valkey=None, workers={POOL: 1}, slots=SLOTS)
        chosen = next(one for one in found if one.name == program)
        self.processes[name] = Process(
            name=name,
            command=[f"{hostname}@%h" if word == f"worker.{port}@%h" else word for word in chosen.command],
            environment={**self._environment, **chosen.environment},
            folder=self.folder / "log",
        )

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def manage(self, *arguments: str) -> str:
        """What `manage.py ARGUMENTS` prints."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "manage.py",
            *arguments,
            cwd=ROOT,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            raise AssertionError(f"manage.py {' '.join(arguments)} failed: {err.decode(errors='replace')}")
        return out.decode().strip()

    async def prepare(self) -> list[tuple[str, str]]:
        """Migrate, and open an account for every two lanes. Returns their ids and API keys."""
        for name in ("log", "run"):
            (self.folder / name).mkdir(exist_ok=True)
        code = _PREPARATION.replace("USERS", str(LANES // LANES_PER_USER))
        printed = await self.manage("shell", "--verbosity", "0", "--no-imports", "--command", code)
        return [(user, key) for user, key in json.loads(printed.splitlines()[-1])]

    def start(self) -> None:
        for process in self.processes.values():
            process.start()
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Start again what ended by itself, and remember that it did."""
        while True:
            for process in self.processes.values():
                if process.busy.locked() or process.status is None:
                    continue
                if not process.may_end:
                    self.complaints.append(f"{process.name} ended by itself with status {process.status}")
                async with process.busy:
                    process.clear()
                    await asyncio.sleep(RESTART_S)
                    process.start()
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """End everything in serve's order: web, then workers and jobs. Complains of what would not, or stayed."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for stage in (WEBS, (*WORKERS, "jobs", "beat")):
            ended = await asyncio.gather(*(self.processes[name].stop() for name in stage))
            for name, seconds in zip(stage, ended, strict=True):
                if seconds is None:
                    self.complaints.append(f"{name} did not stop within {STOP_S:g} s")
        try:
            await until(lambda: not self._left(), what="all processes are gone", seconds=10)
        except AssertionError:
            self.complaints += [f"process {pid} was left behind: {procfs.name(pid)[:100]}" for pid in self._left()]

    def abandon(self) -> None:
        """Kill everything, whatever state it is in."""
        if self._keeper is not None:
            self._keeper.cancel()
        for process in self.processes.values():
            process.clear()
        procfs.send(self._left(), signal.SIGKILL)

    def _left(self) -> list[int]:
        """What still runs of all that was ever started: by its mark, and by its group where it hid its environment."""
        groups = {group for process in self.processes.values() for group in process.groups}
        return sorted({*procfs.marked(f"{MARK}={self._mark}"), *procfs.members(groups)})


def model() -> str:
    """The folder of the small model."""
    return os.environ.get("MODEL") or str(ROOT / "var" / "models" / "smollm2-135m-instruct")


@contextlib.contextmanager
def prepared(*, folder: Path, database: Database, engine: str) -> Iterator[Site]:
    """A site that is not started yet, with its Valkey running; nothing of it is left afterwards."""
    with services.valkey() as valkey:
        site = Site(folder=folder, database=database, valkey=valkey, engine=engine)
        try:
            yield site
        finally:
            site.abandon()
