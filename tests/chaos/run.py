"""One chaos run: start the site, play all turns while faults happen, wait for rest, stop it, check everything."""

import asyncio
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from inference import tokenization
from tests.chaos import databases, invariants, report, site, truth
from tests.chaos.answers import Expected
from tests.chaos.faults import Injector
from tests.chaos.plan import LANES, LANES_PER_USER, Plan
from tests.chaos.player import Player
from tests.chaos.reader import Webs
from tests.chaos.records import Played, Record, Rest
from tests.chaos.violations import Violation
from tests.chaos.waiting import until_so

# An orphaned hold may be dropped after 30 s; everything else is over sooner.
REST_S = 75.0
PROGRESS_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long things may take (s), by the engine's pace."""

    start: float
    turn: float
    run: float
    whole: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to, and where its figures lie."""

    violations: list[Violation]
    record: Record
    path: Path
    figures: dict[str, object]


def bounds(plan: Plan) -> Bounds:
    if plan.engine == "vllm":
        return Bounds(start=600, turn=420, run=300, whole=1200 + 30 * len(plan.asks))
    return Bounds(start=300, turn=180, run=120, whole=600 + 5 * len(plan.asks))


def perform(plan: Plan, *, say: Callable[[str], None]) -> Result:
    """Run the plan. Everything that was started has ended when this returns or raises."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chatsite-chaos-") as name:
        folder = Path(name)
        with (
            databases.opened(plan.database, state_dir=folder) as database,
            site.prepared(folder=folder, database=database, engine=plan.engine) as prepared,
        ):
            record = asyncio.run(_perform(plan, prepared, say=say))
        found = invariants.violations(record)
        path, figures = report.write(plan=plan, record=record, violations=found, seconds=time.monotonic() - began)
        if found:
            logs = path.with_suffix("")
            shutil.rmtree(logs, ignore_errors=True)
            shutil.copytree(folder / "log", logs)
            (logs / "plan.txt").write_text("\n".join(plan.words()) + "\n", encoding="utf-8")
    return Result(violations=found, record=record, path=path, figures=figures)


async def _perform(plan: Plan, tested: site.Site, *, say: Callable[[str], None]) -> Record:
    limits = bounds(plan)
    async with asyncio.timeout(limits.whole):
        users = await tested.prepare()
        tested.start()
        await until_so(lambda: _ready(tested), what="the site is ready", seconds=limits.start)
        say("the site is ready")
        record = Record(run_deadline_s=limits.run)
        await _play(plan, tested, keys=[key for _, key in users], record=record, limits=limits, say=say)
        say("all turns are played; waiting for rest")
        await _rest(tested, record, say=say)
        await tested.stop()
        record.processes = tested.complaints
    return record


async def _play(
    plan: Plan, tested: site.Site, *, keys: list[str], record: Record, limits: Bounds, say: Callable[[str], None]
) -> None:
    begun = 0

    def began() -> None:
        nonlocal begun
        begun += 1

    expected = Expected(tokenization.load(site.model())) if plan.engine == "scripted" else None
    webs = [Webs(urls=tested.urls(), key=key) for key in keys]
    injector = Injector(site=tested, begun=lambda: begun, say=say)

    async def lane(number: int) -> None:
        user = number // LANES_PER_USER
        player = Player(
            webs=webs[user],
            stranger=webs[(user + 1) % len(webs)],
            patience_s=limits.turn,
            began=began,
        )
        chat = await player.new_chat()
        for ask in plan.asks:
            if ask.lane == number:
                texts = None if expected is None else expected.texts(ask)
                played = Played(ask=ask, chat_id=chat, expected=texts)
                record.played.append(played)
                await player.play(played)

    async def progress() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            done = sum(played.finished for played in record.played)
            wrong = sum(len(played.problems) + len(played.leaks) for played in record.played)
            say(
                f"{done} of {len(plan.asks)} turns, {len(injector.hits)} of {len(plan.faults)} faults, {wrong} problems"
            )

    telling = asyncio.create_task(progress())
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(injector.carry_out(plan.faults))
            for number in range(min(LANES, len(plan.asks))):
                group.create_task(lane(number))
    finally:
        telling.cancel()
        record.hits = injector.hits
        await asyncio.gather(*(web.close() for web in webs), return_exceptions=True)


async def _ready(tested: site.Site) -> bool:
    """Both webs answer, and both workers serve."""
    async with httpx.AsyncClient(timeout=5) as client:
        try:
            answers = [(await client.get(f"{url}/readyz")).status_code for url in tested.urls()]
            text = (await client.get(f"{tested.urls()[0]}/metrics")).text
        except httpx.HTTPError:
            return False
    return answers == [200, 200] and truth.gauge(text, "workers") == 2


_DROP_JOBS = "from conversations.models import Job; Job.objects.filter(run_id__isnull=True).delete()"


async def _rest(tested: site.Site, record: Record, *, say: Callable[[str], None]) -> None:
    """Wait until nothing is under way any more, or has had the time to end; then read everything."""

    def is_at_rest() -> bool:
        rest = _look(tested)
        busy = (rest.reservations, rest.queued, rest.leases, rest.tickets, rest.running, rest.waiting)
        return not any(busy) and rest.workers == 2 and not truth.active_runs(tested.database)

    async def ask() -> bool:
        return await asyncio.to_thread(is_at_rest)

    # Jobs whose turn has not come, or that failed and are tried again in a while: nobody waits for them.
    await tested.manage("shell", "--verbosity", "0", "--command", _DROP_JOBS)
    try:
        await until_so(ask, what="the site is at rest", seconds=REST_S, pause_s=0.5)
    except AssertionError as error:
        say(str(error))
    record.truth = await asyncio.to_thread(truth.rows, tested.database)
    record.truth.rest = await asyncio.to_thread(_look, tested)


def _look(tested: site.Site) -> Rest:
    metrics = truth.metrics(tested.urls()[0])
    return truth.rest(redis_port=tested.valkey.port, metrics=metrics, now_ms=time.time_ns() // 1_000_000)
