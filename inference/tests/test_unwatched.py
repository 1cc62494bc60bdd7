"""Answers that nobody follows: when a worker ends them, what is left of them, and what keeps them going."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from django.db import IntegrityError

from billing import api as billing
from billing.models import Plan
from inference import api, publishing, runs, serving, store
from inference.models import Attempt, Run
from inference.testing import tiny_tokenizer
from inference.tests.support import ask
from inference.tokenization import ChatTurn
from inference.worker import audience
from inference.worker import host as host_module
from inference.worker.audience import Unwatched
from inference.worker.engine import Engine, Sampling
from inference.worker.generation import Assignment, Outcome, Result
from inference.worker.host import Host, Identity, Ports
from inference.worker.scripted_answers import Script
from inference.worker.scripted_engine import ScriptedEngine
from tests.services import Valkey
from tests.waiting import wait_for

TOKENIZER = tiny_tokenizer()
GRACE_S = 0.4
LOOK_S = 0.01
STOP = Unwatched(seconds=0)


class Floor:
    """A worker's engine room that looks for followers 100 times a second and has little patience."""

    def __init__(self, valkey: Valkey) -> None:
        self.valkey = valkey
        self.engine = ScriptedEngine(tokenizer=TOKENIZER, script=Script(tps=200, prefill_ms=0, tokens=900))
        self.threads = ThreadPoolExecutor(max_workers=4)
        self.host = Host(
            identity=Identity(pool="p", boot_id=f"boot-{uuid4()}", engine="scripted", model="m", slots=8),
            start_engine=self._engine,
            redis_url=lambda: valkey.url,
            ports=Ports(verify_owner=lambda *_: True, cancel_requests=lambda _: {}, take_over_lapsed=lambda _: None),
        )
        self.host.start()

    async def _engine(self) -> Engine:
        return self.engine

    def begin(self, unwatched: Unwatched, *, question: str = "Hello") -> "tuple[Assignment, Future[Outcome]]":
        assignment = Assignment(
            run_id=uuid4(),
            epoch=1,
            base_epoch=1,
            incarnation=store.connector().cell().keys.incarnation,
            prompt_ids=TOKENIZER.encode_chat([ChatTurn("user", question)]),
            carry_ids=(),
            carry_text="",
            max_output_tokens=1000,
            sampling=Sampling(),
            cache_salt="ada",
            started={"epoch": 1},
            time_left_s=3600.0,
            unwatched=unwatched,
        )
        future = self.threads.submit(self.host.run, assignment)
        wait_for(lambda: self.engine.stats().running == 1, what="the engine has it")
        return assignment, future

    @property
    def looks(self) -> int:
        """How often Redis was asked who follows."""
        stats = ask(self.valkey, lambda client: client.info("commandstats"))
        return int(stats.get("cmdstat_pubsub|numsub", {}).get("calls", 0))

    def look_for(self, seconds: float) -> None:
        """Wait until the worker has looked for so long."""
        until = self.looks + round(seconds / LOOK_S)
        wait_for(lambda: self.looks >= until, what="it has looked on")

    @contextlib.contextmanager
    def follower(self, assignment: Assignment) -> Iterator[None]:
        """A web process that follows the answer meanwhile."""
        channel = store.connector().cell().keys.events_channel(assignment.run_id)
        with redis.Redis(port=self.valkey.port) as client, client.pubsub() as subscription:
            subscription.subscribe(channel)
            assert subscription.get_message(timeout=5) is not None
            yield

    def close(self) -> None:
        self.host.stop()
        self.threads.shutdown()


@pytest.fixture
def floor(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Floor]:
    monkeypatch.setattr(audience, "GRACE_S", GRACE_S)
    monkeypatch.setattr(host_module, "LOOK_S", LOOK_S)
    ask(valkey, lambda client: client.config_resetstat())
    opened = Floor(valkey)
    yield opened
    opened.close()


def test_an_answer_that_nobody_follows_is_stopped_with_what_was_said(floor: Floor) -> None:
    _, future = floor.begin(STOP)
    outcome = future.result(timeout=20)
    assert (outcome.result, outcome.error_code) == (Result.CANCELLED, "unwatched")
    assert 0 < outcome.own_tokens < 900
    assert outcome.text
    assert floor.engine.stats().running == 0


def test_an_answer_is_stopped_in_the_middle_of_its_prefill_too(floor: Floor) -> None:
    _, future = floor.begin(STOP, question="[[prefill_ms=3600000]]")
    outcome = future.result(timeout=20)
    assert (outcome.result, outcome.error_code, outcome.own_tokens) == (Result.CANCELLED, "unwatched", 0)
    assert floor.engine.stats().running == 0


