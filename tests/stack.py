"""The whole site as an operator runs it: `manage.py serve` in a state folder of its own."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from chatsite import processes
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent
# Two layers of random weights: for what needs an engine and no wit.
TINY_MODEL = ROOT / "var" / "models" / "tiny-random-llama"
# Two engines share two cores while they load.
START_S = 300.0
STOP_S = 60.0


@dataclass(slots=True, kw_only=True)
class Stack:
    """A running site."""

    url: str
    state_dir: Path
    environment: Mapping[str, str] = field(repr=False)
    process: "subprocess.Popen[bytes]" = field(init=False)

    def manage(self, *args: str) -> str:
        """What `manage.py ARGS` prints on standard output."""
        done = subprocess.run(
            [sys.executable, "manage.py", *args],
            cwd=ROOT,
            env=dict(self.environment),
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise AssertionError(f"manage.py {' '.join(args)} failed: {done.stderr}")
        return done.stdout.strip()

    def pid_of(self, name: str) -> int | None:
        """The process that the site runs under this host name (worker, worker-2, jobs); None while there is none."""
        port = urlsplit(self.url).port
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_text()  # of which Celery may make a title
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid and re.search(rf"\b{name}\.{port}@", line):
                    return int(folder.name)
        return None

    def stop(self) -> None:
        """As Ctrl-C does; returns when everything has ended."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=STOP_S)

    def start(self) -> None:
        """Return once the site can answer. Raises AssertionError with its output when it does not come up."""
        with (self.state_dir / "serve.log").open("ab") as output:
            self.process = processes.spawn(
                [sys.executable, "manage.py", "serve"], environment=self.environment, folder=ROOT, output=output
            )
        try:
            wait_for(
                lambda: self.process.poll() is not None or _ready(self.url), what="the site is ready", seconds=START_S
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None
        if self.process.poll() is not None:
            raise AssertionError(f"the site ended:\n{self.log()}")

    def log(self) -> str:
        """The end of what the site printed."""
        return (self.state_dir / "serve.log").read_text(errors="replace")[-8000:]


@contextlib.contextmanager
def running(*, engine: str = "vllm", environment: Mapping[str, str] | None = None) -> Iterator[Stack]:
    """Start the site on a free port with an empty database; yield it once it can answer; stop it in order.

    Raises AssertionError with the site's output when it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="chatsite-stack-") as name:
        state_dir = Path(name)
        port = processes.free_port()
        variables = {
            key: value
            for key, value in os.environ.items()
            if key not in ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "REDIS_URL", "SECRET_KEY")
        }
        variables |= {
            "STATE_DIR": str(state_dir),
            "PORT": str(port),
            "ENGINE": engine,
            "MODEL": os.environ.get("MODEL") or str(ROOT / "var" / "models" / "smollm2-135m-instruct"),
            "SMALL_MODEL": str(TINY_MODEL),
            **(environment or {}),
        }
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=ROOT, env=variables, check=True
        )
        stack = Stack(url=f"http://127.0.0.1:{port}", state_dir=state_dir, environment=variables)
        try:
            stack.start()
            yield stack
        finally:
            stack.stop()


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    return False
