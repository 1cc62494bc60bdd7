"""A whole Celery worker in a process of its own: it ends by itself when it has no engine (any more)."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.services import Valkey, wait_for

ROOT = Path(__file__).resolve().parents[2]
# The engine either does not start, or dies some time later.
WORKER = """
import asyncio, os
import django
django.setup()
from chatsite.celery import app
from inference.testing import tiny_tokenizer
from inference.worker import engine_choice
from inference.worker.scripted_engine import ScriptedEngine

def starter(**_):
    async def start():
        if os.environ["TROUBLE"] == "does not start":
            raise FileNotFoundError("no such model")
        engine = ScriptedEngine(tokenizer=tiny_tokenizer())
        asyncio.get_running_loop().call_later(1, engine.die)
        return engine
    return start

engine_choice.starter = starter
app.worker_main(["worker", "--pool=threads", "--without-gossip", "--without-mingle", "-c", "2", "-Q", "pool.default"])
"""


@pytest.fixture
def start_worker(valkey: Valkey, tmp_path: Path) -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    environment |= {
        "DJANGO_SETTINGS_MODULE": "chatsite.settings.local",
        "REDIS_URL": valkey.url,
        "STATE_DIR": str(tmp_path),
        "ENGINE": "scripted",
    }
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
    started: list[subprocess.Popen[bytes]] = []

    def start(trouble: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER],
            cwd=ROOT,
            env={**environment, "TROUBLE": trouble},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def _workers(valkey: Valkey) -> int:
    """How many workers count as alive in the default pool."""
    with redis.Redis(port=valkey.port) as client:
        found: list[bytes] = list(client.scan_iter("*:workers:default"))
        return sum(int(str(client.zcard(key))) for key in found)


def test_a_worker_whose_engine_died_leaves_and_ends(
    valkey: Valkey, start_worker: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    process = start_worker("dies")
    wait_for(lambda: _workers(valkey) == 1, what="it is alive")
    wait_for(lambda: process.poll() is not None, what="it ended")
    assert _workers(valkey) == 0


def test_a_worker_whose_engine_does_not_start_ends(
    valkey: Valkey, start_worker: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    process = start_worker("does not start")
    wait_for(lambda: process.poll() is not None, what="it ended")
    assert _workers(valkey) == 0
