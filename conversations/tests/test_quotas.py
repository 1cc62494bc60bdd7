"""Sends and retries against a token budget, a message window and pools of some plans only."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing import api as billing
from billing.models import Plan
from conversations import acceptance, chats, turns
from conversations.contracts import Begun
from conversations.models import Chat, Message, Turn
from conversations.tests.support import (
    Person,
    pretend_a_worker,
    queued,
    reservations,
    settle_by_hand,
    subscribe,
)
from conversations.tests.threads import at_once
from inference import api as inference
from inference import store
from inference.errors import AdmissionRefused
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db(transaction=True)

# Of "Hello" as the first message of a chat: the tiny tokenizer makes a token of each byte.
PROMPT = 62


@pytest.fixture(autouse=True)
def _a_short_system_prompt(site: None) -> None:
    ModelPool.objects.update(system_prompt="You are a helpful assistant.")


def a_chat(person: Person) -> Chat:
    return chats.create(owner_id=person.user.id, title="", pool=None, now=timezone.now())


def begin(
    chat: Chat, content: str = "Hello", *, turn: str = "t1", output: int | None = None, later: float = 0
) -> Begun:
    """Send; `later` is in hours from now."""
    return turns.begin(
        owner_id=chat.owner_id, chat_id=chat.id, content=content, client_turn_id=turn, pool=None,
        max_output_tokens=output, now=timezone.now() + timedelta(hours=later),
    )  # fmt: skip


def messages_noted(person: Person) -> dict[str, int]:
    cell = store.connector().cell()
    rows: Any = cell.run(lambda client: client.zrange(cell.keys.messages(person.user.id), 0, -1, withscores=True))
    return {name: int(at) for name, at in rows}


def account(person: Person) -> dict[str, str]:
    cell = store.connector().cell()
    row: Any = cell.run(lambda client: client.hgetall(cell.keys.account(person.user.id)))
    return dict(row)


def everything(person: Person) -> tuple[object, ...]:
    counts = [model.objects.count() for model in (Chat, Turn, Message, Run)]
    return counts, reservations(person.user.id), messages_noted(person), account(person), queued()


def notices(begun: Begun) -> Any:
    return begun.run.context["notices"]


def test_the_prompt_of_a_greeting_has_so_many_tokens(ada: Person) -> None:
    assert begin(a_chat(ada)).run.usage.prompt == PROMPT


def test_a_small_budget_shortens_the_answer_and_says_so(ada: Person) -> None:
    subscribe(ada, budget_tokens=PROMPT + 200, refill_per_hour=1)
    begun = begin(a_chat(ada))
    run = Run.objects.get(id=begun.run.id)
    assert (run.max_output_tokens, run.reserved_tokens) == (200, PROMPT + 200)
    assert run.context["max_output_tokens"] == 200
    text = "The answer is limited to 200 tokens: more is not left of your token budget."
    assert notices(begun) == [{"code": "output_capped", "text": text}]
    [hold] = reservations(ada.user.id).values()
    assert hold.split("|")[2] == str(run.reserved_tokens)


def test_an_answer_that_fits_the_budget_is_as_long_as_was_asked_for_without_a_word(ada: Person) -> None:
    subscribe(ada, budget_tokens=PROMPT + 200, refill_per_hour=1)
    begun = begin(a_chat(ada), output=200)
    assert Run.objects.get(id=begun.run.id).max_output_tokens == 200
    assert notices(begun) == []


def test_no_answer_is_shorter_than_the_floor_and_a_refusal_changes_nothing(ada: Person) -> None:
    subscribe(ada, budget_tokens=2 * PROMPT + 100, refill_per_hour=3600, output_floor=50)
    settle_by_hand(begin(a_chat(ada), output=60).run.id, output_tokens=60)
    chat = a_chat(ada)
    before = everything(ada)
    response = ada.send(str(chat.id))
    told = response.json()
    assert (response.status_code, told["code"], told["limit"]) == (429, "limit_reached", "token_budget")
    assert (told["maximum"], told["remaining"] < PROMPT + 50) == (2 * PROMPT + 100, True)
    assert 1 <= told["retry_after"] <= 10
    assert told["resets_at"] > timezone.now().isoformat()[:19]
    assert told["resets_at"].endswith("Z")
    assert response.headers["Retry-After"] == str(told["retry_after"])
    assert response.headers["RateLimit-Policy"] == f'"token_budget";q={told["maximum"]};qu="tokens"'
    assert response.headers["RateLimit"] == f'"token_budget";r={told["remaining"]};t={told["retry_after"]}'
    assert everything(ada) == before


def test_a_message_that_a_full_budget_could_never_take_is_too_long(ada: Person) -> None:
    subscribe(ada, budget_tokens=300, refill_per_hour=1, output_floor=40)
    chat = a_chat(ada)
    before = everything(ada)
    response = ada.send(str(chat.id), "x" * 300)
    told = response.json()
    assert (response.status_code, told["code"], told["max_prompt_tokens"]) == (400, "too_long", 260)
    assert told["prompt_tokens"] > 300
    assert everything(ada) == before


def test_whoever_asks_for_less_than_the_floor_may_say_more(ada: Person) -> None:
    subscribe(ada, budget_tokens=PROMPT + 10, refill_per_hour=1, output_floor=40)
    assert ada.send(str(a_chat(ada).id)).json()["code"] == "too_long"
    assert begin(a_chat(ada), output=10).created


def test_what_does_not_fit_the_budget_is_left_out_of_the_prompt(ada: Person) -> None:
    subscribe(ada, budget_tokens=800, refill_per_hour=800)
    chat = a_chat(ada)
    settle_by_hand(begin(chat, "x" * 400).run.id, text="y" * 400, output_tokens=1)
    begun = begin(chat, "And now?", turn="t2", later=1)
    assert (begun.run.context["first_seq"], begun.run.context["trimmed"]) == (3, True)
    assert [notice["code"] for notice in notices(begun)] == ["context_trimmed", "output_capped"]


def test_too_many_messages_are_told_when_the_oldest_counts_no_more(ada: Person) -> None:
    subscribe(ada, messages_per_hour=2)
    for turn in ("t1", "t2"):
        settle_by_hand(begin(a_chat(ada), turn=turn).run.id)
    chat = a_chat(ada)
    before = everything(ada)
    response = ada.send(str(chat.id))
    told = response.json()
    assert (response.status_code, told["limit"], told["maximum"]) == (429, "messages_per_hour", 2)
    assert (told["remaining"], 3500 <= told["retry_after"] <= 3600) == (0, True)
    assert response.headers["RateLimit-Policy"] == '"messages_per_hour";q=2;w=3600'
    assert everything(ada) == before


def test_a_repeat_of_a_message_counts_once(ada: Person) -> None:
    subscribe(ada, messages_per_hour=1)
    chat = a_chat(ada)
    first = begin(chat)
    assert begin(chat).run.id == first.run.id
    assert len(messages_noted(ada)) == 1


def test_a_message_that_is_refused_after_its_admission_counts_not(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(a_chat(ada))
    noted = messages_noted(ada)
    chat = a_chat(ada)

    def fail(**_: Any) -> None:
        raise ValueError("the database has a riddle")

    monkeypatch.setattr(inference, "accept_run", fail)
    with pytest.raises(ValueError, match="riddle"):
        begin(chat)
    assert messages_noted(ada) == noted


def test_a_retry_is_shortened_to_what_is_left_and_counts_as_a_message(ada: Person) -> None:
    subscribe(ada, budget_tokens=2 * PROMPT + 300, refill_per_hour=1, messages_per_hour=2, queue_wait_s=30)
    run_id = str(begin(a_chat(ada), output=200).run.id)
    settle_by_hand(run_id, status="cancelled", output_tokens=200)
    response = ada.retry(run_id)
    assert response.status_code == 202
    run = Run.objects.get(id=run_id)
    assert (run.max_output_tokens, run.reserved_tokens) == (100, PROMPT + 100)
    text = "The answer is limited to 100 tokens: more is not left of your token budget."
    assert run.context["notices"] == [{"code": "output_capped", "text": text}]
    assert run.retried_at is not None
    assert run.deadline_at == run.retried_at + timedelta(seconds=30)
    settle_by_hand(run_id, status="cancelled", output_tokens=1)
    refused = ada.retry(run_id)
    assert (refused.status_code, refused.json()["limit"]) == (429, "messages_per_hour")


@pytest.mark.parametrize(("wait_s", "waits_s"), [(20, 20), (None, 300), (4000, 300)])
def test_a_message_waits_as_long_as_plan_and_pool_allow(ada: Person, wait_s: int | None, waits_s: int) -> None:
    subscribe(ada, queue_wait_s=wait_s)
    run = Run.objects.get(id=begin(a_chat(ada)).run.id)
    assert run.deadline_at == run.created_at + timedelta(seconds=waits_s)


@pytest.mark.parametrize("known_to_redis", [True, False], ids=["later", "very first"])
def test_five_parallel_sends_never_admit_more_than_the_budget(ada: Person, known_to_redis: bool) -> None:
    spent = PROMPT + 10 if known_to_redis else 0
    subscribe(ada, concurrent_runs=9, budget_tokens=spent + 2 * (PROMPT + 100) + 50, refill_per_hour=1, output_floor=60)
    if known_to_redis:
        settle_by_hand(begin(a_chat(ada), output=10).run.id, output_tokens=10)
    mine = [a_chat(ada) for _ in range(5)]
    outcomes = at_once([lambda chat=chat: begin(chat, output=100) for chat in mine])  # type: ignore[misc]
    admitted = [outcome for outcome in outcomes if isinstance(outcome, Begun)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, AdmissionRefused)]
    assert (len(admitted), len(refused)) == (2, 3), outcomes
    assert {refusal.limit for refusal in refused} == {"token_budget"}
    held = {name: int(value.split("|")[2]) for name, value in reservations(ada.user.id).items()}
    assert held == {str(one.run.admission_id): PROMPT + 100 for one in admitted}
    assert sum(Run.objects.filter(status__in=Run.ACTIVE).values_list("reserved_tokens", flat=True)) == sum(
        held.values()
    )


@pytest.mark.parametrize("known_to_redis", [True, False], ids=["later", "very first"])
def test_five_parallel_sends_never_admit_more_messages_than_an_hour_takes(ada: Person, known_to_redis: bool) -> None:
    subscribe(ada, concurrent_runs=9, messages_per_hour=3)
    if known_to_redis:
        settle_by_hand(begin(a_chat(ada)).run.id)
    mine = [a_chat(ada) for _ in range(5)]
    outcomes = at_once([lambda chat=chat: begin(chat) for chat in mine])  # type: ignore[misc]
    admitted = sum(isinstance(outcome, Begun) for outcome in outcomes)
    assert admitted == (2 if known_to_redis else 3), outcomes
    assert len(messages_noted(ada)) == 3


def test_a_send_that_meets_a_hold_of_the_same_turn_with_a_shorter_prompt_begins_again(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other request's hold leaves this prompt no room; it is given back meanwhile."""
    chat = a_chat(ada)
    real = inference.admit
    tries: list[int] = []

    def admit(**asked: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            other = real(**asked | {"prompt_tokens": 1, "max_output_tokens": 9})
            try:
                return real(**asked)
            finally:
                # Both know of it by now, so that only a rebuild drops it.
                inference.rebuild_quota(user_id=other.user_id, now=asked["now"])
        return real(**asked)

    monkeypatch.setattr(inference, "admit", admit)
    begun = begin(chat)
    assert (begun.created, len(tries)) == (True, 2)
    assert list(reservations(ada.user.id)) == [str(begun.run.admission_id)]


def test_a_hold_that_stays_too_small_refuses_for_now(ada: Person) -> None:
    chat = a_chat(ada)
    limits = billing.limits_for(user_id=ada.user.id, now=timezone.now())
    inference.admit(
        user_id=ada.user.id,
        pool=inference.pool_for(plan="free", slug=None),
        turn=acceptance.turn_name(chat_id=chat.id, client_turn_id="t1"),
        prompt_tokens=1,
        max_output_tokens=9,
        limits=replace(limits, output_floor=1),
        now=timezone.now(),
    )
    response = ada.send(str(chat.id))
    assert (response.status_code, response.json()["code"], response.headers["Retry-After"]) == (503, "unavailable", "1")


@pytest.fixture
def for_team(site: None) -> ModelPool:
    """A pool of two plans' subscribers."""
    pool = ModelPool.objects.create(slug="large", name="Large")
    for slug in ("team", "lab"):
        pool.plans.add(Plan.objects.create(slug=slug, name=slug.title()))
    pretend_a_worker("large")
    return pool


def test_a_pool_of_some_plans_is_offered_to_their_subscribers_alone(
    ada: Person, eve: Person, for_team: ModelPool
) -> None:
    subscribe(ada)
    for_team.plans.add(Plan.objects.get(slug="plan-ada"))
    offered = {
        person: [pool["slug"] for pool in person.get("/api/v1/pools").json()["results"]] for person in (ada, eve)
    }
    assert offered == {ada: ["default", "large"], eve: ["default"]}
    assert ada.new_chat(pool="large")
    assert ada.sent(ada.new_chat(), pool="large")["run"]["pool"] == "large"
    chat = eve.new_chat()
    for refused in (
        eve.post("/api/v1/chats", {"pool": "large"}),
        eve.patch(f"/api/v1/chats/{chat}", {"pool": "large"}),
        eve.send(chat, pool="large"),
    ):
        assert (refused.status_code, refused.json()["code"]) == (400, "unknown_pool")


def test_a_chat_of_a_pool_that_the_plan_no_longer_has_goes_on_in_the_default_one(
    ada: Person, for_team: ModelPool
) -> None:
    subscribe(ada)
    for_team.plans.add(Plan.objects.get(slug="plan-ada"))
    chat = ada.new_chat(pool="large")
    run_id = ada.sent(chat)["run"]["id"]
    settle_by_hand(run_id, status="cancelled")
    for_team.plans.remove(Plan.objects.get(slug="plan-ada"))
    assert ada.retry(run_id).json()["pool"] == "default"
    settle_by_hand(run_id)
    assert ada.sent(chat, turn="t2")["run"]["pool"] == "default"
