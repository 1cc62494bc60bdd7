"""What becomes of a turn that its pool has no place for: a smaller model's answer, said so, or a refusal."""

from collections.abc import Callable
from typing import Any

import pytest

from billing.models import Plan, UsageEntry
from conversations import turns
from conversations.models import Chat, Message, Turn
from conversations.tests.support import Json, Person, queued, reservations, settle_by_hand, subscribe
from conversations.tests.support import pretend_a_worker as with_worker
from inference import admission, counting, policies, store
from inference.contracts import PoolCount
from inference.errors import NoWorkerAlive, PoolFull
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db

Fill = Callable[..., None]


@pytest.fixture
def small(site: None) -> ModelPool:
    """A smaller pool, for nobody by name, which the default one overflows to."""
    pool = ModelPool.objects.create(
        slug="small", name="Small", context_window=600, max_output_tokens=100, output_price=7_000_000
    )
    pool.plans.add(Plan.objects.create(slug="nobody", name="Nobody"))
    ModelPool.objects.filter(slug="default").update(name="Large", overflow_to=pool)
    with_worker("small")
    return pool


@pytest.fixture
def fill(site: None, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Lets pools refuse what asks for a place."""
    refusing: dict[str, Exception] = {}
    admit = admission.admit

    def full(*, pool: ModelPool, **more: Any) -> Any:
        if pool.slug in refusing:
            raise refusing[pool.slug]
        return admit(pool=pool, **more)

    monkeypatch.setattr(admission, "admit", full)

    def fill(pool: str, reason: str = "full") -> None:
        away = reason == "away"
        refusing[pool] = NoWorkerAlive() if away else PoolFull(pool=pool, reason=reason, wait_s=40, retry_after=9)

    return fill


def refused(response: Any, *, pool: str = "default", reason: str = "full") -> None:
    body = response.json()
    assert (response.status_code, body["code"], response.headers["Retry-After"]) == (503, "pool_full", "9")
    assert (body["pool"], body["reason"], body["wait_seconds"], body["retry_after"]) == (pool, reason, 40, 9)


def nothing_is_left_of(person: Person) -> None:
    assert not Run.objects.exists()
    assert not Turn.objects.exists()
    assert not Message.objects.exists()
    assert reservations(person.user.id) == {}
    assert queued() == queued("small") == []


def counted() -> list[PoolCount]:
    return counting.counts(store.connector().cell(), pools=["default", "small"])


def codes(run: Json) -> list[str]:
    return [notice["code"] for notice in run["notices"]]


def test_a_full_pools_turn_is_answered_by_the_smaller_model_and_says_so(
    ada: Person, small: ModelPool, fill: Fill
) -> None:
    fill("default")
    chat = ada.new_chat()
    run = ada.sent(chat)["run"]
    assert (run["pool"], run["degraded"], run["status"]) == ("small", True, "queued")
    assert run["notices"] == [
        {"code": "faster_model", "text": "Large is busy: Small, a smaller and faster model, answers."}
    ]
    assert queued("small") == [f"{run['id']}:1"]
    assert queued() == []
    assert Chat.objects.get(id=chat).pool == "default"
    assert len(reservations(ada.user.id)) == 1


@pytest.mark.parametrize("reason", ["full", "shed_free", "drain", "away"])
def test_whatever_the_reason_the_smaller_model_answers(ada: Person, small: ModelPool, fill: Fill, reason: str) -> None:
    fill("default", reason)
    assert ada.sent(ada.new_chat())["run"]["pool"] == "small"
    overflowed = PoolCount(what="overflowed", pool="default", tier="free", reason=reason, count=1)
    assert overflowed in counted()


def test_the_prompt_is_made_for_the_smaller_models_window_and_output(ada: Person, small: ModelPool, fill: Fill) -> None:
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat, "x" * 300, turn="t1")["run"]["id"], text="y" * 200)
    fill("default")
    run = ada.sent(chat, "And now?", turn="t2", max_output_tokens=800)["run"]
    assert codes(run) == ["faster_model", "context_trimmed", "output_capped"]
    stored = Run.objects.get(id=run["id"])
    assert stored.max_output_tokens == 100
    assert stored.prompt_tokens + stored.max_output_tokens <= 600
    assert "limited to 100 tokens: the model has no room for more" in run["notices"][2]["text"]


def test_an_answer_is_paid_at_the_smaller_pools_prices_and_its_message_is_marked(
    ada: Person, small: ModelPool, fill: Fill
) -> None:
    fill("default")
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat)["run"]["id"], output_tokens=5)
    entry = UsageEntry.objects.get()
    assert (entry.pool, entry.output_price, entry.cost) == ("small", 7_000_000, 35)
    answer, question = ada.messages(chat)
    assert (answer["degraded"], question["degraded"]) == (True, False)


def test_a_repeat_finds_the_run_whatever_is_full_by_then(ada: Person, small: ModelPool, fill: Fill) -> None:
    fill("default")
    chat = ada.new_chat()
    first = ada.sent(chat)
    fill("small")
    again = ada.send(chat)
    assert (again.status_code, again.json()) == (200, first)
    assert ada.send(chat, pool="default").json()["code"] == "turn_conflict"
    assert Run.objects.count() == 1


def test_a_repeat_that_is_refused_looks_again_for_its_turn(
    ada: Person, small: ModelPool, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ada.new_chat()
    first = ada.sent(chat)
    settle_by_hand(first["run"]["id"])
    fill("default")
    fill("small")
    known, looks = turns._known, []

    def not_yet(*args: Any, **more: Any) -> Any:
        """The first look comes before another process has accepted the turn."""
        looks.append(1)
        return None if len(looks) == 1 else known(*args, **more)

    monkeypatch.setattr(turns, "_known", not_yet)
    again = ada.send(chat)
    assert (again.status_code, again.json()["run"]["id"]) == (200, first["run"]["id"])


def test_where_both_are_full_the_pool_asked_for_refuses_and_nothing_is_left(
    ada: Person, small: ModelPool, fill: Fill
) -> None:
    fill("default", "shed_free")
    fill("small")
    refused(ada.send(ada.new_chat()), reason="shed_free")
    nothing_is_left_of(ada)
    assert [(count.what, count.pool, count.reason, count.count) for count in counted()] == [
        ("refused", "default", "shed_free", 1),
        ("refused", "small", "full", 1),
    ]


def test_a_plan_that_wants_no_smaller_model_is_refused(ada: Person, small: ModelPool, fill: Fill) -> None:
    subscribe(ada, overflow="refuse")
    fill("default")
    refused(ada.send(ada.new_chat()))
    nothing_is_left_of(ada)


@pytest.mark.parametrize("change", [{"is_open": False}, {"mode": "drain"}])
def test_a_smaller_pool_that_takes_nothing_new_is_not_asked(
    ada: Person, small: ModelPool, fill: Fill, change: dict[str, Any]
) -> None:
    ModelPool.objects.filter(pk=small.pk).update(**change)
    fill("default")
    refused(ada.send(ada.new_chat()))
    nothing_is_left_of(ada)


def test_what_overflowed_overflows_no_further(ada: Person, small: ModelPool, fill: Fill) -> None:
    ModelPool.objects.filter(pk=small.pk).update(overflow_to=ModelPool.objects.create(slug="tiny", name="Tiny"))
    with_worker("tiny")
    fill("default")
    fill("small")
    refused(ada.send(ada.new_chat()))


def test_a_message_too_long_for_the_smaller_model_is_refused_as_too_many_not_as_too_long(
    ada: Person, small: ModelPool, fill: Fill
) -> None:
    fill("default")
    refused(ada.send(ada.new_chat(), "x" * 700))
    nothing_is_left_of(ada)


def test_a_limit_of_ones_own_is_a_429_in_either_pool(ada: Person, small: ModelPool, fill: Fill) -> None:
    subscribe(ada, concurrent_runs=1)
    fill("default")
    ada.sent(ada.new_chat())
    response = ada.send(ada.new_chat())
    assert (response.status_code, response.json()["limit"]) == (429, "concurrent_runs")


def test_a_pool_named_for_the_message_overflows_too(ada: Person, small: ModelPool, fill: Fill) -> None:
    fill("default")
    run = ada.sent(ada.new_chat(), pool="default")["run"]
    assert (run["pool"], run["degraded"], codes(run)) == ("small", True, ["faster_model"])


def test_a_pool_without_a_worker_and_without_a_smaller_one_is_unavailable_as_before(ada: Person, fill: Fill) -> None:
    fill("default", "away")
    assert ada.send(ada.new_chat()).json()["code"] == "unavailable"


def test_a_queue_at_its_depth_overflows_and_where_that_one_is_at_its_own_the_turn_is_refused(
    ada: Person, eve: Person, small: ModelPool
) -> None:
    ModelPool.objects.update(queue_depth=1)
    policies.forget()
    assert eve.sent(eve.new_chat())["run"]["pool"] == "default"
    run = eve.sent(eve.new_chat())["run"]
    assert (run["pool"], run["degraded"]) == ("small", True)
    response = ada.send(ada.new_chat())
    body = response.json()
    assert (response.status_code, body["code"], body["pool"], body["reason"]) == (503, "pool_full", "default", "full")
    assert int(response.headers["Retry-After"]) == body["retry_after"] >= 1
    assert body["wait_seconds"] >= 1
    assert not Turn.objects.filter(chat__owner=ada.user).exists()
    assert reservations(ada.user.id) == {}


@pytest.mark.parametrize("mode", ["shed_free", "drain"])
def test_a_pool_that_sheds_or_drains_sends_free_turns_elsewhere_or_away(
    ada: Person, small: ModelPool, mode: str
) -> None:
    ModelPool.objects.filter(slug="default").update(mode=mode)
    policies.forget()
    assert ada.sent(ada.new_chat())["run"]["pool"] == "small"
    ModelPool.objects.filter(slug="default").update(overflow_to=None)
    assert ada.send(ada.new_chat()).json()["reason"] == mode


def test_a_pool_that_sheds_free_plans_answers_the_others(ada: Person, small: ModelPool) -> None:
    subscribe(ada)
    ModelPool.objects.filter(slug="default").update(mode="shed_free")
    policies.forget()
    assert ada.sent(ada.new_chat())["run"]["pool"] == "default"


def test_short_prompts_go_to_the_smaller_model_where_the_pool_says_so(ada: Person, small: ModelPool) -> None:
    ModelPool.objects.filter(slug="default").update(short_prompt_tokens=200)
    run = ada.sent(ada.new_chat())["run"]
    assert (run["pool"], run["degraded"]) == ("small", True)
    assert run["notices"] == [
        {"code": "faster_model", "text": "Short messages are answered by Small, a smaller and faster model."}
    ]
    assert [count.reason for count in counted()] == ["short"]
    longer = ada.sent(ada.new_chat(), "x" * 200)["run"]
    assert (longer["pool"], longer["degraded"], longer["notices"]) == ("default", False, [])


def test_whoever_names_a_pool_or_wants_no_smaller_model_gets_it_for_short_prompts_too(
    ada: Person, eve: Person, small: ModelPool
) -> None:
    ModelPool.objects.filter(slug="default").update(short_prompt_tokens=200)
    assert ada.sent(ada.new_chat(), pool="default")["run"]["pool"] == "default"
    subscribe(eve, overflow="refuse")
    assert eve.sent(eve.new_chat())["run"]["pool"] == "default"


def test_a_short_prompt_goes_to_the_large_model_while_the_smaller_one_is_full(
    ada: Person, small: ModelPool, fill: Fill
) -> None:
    ModelPool.objects.filter(slug="default").update(short_prompt_tokens=200)
    fill("small")
    run = ada.sent(ada.new_chat())["run"]
    assert (run["pool"], run["degraded"]) == ("default", False)


def stopped(person: Person, chat: str) -> str:
    """A run of the chat that was stopped, and can be retried."""
    run = str(person.sent(chat)["run"]["id"])
    settle_by_hand(run, status="cancelled", text="Fi")
    return run


def test_a_retry_overflows_as_a_send_does(ada: Person, small: ModelPool, fill: Fill) -> None:
    run = stopped(ada, ada.new_chat())
    fill("default")
    retried = ada.retry(run)
    assert retried.status_code == 202
    body = retried.json()
    assert (body["pool"], body["degraded"], codes(body)) == ("small", True, ["faster_model"])
    assert queued("small") == [f"{run}:2"]


def test_a_retry_asks_for_the_pool_that_was_asked_for_first(ada: Person, small: ModelPool, fill: Fill) -> None:
    ModelPool.objects.filter(slug="default").update(short_prompt_tokens=200)
    chat = ada.new_chat()
    run = stopped(ada, chat)
    assert Run.objects.get(id=run).pool_id == small.pk
    body = ada.retry(run).json()
    assert (body["pool"], body["degraded"], body["notices"]) == ("default", False, [])
    settle_by_hand(run)
    assert not ada.messages(chat)[0]["degraded"]


def test_a_retry_that_finds_no_place_changes_nothing(ada: Person, small: ModelPool, fill: Fill) -> None:
    chat = ada.new_chat()
    run = stopped(ada, chat)
    before = Run.objects.values().get(), ada.messages(chat)
    fill("default")
    fill("small")
    refused(ada.retry(run))
    assert (Run.objects.values().get(), ada.messages(chat)) == before
    assert reservations(ada.user.id) == {}
