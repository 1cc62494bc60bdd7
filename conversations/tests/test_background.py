"""Jobs for chats: begun where there is room to spare, paid by the system, and never in a turn's way."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone
from pytest_django import Settings

from billing import api as billing
from billing.models import UsageEntry
from conversations import background, jobs, owners, reasoning, selectors, titles
from conversations.models import Chat, Job, Message
from conversations.tests.support import (
    Person,
    Room,
    claim_by_hand,
    lose_redis,
    pretend_a_worker,
    queued,
    reservations,
    settle_by_hand,
    subscribe,
)
from inference import api as inference
from inference import runs
from inference.errors import ServiceUnavailable
from inference.models import Attempt, ModelPool, Run

pytestmark = pytest.mark.django_db(transaction=True)


def answered(person: Person, content: str = "How do ships sail?", *, text: str = "With the wind.", **chat: Any) -> str:
    """A chat with one answered turn."""
    created = person.new_chat(**chat)
    settle_by_hand(person.sent(created, content)["run"]["id"], text=text)
    return created


def dispatch() -> Run | None:
    """Begin what is due; the run that was begun, if any."""
    before = set(Run.objects.values_list("id", flat=True))
    background.dispatch(now=timezone.now())
    return Run.objects.exclude(id__in=before).first()


def begun() -> Run:
    run = dispatch()
    assert run is not None
    return run


def title_of(person: Person, chat: str) -> str:
    return str(person.get(f"/api/v1/chats/{chat}").json()["title"])


def test_a_title_is_made_after_the_first_answer(ada: Person) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat, "How do ships sail?")["run"]["id"]
    assert title_of(ada, chat) == "How do ships sail?"
    assert dispatch() is None, "nothing is answered yet"
    settle_by_hand(run, text="With the wind.")
    job = begun()
    assert (job.kind, job.chat_id, str(job.owner_id)) == ("title", UUID(chat), str(ada.user.pk))
    prompt = inference.tokenizer_for(inference.pool(slug="default")).decode(inference.prompt_ids_of(run_id=job.id))
    assert "Question: How do ships sail?\nAnswer: With the wind.\n" in prompt
    settle_by_hand(job.id, text="**Title:** “How Sailing Works.”")
    assert title_of(ada, chat) == "How Sailing Works"
    assert dispatch() is None
    assert Job.objects.count() == 0


@pytest.mark.parametrize("status", ["cancelled", "failed", "interrupted"])
def test_an_answer_that_is_not_complete_wants_no_title(ada: Person, status: str) -> None:
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat)["run"]["id"], status=status, text="Half")
    assert Job.objects.count() == 0


def test_an_owners_title_wins_whenever_it_comes(ada: Person) -> None:
    given = answered(ada, title="Mine")
    assert Job.objects.count() == 0
    renamed = answered(ada)
    job = begun()
    assert ada.patch(f"/api/v1/chats/{renamed}", {"title": "Mine, too"}).status_code == 200
    settle_by_hand(job.id, text="Another title")
    late = answered(ada)
    settle_by_hand(begun().id, text="A model's title")
    assert ada.patch(f"/api/v1/chats/{late}", {"title": "Mine as well"}).status_code == 200
    settle_by_hand(ada.sent(late, turn="t2")["run"]["id"])
    assert dispatch() is None
    assert [title_of(ada, chat) for chat in (given, renamed, late)] == ["Mine", "Mine, too", "Mine as well"]
    waiting = answered(ada)
    assert ada.patch(f"/api/v1/chats/{waiting}", {"title": "At last"}).status_code == 200
    assert dispatch() is None
    assert Job.objects.count() == 0


def test_a_title_that_fails_for_good_leaves_the_first_words(ada: Person) -> None:
    chat = answered(ada)
    now = timezone.now()
    for _ in range(jobs.MOST_FAILURES):
        pretend_a_worker()
        assert background.dispatch(now=now) == 1
        settle_by_hand(Run.objects.get(status="queued").id, text="<think>What may it be about")
        now += timedelta(hours=1)
    assert Chat.objects.get(id=chat).title_by == Chat.TitleBy.KEPT
    settle_by_hand(ada.sent(chat, turn="t2")["run"]["id"])
    assert Job.objects.count() == 0, "nor is it tried again with each answer"
    assert title_of(ada, chat) == "How do ships sail?"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Sailing ships", "Sailing ships"),
        ('"Sailing ships."', "Sailing ships"),
        ("Title: Sailing ships", "Sailing ships"),
        ("**Conversation title:** *Sailing ships*\n\nIt is about…", "Sailing ships"),
        ("# Sailing\n", "Sailing"),
        ("<think>They ask about ships.</think>\n\nSailing ships", "Sailing ships"),
        ("They ask about ships.</think>Sailing ships", "Sailing ships"),
        ("<think>They ask about ships, and", ""),
        ("<reasoning>\nHm\n</reasoning> « Les voiliers »", "Les voiliers"),
        ("[Sailing](https://example.org) `ships`", "Sailing ships"),
        ("<b>Sailing</b> ships <|im_end|>", "Sailing ships"),
        ("帆船の仕組み", "帆船の仕組み"),
        ("  \n\n", ""),
        ("…", ""),
        ("word " * 40, ""),
        ("A title of more than " + "ten " * 12, "A title of more than ten ten ten ten ten ten ten ten ten…"),
    ],
)  # fmt: skip
def test_a_title_is_one_line_without_reasoning_markup_and_quotes(said: str, title: str) -> None:
    assert titles.clean(reasoning.left_out(said)) == title


def test_the_system_pays_for_jobs_and_nobody_is_reserved_anything(ada: Person) -> None:
    subscribe(ada, budget_tokens=100_000, refill_per_hour=1, concurrent_runs=1, messages_per_hour=2)
    chat = answered(ada)
    before = ada.get("/api/v1/usage").json()
    job = begun()
    assert job.tier == "~system"
    assert reservations(ada.user.pk) == {}
    assert ada.send(chat, turn="t2").status_code == 202, "a job is none of the answers that a plan allows at a time"
    settle_by_hand(Run.objects.get(chat_id=chat, kind="turn", status="queued").id)
    settle_by_hand(job.id, text="Ships", output_tokens=7)
    row = UsageEntry.objects.get(run_id=job.id)
    assert (row.user, row.purpose, row.prompt_tokens, row.output_tokens) == (None, "title", job.prompt_tokens, 7)
    after = ada.get("/api/v1/usage").json()
    turn = UsageEntry.objects.filter(user=ada.user).order_by("-id")[0]
    spent = before["standing"]["token_budget"]["remaining"] - after["standing"]["token_budget"]["remaining"]
    assert spent == turn.prompt_tokens + turn.output_tokens
    assert UsageEntry.objects.filter(user=ada.user).count() == 2
    used = billing.system_usage(since=timezone.now() - timedelta(hours=1))
    assert {purpose: (one.prompt, one.output) for purpose, one in used.items()} == {"title": (job.prompt_tokens, 7)}
    # A rebuild of the account counts as Redis did.
    inference.rebuild_quota(user_id=ada.user.pk, now=timezone.now())
    assert (
        ada.get("/api/v1/usage").json()["standing"]["token_budget"]["remaining"]
        >= after["standing"]["token_budget"]["remaining"]
    )
    assert ada.send(chat, turn="t3").status_code == 429, "two messages an hour, whatever jobs there were"


def test_no_job_begins_while_a_turn_waits_or_the_last_slot_is_free(ada: Person) -> None:
    answered(ada)
    waits = ada.sent(ada.new_chat(title="Other"))["run"]["id"]
    assert queued() == [f"{waits}:1"]
    assert dispatch() is None
    settle_by_hand(waits)
    pretend_a_worker(room=1)
    assert dispatch() is None
    pretend_a_worker(room=0)
    assert dispatch() is None
    pretend_a_worker(room=2)
    assert begun().kind == "title"


def test_jobs_of_a_pool_are_few_at_a_time(ada: Person) -> None:
    chats = [answered(ada) for _ in range(4)]
    pretend_a_worker(room=32)
    assert background.dispatch(now=timezone.now()) == 2, "one for sixteen slots"
    assert background.dispatch(now=timezone.now()) == 0
    first, second = Run.objects.filter(status="queued").order_by("id")
    assert [str(first.chat_id), str(second.chat_id)] == chats[:2], "the oldest first"
    settle_by_hand(first.id, text="Ships")
    assert background.dispatch(now=timezone.now()) == 1


def test_a_job_is_done_by_the_small_pool_where_that_has_room(ada: Person) -> None:
    small = ModelPool.objects.create(slug="small", name="Small")
    ModelPool.objects.filter(slug="default").update(overflow_to=small)
    answered(ada)
    assert begun().pool.slug == "default", "no worker serves the small one"
    answered(ada)
    pretend_a_worker("small")
    assert begun().pool.slug == "small"


@pytest.mark.parametrize("changes", [{"mode": "drain"}, {"mode": "shed_free"}, {"is_open": False}])
def test_a_pool_that_does_not_take_everything_takes_no_jobs(ada: Person, changes: dict[str, Any]) -> None:
    answered(ada)
    ModelPool.objects.update(**changes)
    assert dispatch() is None
    ModelPool.objects.update(mode="normal", is_open=True)
    assert begun().kind == "title"


def test_a_chat_with_a_job_under_way_takes_messages_and_tells_of_no_run(ada: Person, eve: Person) -> None:
    chat = answered(ada)
    job = claim_by_hand(begun().id)
    assert ada.get(f"/api/v1/chats/{chat}").json()["active_run"] is None
    assert ada.send(chat, turn="t2").status_code == 202
    # To the outside there is no such run, for its owner or for anybody.
    for person in (ada, eve):
        assert person.get(f"/api/v1/runs/{job.id}").status_code == 404
        assert person.get(f"/api/v1/runs/{job.id}/events").status_code == 404
        assert person.post(f"/api/v1/runs/{job.id}/cancel").status_code == 404
        assert person.post(f"/api/v1/runs/{job.id}/retry").status_code == 404


def test_a_deleted_chats_jobs_are_stopped_and_leave_nothing(ada: Person) -> None:
    chat = answered(ada)
    job = begun()
    assert ada.delete(f"/api/v1/chats/{chat}").status_code == 204
    assert queued() == []
    assert not Run.objects.filter(id=job.id).exists(), "it waited: gone with its chat"

    chat = answered(ada)
    job = claim_by_hand(begun().id)
    assert ada.delete(f"/api/v1/chats/{chat}").status_code == 204
    assert Run.objects.get(id=job.id).cancel_requested_at is not None
    assert Message.objects.filter(chat_id=chat).exists(), "until it has ended"
    settle_by_hand(job.id, status="cancelled", text="Shi")
    assert not Chat.objects.filter(id=chat).exists()
    assert not Run.objects.filter(chat_id=chat).exists()


def test_whoever_leaves_takes_their_jobs_along(ada: Person) -> None:
    answered(ada)
    job = claim_by_hand(begun().id)
    assert owners.awaits_answers(owner_id=ada.user.pk)
    assert owners.stop_answers(owner_id=ada.user.pk, now=timezone.now()) == 0
    assert Run.objects.get(id=job.id).cancel_requested_at is not None
    settle_by_hand(job.id, status="cancelled", text="")
    assert not owners.awaits_answers(owner_id=ada.user.pk)


def test_a_job_whose_worker_dies_goes_on_with_the_next(ada: Person) -> None:
    chat = answered(ada)
    job = claim_by_hand(begun().id)
    taken = runs.take_over(
        run_id=job.id,
        epoch=1,
        incarnation=job.stream_incarnation,
        published=None,
        cause=Attempt.Outcome.LOST,
        now=timezone.now(),
    )
    assert isinstance(taken, Run)
    settle_by_hand(job.id, text="Ships and winds")
    assert title_of(ada, chat) == "Ships and winds"
    assert {row.user_id for row in UsageEntry.objects.filter(run_id=job.id)} == {None}


def test_two_processes_that_dispatch_at_once_begin_a_job_once(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(ada)
    real = inference.tokenizer_for

    def meanwhile(pool: Any) -> Any:
        monkeypatch.setattr(inference, "tokenizer_for", real)
        assert background.dispatch(now=timezone.now()) == 1
        return real(pool)

    monkeypatch.setattr(inference, "tokenizer_for", meanwhile)
    assert background.dispatch(now=timezone.now()) == 0
    assert Run.objects.filter(kind="title").count() == 1


def test_a_job_that_cannot_be_begun_keeps_no_other_waiting(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, fine = answered(ada), answered(ada)
    real = selectors.first_answered

    def first_answered(*, chat: Chat) -> Any:
        if str(chat.id) == broken:
            raise RuntimeError("this one")
        return real(chat=chat)

    monkeypatch.setattr(selectors, "first_answered", first_answered)
    assert str(begun().chat_id) == fine
    assert Job.objects.get(chat_id=broken).failures == 1


def test_without_redis_no_job_begins_and_none_is_lost(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(ada)
    lose_redis(monkeypatch)
    with pytest.raises(ServiceUnavailable):
        background.dispatch(now=timezone.now())
    assert Job.objects.get().failures == 0


def test_what_is_turned_off_is_not_wanted(ada: Person, settings: Settings) -> None:
    settings.BACKGROUND_JOBS = {"summary"}
    answered(ada)
    assert Job.objects.count() == 0


def test_what_is_wanted_twice_is_done_once(ada: Person) -> None:
    chat = answered(ada)
    jobs.want(chat_id=UUID(chat), kind=Job.Kind.TITLE, pool="default", now=timezone.now())
    assert Job.objects.count() == 1


def test_a_job_is_served_like_any_run_and_after_turns(ada: Person, room: Room) -> None:
    chat = answered(ada)
    job = begun()
    other = ada.sent(ada.new_chat(title="Other"), "Hi [[tokens=3 tps=20000 prefill_ms=0]]")["run"]["id"]
    room.serve()
    assert ada.get(f"/api/v1/runs/{other}").json()["status"] == "done"
    job.refresh_from_db()
    assert job.status == "done"
    assert title_of(ada, chat).startswith("Scripted answer")
    assert Chat.objects.get(id=chat).title_by == Chat.TitleBy.MODEL
