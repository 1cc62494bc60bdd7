"""Long memory: what of a long chat comes back for a message that is about it, and that nothing fails for it."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from uuid_utils.compat import uuid7

from billing.models import Plan
from conversations import chats, embedding, memory, selectors, tasks, vectors
from conversations.context import RECALL_HEADING, SUMMARY_HEADING
from conversations.models import Chat, Job, Message, Summary, TurnVectors
from conversations.tests import encoders
from conversations.tests.support import Person, settle_by_hand, subscribe
from conversations.tests.test_encoder import INSTALLED
from conversations.tests.test_send_cost import tables
from inference import api as inference
from inference.models import ModelPool, Run
from inference.testing import tiny_tokenizer
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

TOKENIZER = tiny_tokenizer()
# About nothing that the encoder knows.
FILLER = "and so on and on " * 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return encoders.of_words(tmp_path / "of-words")


@pytest.fixture
def on(folder: Path, settings: Any) -> Iterator[None]:
    """A site with MEMORY on, whose encoder is open."""
    settings.MEMORY_MODEL = folder
    settings.BACKGROUND_JOBS = {"vectors"}
    assert embedding.wait_for_encoder() is not None
    yield
    embedding._known.clear()


@pytest.fixture
def small(ada: Person) -> None:
    """A window for some five of our turns, a tenth of whose part holds one or two short quotes."""
    ModelPool.objects.update(
        context_window=3000, max_output_tokens=200, reserve_tokens=100, high_water=75, low_water=40
    )


@pytest.fixture
def reminded(ada: Person, on: None, small: None) -> Person:
    """Somebody whose plan gives chats a long memory."""
    subscribe(ada, long_memory=True)
    return ada


def talk(person: Person, chat: str, *questions: str, answer: str = FILLER) -> list[str]:
    """Turns with answers of no meaning; the ids of their runs."""
    runs = []
    for question in questions:
        number = Message.objects.filter(chat_id=chat).count()
        run = person.sent(chat, question, turn=f"turn {number}")["run"]["id"]
        settle_by_hand(run, text=answer)
        runs.append(run)
    return runs


def long_chat(person: Person, *, secret: str = "The dragon sleeps on the mountain.") -> str:
    """A chat that began with the secret and has gone far beyond its window since, whose vectors are made."""
    chat = person.new_chat()
    talk(person, chat, secret, *(f"{number} {FILLER}" for number in range(8)))
    vectors.make(now=timezone.now())
    return chat


def prompt_of(run_id: Any) -> str:
    return TOKENIZER.decode(inference.prompt_ids_of(run_id=UUID(str(run_id))))


def context_of(run_id: Any) -> dict[str, Any]:
    context: dict[str, Any] = Run.objects.get(id=run_id).context
    return context


def test_what_was_left_out_comes_back_where_a_message_is_about_it(reminded: Person) -> None:
    chat = long_chat(reminded, secret="The dragon sleeps on the mountain.")
    run = reminded.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    prompt = prompt_of(run)
    quoted = prompt.index("The dragon sleeps on the mountain.")
    assert prompt.index(RECALL_HEADING) < quoted < prompt.index("Where was the dragon?")
    context = context_of(run)
    assert context["trimmed"]
    assert context["recalled"] == [1, 2]
    assert context["first_seq"] > 2
    assert 0 < context["recalled_tokens"] <= 270, "a tenth of the chat's part"
    assert context["prompt_tokens"] == Run.objects.get(id=run).prompt_tokens <= 2800
    seen = reminded.get(f"/api/v1/runs/{run}").json()["context"]
    assert (seen["recalled"], seen["recalled_tokens"]) == ([1, 2], context["recalled_tokens"])


def test_a_message_that_is_about_nothing_old_brings_nothing_back(reminded: Person) -> None:
    chat = long_chat(reminded)
    run = reminded.sent(chat, "What about the kitchen?", turn="asked")["run"]["id"]
    assert "recalled" not in context_of(run)
    assert RECALL_HEADING not in prompt_of(run)
    seen = reminded.get(f"/api/v1/runs/{run}").json()["context"]
    assert (seen["recalled"], seen["recalled_tokens"]) == ([], 0)


def test_the_quotes_come_after_the_summary(reminded: Person) -> None:
    chat = long_chat(reminded)
    last = Message.objects.filter(chat_id=chat).order_by("-seq")[2].seq
    Summary.objects.create(
        chat_id=chat, version=1, first_seq=1, last_seq=last - last % 2, content="They went on.", model="m",
        run_id=uuid7(), created_at=timezone.now(),
    )  # fmt: skip
    Chat.objects.update(summary_version=1)
    run = reminded.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    context = context_of(run)
    assert (context["summary_version"], context["trimmed"], context["recalled"]) == (1, False, [1, 2])
    prompt = prompt_of(run)
    system = ModelPool.objects.get().system_prompt
    assert f"{system}{SUMMARY_HEADING}They went on.{RECALL_HEADING}User: The dragon" in prompt


def test_a_long_turn_is_quoted_by_its_ends(reminded: Person) -> None:
    chat = long_chat(reminded, secret=f"The dragon begins it. {'x' * 400} It ends.")
    run = reminded.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    assert context_of(run)["recalled"] == [1, 2]
    quoted = prompt_of(run).split(RECALL_HEADING)[1]
    assert "The dragon begins it." in quoted.split("[…]")[0]
    assert "It ends." in quoted.split("[…]")[1]


@pytest.mark.encoder
def test_the_packaged_model_finds_what_is_put_in_other_words(ada: Person, small: None, settings: Any) -> None:
    settings.MEMORY_MODEL = INSTALLED
    settings.BACKGROUND_JOBS = {"vectors"}
    assert embedding.wait_for_encoder() is not None
    subscribe(ada, long_memory=True)
    chat = long_chat(ada, secret="My dog is called Biscuit and she is allergic to chicken.")
    about = ada.sent(chat, "What was the name of my pet?", turn="asked")["run"]["id"]
    assert context_of(about)["recalled"] == [1, 2]
    settle_by_hand(about)
    other = ada.sent(chat, "How do vaccines work?", turn="another")["run"]["id"]
    assert "recalled" not in context_of(other)


def test_no_plan_has_it_unless_somebody_says_so(ada: Person, on: None, small: None) -> None:
    assert not Plan.objects.filter(long_memory=True).exists()
    chat = long_chat(ada)
    assert not Job.objects.exists()
    assert not TurnVectors.objects.exists()
    run = ada.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    assert "recalled" not in context_of(run)


def test_no_site_has_it_unless_memory_is_on(ada: Person, small: None, settings: Any) -> None:
    assert settings.MEMORY_MODEL is None
    assert "vectors" not in settings.BACKGROUND_JOBS
    assert "vectors" not in settings.CELERY_BEAT_SCHEDULE
    subscribe(ada, long_memory=True)
    chat = long_chat(ada)
    assert not Job.objects.filter(kind=Job.Kind.VECTORS).exists()
    run = ada.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    assert "recalled" not in context_of(run)


def test_a_chat_that_fits_has_no_vectors_and_none_are_looked_for(reminded: Person) -> None:
    chat = reminded.new_chat()
    talk(reminded, chat, "The dragon sleeps.", "Good.", answer="Yes.")
    assert not Job.objects.exists()
    with CaptureQueriesContext(connection) as captured:
        reminded.sent(chat, "Where was the dragon?", turn="asked")
    assert not [query for query in captured.captured_queries if "turnvectors" in query["sql"]]


def test_the_next_prompt_quotes_nothing_of_the_last_ones_and_its_turns_begin_where_those_did(reminded: Person) -> None:
    chat = long_chat(reminded)
    [asked] = talk(reminded, chat, "Where was the dragon?", answer="There.")
    assert cache.get(f"context:{chat}") is None, "no prompt goes on from one with quotes"
    [after] = talk(reminded, chat, "Thanks!", answer="Fine.")
    assert "recalled" not in context_of(after)
    assert RECALL_HEADING not in prompt_of(after)
    assert context_of(after)["first_seq"] == context_of(asked)["first_seq"]
    whole = prompt_of(after)
    [later] = talk(reminded, chat, "And now?")
    assert prompt_of(later).startswith(whole), "without quotes a prompt goes on from the last one, as ever"


def test_a_retry_is_reminded_of_the_same(reminded: Person) -> None:
    chat = long_chat(reminded)
    run = reminded.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    first = prompt_of(run)
    settle_by_hand(run, status="failed", text="")
    assert reminded.retry(run).status_code == 202
    assert prompt_of(run) == first
    assert context_of(run)["recalled"] == [1, 2]


def without_memory(person: Person, chat: str) -> None:
    """A turn is accepted as if there were no long memory."""
    sent = person.send(chat, "Where was the dragon?", turn="asked")
    assert sent.status_code == 202, sent.content
    assert "recalled" not in context_of(sent.json()["run"]["id"])


def test_a_turn_goes_on_without_vectors(reminded: Person) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.all().delete()
    without_memory(reminded, chat)


def test_a_turn_goes_on_without_vectors_of_this_model(reminded: Person) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.update(model="another")
    without_memory(reminded, chat)


def test_a_turn_goes_on_while_the_encoder_is_being_opened_and_the_next_one_finds_it_open(reminded: Person) -> None:
    chat = long_chat(reminded)
    embedding._known.clear()
    with embedding._opening:
        without_memory(reminded, chat)
    settle_by_hand(Run.objects.latest("created_at").id)
    wait_for(lambda: embedding.encoder_at_hand() is not None, what="the encoder is open")
    run = reminded.sent(chat, "Where was the dragon?", turn="again")["run"]["id"]
    assert context_of(run)["recalled"] == [1, 2]


def test_a_turn_goes_on_without_a_usable_model_and_so_do_the_jobs(
    reminded: Person, settings: Any, tmp_path: Path
) -> None:
    chat = long_chat(reminded)
    settings.MEMORY_MODEL = tmp_path / "nothing"
    assert embedding.wait_for_encoder() is None
    without_memory(reminded, chat)
    assert vectors.make(now=timezone.now()) == 0


def test_a_turn_goes_on_when_looking_back_fails(reminded: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = long_chat(reminded)

    def fail(**_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(selectors, "turns_at", fail)
    without_memory(reminded, chat)


def test_a_turn_does_not_wait_for_others_vectors(reminded: Person) -> None:
    chat = long_chat(reminded)
    for _ in range(embedding._MOST_AT_ONCE):
        assert embedding._room.acquire(blocking=False)
    try:
        without_memory(reminded, chat)
    finally:
        for _ in range(embedding._MOST_AT_ONCE):
            embedding._room.release()


def test_a_chat_without_vectors_makes_none_of_its_message(reminded: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.all().delete()

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(embedding, "vector_of", fail)
    without_memory(reminded, chat)


def test_the_rows_that_a_message_reads_are_bounded(reminded: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = long_chat(reminded)
    monkeypatch.setattr(memory, "MOST_READ", 2)
    with CaptureQueriesContext(connection) as captured:
        run = reminded.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    [read] = [query["sql"] for query in captured.captured_queries if "turnvectors" in query["sql"]]
    assert read.endswith("LIMIT 2")
    assert "recalled" not in context_of(run), "the newest two are about nothing"


def test_being_reminded_takes_these_reads_and_no_others(reminded: Person) -> None:
    chat = long_chat(reminded)
    with CaptureQueriesContext(connection) as captured:
        run = reminded.sent(chat, "Where was the dragon?", turn="asked")["run"]["id"]
    assert context_of(run)["recalled"] == [1, 2]
    read = Counter(tables([query["sql"] for query in captured.captured_queries], "SELECT"))
    # What came since the last prompt; the vectors; what is near; the turns that the prompt has.
    assert (read["conversations_turnvectors"], read["conversations_message"]) == (1, 3)
    assert read["conversations_summary"] == 0


def test_vectors_are_wanted_before_turns_leave_the_prompt_and_made_of_all_but_the_last(reminded: Person) -> None:
    chat = reminded.new_chat()
    number = 0
    while not Job.objects.filter(kind=Job.Kind.VECTORS).exists():
        [run] = talk(reminded, chat, f"{number} {FILLER}")
        number += 1
    assert not context_of(run)["trimmed"]
    tasks.make_vectors()
    asked = list(Message.objects.filter(chat_id=chat, role="user").order_by("seq").values_list("seq", flat=True))
    assert list(TurnVectors.objects.order_by("seq").values_list("seq", flat=True)) == asked[:-1]
    assert not Job.objects.filter(kind=Job.Kind.VECTORS).exists()
    encoder = embedding.wait_for_encoder()
    assert encoder is not None
    stored = TurnVectors.objects.order_by("seq")[0]
    assert (stored.model, len(stored.vectors)) == (encoder.revision, 2 * 2 * (len(encoders.WORDS) + 2))


def want(chat: str, *, due_in: timedelta = timedelta(0)) -> Job:
    now = timezone.now()
    job, _ = Job.objects.update_or_create(
        chat_id=chat, kind=Job.Kind.VECTORS, defaults={"pool": "default", "due_at": now + due_in, "wanted_at": now}
    )
    return job


def test_a_long_chats_vectors_are_made_a_step_at_a_time_newest_first(
    reminded: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.all().delete()
    want(chat)
    monkeypatch.setattr(vectors, "STEP", 3)
    now = timezone.now()
    made = [vectors.make(now=now) for _ in range(4)]
    assert made == [3, 3, 2, 0]
    assert not Job.objects.filter(kind=Job.Kind.VECTORS).exists()
    seqs = list(TurnVectors.objects.order_by("id").values_list("seq", flat=True))
    assert max(seqs[:3]) == 15
    assert sorted(seqs) == list(range(1, 17, 2))


def test_vectors_of_another_model_are_replaced(reminded: Person) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.update(model="another", vectors=b"\0\0")
    want(chat)
    assert vectors.make(now=timezone.now()) == 8
    assert not TurnVectors.objects.filter(model="another").exists()
    assert TurnVectors.objects.count() == 8


def test_what_another_process_is_at_is_left_to_it_until_its_lease_is_over(reminded: Person) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.all().delete()
    job = want(chat)
    now = timezone.now()
    assert vectors._claim(now=now) == job
    assert vectors.make(now=now) == 0
    assert vectors.make(now=now + vectors.LEASE) == 8


def test_one_pass_at_a_time_is_made_in_a_process(reminded: Person) -> None:
    want(long_chat(reminded))
    with vectors._passing:
        assert vectors.make(now=timezone.now()) == 0


def test_a_chat_whose_vectors_cannot_be_made_keeps_no_other_waiting_and_is_given_up_in_the_end(
    reminded: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = long_chat(reminded), long_chat(reminded)
    TurnVectors.objects.all().delete()
    want(bad)
    want(good)
    real = selectors.turns_without_vectors

    def fail(*, chat_id: UUID, **more: Any) -> Any:
        if str(chat_id) == bad:
            raise RuntimeError("no")
        return real(chat_id=chat_id, **more)

    monkeypatch.setattr(selectors, "turns_without_vectors", fail)
    now = timezone.now()
    assert vectors.make(now=now) == 8
    for _ in range(vectors.MOST_FAILURES - 1):
        assert Job.objects.filter(chat_id=bad, kind=Job.Kind.VECTORS).exists()
        now += timedelta(hours=1)
        vectors.make(now=now)
    assert not Job.objects.filter(kind=Job.Kind.VECTORS).exists()


def test_a_chat_that_is_deleted_while_its_vectors_are_made_gets_none(
    reminded: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = long_chat(reminded)
    TurnVectors.objects.all().delete()
    want(chat)
    real = selectors.turns_at

    def delete_meanwhile(**more: Any) -> Any:
        found = real(**more)
        chats.delete(owner_id=reminded.user.id, chat_id=UUID(chat), now=timezone.now())
        return found

    monkeypatch.setattr(selectors, "turns_at", delete_meanwhile)
    assert vectors.make(now=timezone.now()) == 0
    assert not TurnVectors.objects.exists()
    assert not Job.objects.filter(kind=Job.Kind.VECTORS).exists()


def test_other_jobs_are_begun_without_a_look_at_vectors(reminded: Person) -> None:
    from conversations import background

    chat = long_chat(reminded)
    job = want(chat)
    assert background.dispatch(now=timezone.now()) == 0
    assert Job.objects.get(pk=job.pk).run_id is None


def test_the_encoder_is_opened_once_for_all_threads(
    folder: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MEMORY_MODEL = folder
    opened: list[Path] = []
    real = embedding._open

    def counted(path: Path) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(embedding, "_open", counted)
    threads = [threading.Thread(target=embedding.wait_for_encoder) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert opened == [folder]
    assert embedding.encoder_at_hand() is not None
    embedding._known.clear()
