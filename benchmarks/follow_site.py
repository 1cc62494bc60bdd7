"""The site of a follow benchmark: a private Valkey, a database with runs in progress, one web process, two ends."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from chatsite import processes
from tests.services import Valkey, valkey
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent
SERVERS = {
    "daphne": ["chatsite.web_server", "--verbosity", "0", "--bind", "127.0.0.1"],
    "uvicorn": ["uvicorn", "--host", "127.0.0.1", "--log-level", "error"],
}


@dataclass(frozen=True, kw_only=True)
class Site:
    """What all web processes of one benchmark share."""

    valkey: Valkey
    environment: dict[str, str]
    runs: Path
    key: str


class End:
    """One end of the load, in a process of its own."""

    def __init__(self, site: Site, *arguments: str) -> None:
        command = [sys.executable, "-m", "benchmarks.follow_load", *arguments, "--runs", str(site.runs)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=site.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def order(self, *words: str) -> Any:
        """What it answers to an order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(words)}: the process ended")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@dataclass(frozen=True, kw_only=True)
class Web:
    """One web process."""

    site: Site
    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def channels(self) -> int:
        """How many channels it is subscribed to."""
        with redis.Redis.from_url(self.site.valkey.url) as client:
            return len(client.pubsub_channels())

    def rss_kb(self) -> float:
        return float(self.process.memory_info().rss) / 1024

    def tasks(self) -> int:
        return int(httpx.get(f"http://127.0.0.1:{self.port}/tasks").text)


@contextlib.contextmanager
def prepared(*, runs: int) -> Iterator[Site]:
    """A database in which `runs` answers of one user are being written."""
    with tempfile.TemporaryDirectory(prefix="chatsite-follow-") as name, valkey() as server:
        folder = Path(name)
        os.environ.update(
            DJANGO_SETTINGS_MODULE="chatsite.settings.local",
            STATE_DIR=name,
            REDIS_URL=server.url,
            SECRET_KEY="benchmark",
            API_REQUESTS_PER_MINUTE="0",
            API_REQUESTS_PER_MINUTE_PER_ADDRESS="0",
        )
        os.environ.pop("DATABASE_URL", None)
        key = fill(folder / "runs", runs=runs)
        yield Site(valkey=server, environment=dict(os.environ), runs=folder / "runs", key=key)


def fill(path: Path, *, runs: int) -> str:
    """Store runs, write their ids to `path`; the owner's API key."""
    import django

    django.setup()

    from django.core.management import call_command
    from django.utils import timezone
    from uuid_utils.compat import uuid7

    from chatsite.accounts.models import User
    from inference.models import ModelPool, Run

    call_command("migrate", verbosity=0)
    owner = User.objects.create_user(email="benchmark@example.com")
    made = Run.objects.bulk_create(
        Run(
            owner_id=owner.pk,
            chat_id=uuid7(),
            turn=str(number),
            pool=ModelPool.objects.get(is_default=True),
            model="none",
            status=Run.Status.STREAMING,
            admission_id=uuid7(),
            reserved_tokens=2,
            prompt_tokens=1,
            max_output_tokens=1,
            created_at=timezone.now(),
            deadline_at=timezone.now() + timedelta(hours=1),
        )
        for number in range(runs)
    )
    path.write_text("\n".join(str(run.id) for run in made))
    command = [sys.executable, "manage.py", "create_api_key", owner.email]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def serving(site: Site, *, server: str, application: str) -> Iterator[Web]:
    """A web process that listens."""
    port = processes.free_port()
    command = [sys.executable, "-m", *SERVERS[server], "--port", str(port), f"benchmarks.follow_server:{application}"]
    with site.runs.with_name(f"{application}-{server}.log").open("wb") as output:
        environment = site.environment | processes.web_environment()
        process = processes.spawn(command, environment=environment, folder=ROOT, output=output)
    try:
        wait_for(lambda: processes.listening(host="127.0.0.1", port=port), what=f"{server} listens", seconds=60)
        yield Web(site=site, port=port, process=psutil.Process(process.pid))
    finally:
        processes.kill_group(process)


@contextlib.contextmanager
def load(web: Web, *, followers: int, rate: float) -> Iterator[tuple[End, End]]:
    """The publisher and the reader of so many runs; nothing is published or followed yet."""
    site = web.site
    with redis.Redis.from_url(site.valkey.url) as client:
        client.flushall()
    count = ["--count", str(followers)]
    publisher = End(site, "publish", "--redis", site.valkey.url, "--rate", str(rate), *count)
    reader = End(site, "read", "--port", str(web.port), "--key", site.key, *count)
    try:
        yield publisher, reader
    finally:
        publisher.close()
        reader.close()
