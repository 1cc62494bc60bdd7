"""`manage.py serve`: the whole site under one supervising process."""

import asyncio
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import structlog
from celery.utils.nodenames import host_format
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection

from chatsite import env, processes, readiness
from chatsite.embedded_valkey import EmbeddedValkey, ValkeyDoesNotAnswer
from chatsite.process_output import Console
from chatsite.state_folder import AlreadyRunning, StateFolder
from chatsite.supervisor import CannotStart, Program, Supervisor
from inference import api as inference
from inference.errors import PoolNotFound, ServiceUnavailable

log = structlog.get_logger(__name__)

POLL_S = 0.5
PROGRESS_EVERY_S = 5.0
# A worker that starts takes a core for seconds. The others, who go on with what it left, need them more at first.
WORKER_PAUSE_S = 3.0


class Command(BaseCommand):
    help = "Run web, worker, jobs, beat and, unless REDIS_URL is set, an embedded Valkey; stop them on Ctrl-C."
    requires_system_checks = []  # noqa: RUF012 - the processes check for themselves, and starting is waited for

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", help="address to listen on (HOST, else 127.0.0.1)")
        parser.add_argument("--port", type=int, help="port to listen on (PORT, else 8000)")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = env.read()
        host = options["host"] or environment.host
        port = options["port"] or environment.port
        folder = StateFolder(path=environment.state_dir)
        folder.prepare()
        try:
            folder.lock(owner=f"process {os.getpid()}, {url(host=host, port=port)}")
        except AlreadyRunning as running:
            raise CommandError(
                f"Chatsite already runs from this folder ({running.owner}). Stop it first, or start a "
                f"second one with its own STATE_DIR and PORT."
            ) from None
        if (taken := processes.can_bind(host=host, port=port)) is not None:
            raise CommandError(port_refused(host=host, port=port, error=taken))
        valkey = None if os.environ.get("REDIS_URL", "").strip() else EmbeddedValkey(folder=folder)
        workers = {default_pool(): environment.workers}
        if environment.two_pools:
            workers.setdefault(inference.ensure_small_pool(model=environment.small_model), 1)
        # This process outlives every restart of the database's server.
        connection.close()
        os.environ.update(child_environment(folder=folder, valkey=valkey))
        try:
            asyncio.run(
                serve(
                    host=host,
                    port=port,
                    folder=folder,
                    valkey=valkey,
                    workers=workers if environment.worker_slots else {},
                    slots=environment.worker_slots,
                )
            )
        except (CannotStart, ValkeyDoesNotAnswer) as error:
            raise CommandError(f"Chatsite could not start: {error}") from None
        finally:
            if valkey is not None:
                valkey.forget()


def default_pool() -> str:
    """The slug of the pool that this machine's worker serves. Raises CommandError when the database does not tell."""
    try:
        return inference.default_pool_slug()
    except (DatabaseError, PoolNotFound) as error:
        raise CommandError(f"The database names no default pool ({error}). Is it reachable, and migrated?") from None


def child_environment(*, folder: StateFolder, valkey: EmbeddedValkey | None) -> dict[str, str]:
    """What every process of the site gets on top of this one's environment."""
    environment = {"PYTHONUNBUFFERED": "1"}
    if not os.environ.get("SECRET_KEY", "").strip():
        environment["SECRET_KEY"] = folder.secret_key()
    if valkey is not None:
        environment["REDIS_URL"] = valkey.url
    return environment


async def serve(
    *,
    host: str,
    port: int,
    folder: StateFolder,
    valkey: EmbeddedValkey | None,
    workers: Mapping[str, int],
    slots: int,
) -> None:
    """Run everything until a signal, saying once when each pool that is served here can answer."""
    console = Console()
    supervisor = Supervisor(
        programs=programs(host=host, port=port, valkey=valkey, workers=workers, slots=slots),
        folder=env.BASE_DIR,
        log_dir=folder.logs,
        console=console,
    )

    async def announce() -> None:
        await until_ready(host=host, port=port, console=console, pools=workers.keys())
        supervisor.mark_ready()
        console.say(f"ready: {url(host=host, port=port)} (Ctrl-C stops it; logs: {folder.logs})")

    await supervisor.run(watch=announce)
    console.say("stopped")


