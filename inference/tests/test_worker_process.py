"""A whole Celery worker in a process of its own: the tickets it takes, and that it ends without an engine."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from inference import tickets
from tests.services import Valkey
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
NODE = "one@here"
# The engine does not start, or dies some time later, or there is no trouble.
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
        if os.environ["TROUBLE"] == "dies":
            asyncio.get_running_loop().call_later(1, engine.die)
        return engine
    return start

engine_choice.starter = starter
app.worker_main(["worker", "--pool=threads", "--without-gossip", "--without-mingle", "-c", "2", "-Q", "pool.default",
                 "-n", "one@here"])
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


def _tickets(valkey: Valkey, node: str) -> int:
    """How many tickets for this worker alone nobody has taken yet."""
    with redis.Redis(port=valkey.port) as client:
        return int(str(client.llen(f"chatsite:celery:{tickets.queue_of(pool='default', node=node)}")))


def _boot(valkey: Valkey) -> str:
    """The boot id of the one worker of the default pool that was heard of last."""
    with redis.Redis(port=valkey.port, decode_responses=True) as client:
        [key] = client.scan_iter("*:workers:default")
        newest: Any = client.zrange(key, -1, -1)
        return str(newest[0])


def test_a_worker_takes_the_tickets_for_itself_and_so_does_its_successor(
    valkey: Valkey, start_worker: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    first = start_worker("none")
    wait_for(lambda: _workers(valkey) == 1, what="it is alive")
    boot = _boot(valkey)
    assert boot.startswith(f"{NODE}/")
    assert tickets.send(pool="default", boot_id=boot)
    wait_for(lambda: _tickets(valkey, NODE) == 0, what="it is taken")
    assert tickets.send(pool="default", boot_id="another@here/1")
    assert _tickets(valkey, "another@here") == 1, "that is another's"

    first.kill()
    first.wait()
    assert tickets.send(pool="default", boot_id=boot)
    assert _tickets(valkey, NODE) == 1
    start_worker("none")
    wait_for(lambda: _tickets(valkey, NODE) == 0, what="its successor takes it")
    wait_for(lambda: _boot(valkey) != boot, what="and says who it is")


def test_a_worker_takes_tickets_of_its_pool_too(
    valkey: Valkey, start_worker: Callable[[str], "subprocess.Popen[bytes]"]
) -> None:
    assert tickets.send(pool="default")
    start_worker("none")
    with redis.Redis(port=valkey.port) as client:
        wait_for(lambda: client.llen("chatsite:celery:pool.default") == 0, what="it is taken")
