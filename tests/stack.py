"""The whole site as an operator runs it: `manage.py serve` in a state folder of its own."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from chatsite import processes
from tests.services import wait_for

ROOT = Path(__file__).resolve().parent.parent
START_S = 180.0
STOP_S = 60.0


@dataclass(slots=True, kw_only=True)
class Stack:
    """A running site."""

    url: str
    state_dir: Path
    environment: Mapping[str, str] = field(repr=False)
    process: "subprocess.Popen[bytes]"

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
            **(environment or {}),
        }
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=ROOT, env=variables, check=True
        )
        with (state_dir / "serve.log").open("wb") as output:
            process = processes.spawn(
                [sys.executable, "manage.py", "serve"], environment=variables, folder=ROOT, output=output
            )
        stack = Stack(url=f"http://127.0.0.1:{port}", state_dir=state_dir, environment=variables, process=process)
        try:
            try:
                wait_for(
                    lambda: process.poll() is not None or _ready(stack.url),
                    what="the site is ready",
                    seconds=START_S,
                )
            except AssertionError as error:
                raise AssertionError(f"{error}\n{stack.log()}") from None
            if process.poll() is not None:
                raise AssertionError(f"the site ended:\n{stack.log()}")
            yield stack
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=STOP_S)


def _ready(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    return False
