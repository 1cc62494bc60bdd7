"""`manage.py serve`'s parts: what it runs, keeps in the state folder, and refuses."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from celery.utils.nodenames import default_nodename, host_format
from django.apps import apps
from django.core.management import CommandError, call_command

from chatsite import env, processes, readiness
from chatsite.embedded_valkey import EmbeddedValkey
from chatsite.management.commands import serve
from chatsite.state_folder import AlreadyRunning, StateFolder
from chatsite.supervisor import Program
from tests.services import Valkey
from tests.waiting import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    folder = StateFolder(path=tmp_path / "var")
    folder.prepare()
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_secret_key_is_made_once_and_readable_by_its_owner_alone(folder: StateFolder) -> None:
    key = folder.secret_key()
    assert len(key) >= 50
    assert folder.secret_key() == key
    assert mode(folder.path / "secret_key") == 0o600


def test_a_folder_is_held_by_one_and_says_by_whom(folder: StateFolder) -> None:
    held = folder.lock(owner="process 1, http://127.0.0.1:8000")
    with pytest.raises(AlreadyRunning) as refusal:
        folder.lock(owner="process 2")
    assert refusal.value.owner == "process 1, http://127.0.0.1:8000"
    os.close(held)
    os.close(folder.lock(owner="process 2"))


async def test_the_embedded_valkey_serves_only_who_knows_its_password(folder: StateFolder) -> None:
    valkey = EmbeddedValkey(folder=folder)
    process = processes.spawn(valkey.prepare(), output=subprocess.DEVNULL)
    try:
        await valkey.answers()
        assert folder.redis_url.read_text().strip() == valkey.url
        assert mode(folder.redis_url) == mode(folder.valkey / "valkey.conf") == 0o600
        with redis.Redis.from_url(valkey.url) as client:
            assert client.config_get("appendonly") == {"appendonly": "no"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert client.config_get("stream-node-max-bytes") == {"stream-node-max-bytes": "1024"}
            port = client.connection_pool.connection_kwargs["port"]
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        password = valkey.url.split(":")[2].split("@")[0]
        assert password not in Path(f"/proc/{process.pid}/cmdline").read_text()
    finally:
        processes.kill_group(process)
    valkey.forget()
    assert not folder.redis_url.exists()


def test_children_get_a_lasting_secret_key_and_the_embedded_redis(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SECRET_KEY", raising=False)
    valkey = EmbeddedValkey(folder=folder)
    given = serve.child_environment(folder=folder, valkey=valkey)
    assert given["SECRET_KEY"] == folder.secret_key()
    assert given["REDIS_URL"] == valkey.url


def test_a_given_secret_key_is_left_alone(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "given")
    assert "SECRET_KEY" not in serve.child_environment(folder=folder, valkey=None)
    assert not (folder.path / "secret_key").exists()


def programs_of(
    *, valkey: EmbeddedValkey | None = None, slots: int = 64, workers: dict[str, int] | None = None
) -> list[Program]:
    served = {"default": 1} if workers is None else workers
    return serve.programs(host="127.0.0.1", port=8000, valkey=valkey, workers=served, slots=slots)


def test_valkey_starts_first_and_stops_last(folder: StateFolder) -> None:
    programs = programs_of(valkey=EmbeddedValkey(folder=folder))
    assert [program.name for program in programs] == ["valkey", "web", "worker", "jobs", "beat"]
    stages = {program.name: program.stop_stage for program in programs}
    assert stages["web"] < stages["worker"] == stages["jobs"] == stages["beat"] < stages["valkey"]


def test_a_redis_of_ones_own_replaces_valkey() -> None:
    assert "valkey" not in [program.name for program in programs_of()]


def test_the_worker_serves_its_pool_with_its_slots() -> None:
    (worker,) = (program for program in programs_of(slots=7, workers={"large": 1}) if program.name == "worker")
    assert worker.command[worker.command.index("--concurrency") + 1] == "7"
    assert worker.command[worker.command.index("--queues") + 1] == "pool.large"


@pytest.mark.django_db
def test_the_default_pool_is_the_one_that_is_served() -> None:
    assert serve.default_pool() == "default"


@pytest.mark.django_db
def test_a_database_without_a_default_pool_is_said_so() -> None:
    ModelPool = apps.get_model("inference", "ModelPool")
    ModelPool.objects.update(is_default=False)
    with pytest.raises(CommandError, match="no default pool"):
        serve.default_pool()


def test_no_workers_is_no_worker() -> None:
    assert [program.name for program in programs_of(workers={})] == ["web", "jobs", "beat"]


def test_several_workers_are_told_apart_and_given_more_time_than_they_need_to_go() -> None:
    programs = [program for program in programs_of(workers={"default": 3}) if program.name.startswith("worker")]
    assert [program.name for program in programs] == ["worker", "worker-2", "worker-3"]
    assert len({program.command[program.command.index("--hostname") + 1] for program in programs}) == 3
    assert all(program.grace_s > 5 for program in programs)


def test_workers_of_a_second_pool_are_named_after_it() -> None:
    programs = [program for program in programs_of(workers={"default": 2, "small": 2}) if "worker" in program.name]
    queues = {program.name: program.command[program.command.index("--queues") + 1] for program in programs}
    assert queues == {
        "worker": "pool.default",
        "worker-2": "pool.default",
        "worker-small": "pool.small",
        "worker-small-2": "pool.small",
    }


def test_a_taken_port_is_refused_with_another_to_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(CommandError, match=f"Port {port} is taken .* make run PORT={port + 1}"):
            call_command("serve", port=port)


def test_an_address_that_is_not_this_machines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    with pytest.raises(CommandError, match=r"Cannot listen on 192\.0\.2\.1"):
        call_command("serve", host="192.0.2.1", port=8000)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("example.org", "http://example.org:8000"),
    ],
)
def test_the_url_is_one_that_a_browser_here_can_open(host: str, url: str) -> None:
    assert serve.url(host=host, port=8000) == url


async def test_readiness_is_asked_over_http() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("GET /readyz HTTP/1.1\r\nHost: example.org\r\n")
        writer.write(b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"ready": false}')
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await readiness.ask(host="127.0.0.1", port=port, host_header="example.org")
    assert found == readiness.Answer(status=503, body={"ready": False})


async def test_nothing_listening_is_no_answer() -> None:
    assert await readiness.ask(host="127.0.0.1", port=processes.free_port(), host_header="localhost") is None


@pytest.mark.parametrize("raw", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 two\r\n\r\n"])
def test_what_is_no_http_is_no_answer(raw: bytes) -> None:
    assert readiness.parse(raw) is None


def test_manage_py_finds_the_projects_environment_by_itself(tmp_path: Path) -> None:
    """Run by a Python without Django, it becomes the environment's; here a stand-in that says so."""
    (tmp_path / "manage.py").write_text((env.BASE_DIR / "manage.py").read_text())
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text('#!/bin/sh\necho "own: $*"\n')
    own.chmod(0o755)
    bare = [sys.executable, "-I", "-S", str(tmp_path / "manage.py"), "create_api_key", "a@example.org"]
    done = subprocess.run(bare, capture_output=True, text=True, check=True)
    assert done.stdout == f"own: {tmp_path / 'manage.py'} create_api_key a@example.org\n"


def test_a_crashed_valkey_comes_back_on_its_port(tmp_path: Path) -> None:
    server = Valkey(folder=tmp_path)
    server.start()
    try:
        with redis.Redis(port=server.port) as client:
            client.set("key", "value")
        server.kill()
        wait_for(lambda: not processes.listening(host="127.0.0.1", port=server.port), what="it is gone")
        server.start()
        with redis.Redis(port=server.port) as client:
            assert client.get("key") is None
    finally:
        server.kill()


def test_a_worker_that_ended_is_told_of_by_the_name_that_celery_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(serve, "tell_gone", lambda **said: told.append(said))
    programs = serve.programs(host="127.0.0.1", port=8000, valkey=None, workers={"default": 2}, slots=4)
    second = next(program for program in programs if program.name == "worker-2")
    assert second.ended is not None
    second.ended()
    named = second.command[second.command.index("--hostname") + 1]
    assert told == [{"pool": "default", "node": host_format(default_nodename(named))}]
    assert next(program for program in programs if program.name == "web").ended is None
