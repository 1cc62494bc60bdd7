"""What the supervisor keeps in the state folder besides data: a lock, the secret key, addresses."""

import fcntl
import os
import secrets
from pathlib import Path

from chatsite import processes


class AlreadyRunning(Exception):
    """Another supervisor uses the same state folder; `owner` is what it wrote about itself."""

    def __init__(self, *, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class StateFolder:
    """The folder STATE_DIR, with the names that other processes and people rely on."""

    def __init__(self, *, path: Path) -> None:
        self.path = path
        self.logs = path / "log"
        self.valkey = path / "valkey"
        self.redis_url = path / "run" / "redis.url"
        self._lock = path / "run" / "serve.lock"
        self._secret_key = path / "secret_key"

    def prepare(self) -> None:
        """Make the folders, for this user alone: the database holds everybody's chats and sessions."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.logs, self._lock.parent, self.valkey):
            folder.mkdir(mode=0o700, exist_ok=True)

    def lock(self, *, owner: str) -> int:
        """Hold the folder until this process ends; returns the holding descriptor. Raises AlreadyRunning."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            raise AlreadyRunning(owner=text) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{owner}\n".encode())
        return descriptor

    def secret_key(self) -> str:
        """The installation's SECRET_KEY, made at the first call: sessions survive a restart."""
        try:
            key = self._secret_key.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            key = ""
        if not key:
            key = secrets.token_urlsafe(64)
            processes.write_private(self._secret_key, key + "\n")
        return key