def programs(
    *, host: str, port: int, valkey: EmbeddedValkey | None, workers: Mapping[str, int], slots: int
) -> list[Program]:
    """The site's processes in starting order; `workers` says how many serve each pool, `slots` answers at a time each.

    Those of the first pool are called worker, worker-2, …, those of another one after it.
    """
    python = [sys.executable, "-m"]
    # As root, Celery warns at length of pickled tasks. Only JSON is accepted here.
    unwarned = ["-W", "ignore:You're running the worker with superuser privileges"]
    celery = [sys.executable, *unwarned, "-m", "celery", "--quiet", "--app", "chatsite"]
    # Workers need not know of each other: no gossip.
    worker = [*celery, "worker", "--pool=threads", "--without-gossip", "--without-mingle"]
    web = [*python, "chatsite.web_server", "--verbosity", "0"]
    listen = ["--bind", host, "--port", str(port)]

    def node(name: str) -> str:
        """No two sites here have a port in common: a worker's tickets find it by its name, even in a shared Redis."""
        return f"{name}.{port}@%h"

    generating = [*worker, "--concurrency", str(slots), "--queues"]
    named = [
        (name if number == 1 else f"{name}-{number}", pool)
        for place, (pool, count) in enumerate(workers.items())
        for name in ["worker" if place == 0 else f"worker-{pool}"]
        for number in range(1, count + 1)
    ]
    found = [
        # Cuts its streams when it stops; browsers reconnect and go on where they were.
        Program(
            name="web", command=[*web, *listen, "chatsite.asgi:application"], environment=processes.web_environment()
        ),
        # Hands unfinished answers over when it is told to stop; it is gone within 5 s by itself.
        *(
            Program(
                name=name,
                command=[*generating, f"pool.{pool}", "--hostname", node(name)],
                ended=partial(tell_gone, pool=pool, node=host_format(node(name))),
                pause_s=WORKER_PAUSE_S if workers[pool] > 1 else 0.0,
                stop_stage=1,
            )
            for name, pool in named
        ),
        Program(
            name="jobs",
            command=[*worker, "--concurrency", "4", "--queues", "jobs", "--hostname", node("jobs")],
            stop_stage=1,
        ),
        Program(name="beat", command=[*celery, "beat", "--pidfile="], stop_stage=1),
    ]
    if valkey is not None:
        server = Program(name="valkey", command=valkey.prepare(), started=valkey.answers, stop_stage=2)
        found.insert(0, server)
    return found


def tell_gone(*, pool: str, node: str) -> None:
    """Have a dead worker's answers go on at once. Without Redis its leases lapse, which takes a little longer."""
    try:
        inference.worker_gone(pool=pool, node=node)
    except ServiceUnavailable as error:
        log.warning("worker_not_told_gone", node=node, error=str(error))


async def until_ready(*, host: str, port: int, console: Console, pools: Collection[str]) -> None:
    """Return when each of the pools that are served here can answer, else any, saying every few seconds what is
    still awaited.
    """
    began = said = time.monotonic()
    while True:
        answer = await readiness.ask(host=loopback(host), port=port, host_header=host_header(host=host))
        if answer is not None and answer.status == 200 and set(pools) <= set(answer.body.get("pools", ())):
            return
        now = time.monotonic()
        if now - said >= PROGRESS_EVERY_S:
            said = now
            if answer is None:
                what = "web is starting"
            elif answer.status in (200, 503):
                what = "the engine is loading the model" if pools else "waiting for a worker elsewhere"
            else:
                what = f"/readyz answers {answer.status}"
            console.say(f"{what} … {now - began:.0f} s")
        await asyncio.sleep(POLL_S)


def loopback(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound


def url(*, host: str, port: int) -> str:
    """What to type into a browser on this machine."""
    address = loopback(host)
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def host_header(*, host: str) -> str:
    """A Host that Django accepts: production need not allow the loopback address."""
    for allowed in settings.ALLOWED_HOSTS:
        if allowed != "*":
            return str(allowed).lstrip(".")
    return loopback(host)


def port_refused(*, host: str, port: int, error: OSError) -> str:
    """Cause and cure when nothing can listen on `host`:`port`."""
    if processes.listening(host=loopback(host), port=port):
        return f"Port {port} is taken by another program. Stop it, or choose another: make run PORT={port + 1}"
    return f"Cannot listen on {host} port {port}: {error.strerror}. Choose others with HOST and PORT."