def test_a_follower_keeps_an_answer_whole_and_one_who_is_back_in_time_does(floor: Floor) -> None:
    assignment, future = floor.begin(STOP)
    for _ in range(3):
        with floor.follower(assignment):
            floor.look_for(GRACE_S / 2)
        floor.look_for(GRACE_S / 4)
    with floor.follower(assignment):
        outcome = future.result(timeout=20)
    assert (outcome.result, outcome.own_tokens) == (Result.DONE, 900)


def test_a_shortened_answer_ends_so_many_tokens_after_its_last_follower(floor: Floor) -> None:
    assignment, future = floor.begin(Unwatched(tokens=150))
    with floor.follower(assignment):
        floor.look_for(GRACE_S)
        seen = floor.engine._running[str(assignment)].position
    outcome = future.result(timeout=20)
    assert (outcome.result, outcome.error_code) == (Result.CANCELLED, "unwatched")
    # The last look that saw the follower may have been some tokens before, and the first that did not some after.
    assert seen + 150 - 10 <= outcome.own_tokens <= seen + 150 + 50


def test_without_redis_nobody_counts_as_gone(floor: Floor) -> None:
    _, future = floor.begin(Unwatched(seconds=0), question="[[tps=20]]")
    floor.look_for(GRACE_S / 4)
    floor.valkey.kill()
    tokens = floor.engine.stats().steps
    wait_for(lambda: floor.engine.stats().steps > tokens + 20 * 3 * GRACE_S, what="it goes on")
    assert not future.done()
    floor.valkey.start()
    assert future.result(timeout=20).error_code == "unwatched"


def test_answers_that_may_finish_are_not_looked_after(floor: Floor) -> None:
    _, future = floor.begin(Unwatched())
    assert future.result(timeout=20).result is Result.DONE
    assert floor.looks == 0


def test_the_bound_is_fixed_at_acceptance_and_kept_by_the_next_epoch(
    valkey: Valkey, accept: Callable[..., Run], now: datetime
) -> None:
    run = accept(unwatched=Unwatched(tokens=50))
    claimed = runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="r", now=now)
    assert claimed is not None
    assert serving.assignment_of(claimed, incarnation="r", now=now).unwatched == Unwatched(tokens=50)
    runs.take_over(run_id=run.id, epoch=1, incarnation="r", published=None, cause=Attempt.Outcome.LOST, now=now)
    again = runs.claim(run_id=run.id, epoch=2, worker="w", incarnation="r", now=now)
    assert again is not None
    assert serving.assignment_of(again, incarnation="r", now=now).unwatched == Unwatched(tokens=50)


def test_a_stopped_answer_ends_like_a_cancelled_one_and_a_retry_takes_the_bound_of_its_day(
    accept: Callable[..., Run], now: datetime
) -> None:
    run = accept(unwatched=Unwatched(seconds=60))
    runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="r", now=now)
    outcome = Outcome(
        result=Result.CANCELLED, text="So far", own_tokens=2, total_tokens=2, error_code="unwatched", released_at=now
    )
    claimed = Run.objects.select_related("pool").get(id=run.id)
    ended = serving._commit(claimed, outcome)
    assert ended is not None
    assert (ended.status, ended.error_code, ended.release_ms) == ("cancelled", "unwatched", None)
    kind, data = publishing.terminal_event(ended)
    assert (kind, data["code"]) == ("cancelled", "unwatched")
    assert "nobody was following" in str(data["text"])
    retried = runs.retry(
        run_id=run.id,
        epoch=1,
        pool=run.pool,
        model="m",
        admission_id=uuid4(),
        prompt_ids=[1],
        max_output_tokens=10,
        context={},
        replaced_text="So far",
        now=now + timedelta(minutes=1),
    )
    assert retried is not None
    assert (retried.unwatched_s, retried.unwatched_tokens) == (None, None)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("finish", Unwatched()), ("shorten", Unwatched(tokens=7)), ("stop", Unwatched(seconds=30))],
)
def test_of_a_plans_numbers_the_one_counts_that_its_choice_names(
    ada: Any, now: datetime, policy: str, expected: Unwatched
) -> None:
    numbers = {"unwatched": policy, "unwatched_tokens": 7, "unwatched_s": 30}
    Plan.objects.filter(is_default=True).update(**numbers)
    limits = billing.limits_for(user_id=ada.pk, now=now)
    assert api._unwatched(limits) == expected


def test_the_database_refuses_two_bounds(accept: Callable[..., Run]) -> None:
    with pytest.raises(IntegrityError):
        accept(unwatched=Unwatched(tokens=1, seconds=1), now=datetime.now(UTC))
