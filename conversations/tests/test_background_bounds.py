"""Jobs at their bounds: other pools, large and small windows, plans' limits, deletions and stops in between."""

import threading
from copy import copy
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.cache import cache
from django.utils import timezone
from uuid_utils.compat import uuid7

from chatsite.accounts import suspension
from conversations import (
    background,
    chats,
    context,
    context_cache,
    jobs,
    memory,
    reasoning,
    selectors,
    summaries,
    titles,
)
from conversations.context import Budget, Recalled
from conversations.models import Chat, Job, Message, Summary, Turn
from conversations.preparation import Ready
from conversations.tests.support import (
    BOOT_ID,
    Person,
    claim_by_hand,
    closing_connections,
    pretend_a_worker,
    settle_by_hand,
    subscribe,
)
from inference import api as inference
from inference import policies, store, tokenization
from inference.cell import workers
from inference.models import ModelPool, Prompt, Run
from inference.testing import CHATML, tiny_tokenizer

pytestmark = pytest.mark.django_db(transaction=True)


def answered(person: Person, **chat: Any) -> str:
    """A chat with one answered turn, which wants a title."""
    created = person.new_chat(**chat)
    settle_by_hand(person.sent(created, "How do ships sail?")["run"]["id"], text="With the wind.")
    return created


def window(slug: str = "default", **values: Any) -> None:
    """Give a pool a window of which 100 tokens are a reserve; answers have 200."""
    ModelPool.objects.filter(slug=slug).update(
        max_output_tokens=200, reserve_tokens=100, system_prompt="Be kind.", **values
    )


def fill(chat_id: str, *, turns: int, text: str, token_count: int | None = None) -> None:
    """Let a chat have so many turns already."""
    now = timezone.now()
    chat = Chat.objects.get(id=chat_id)
    for number in range(turns):
        turn = Turn.objects.create(
            chat=chat, client_turn_id=f"old {number}", fingerprint="", run_id=uuid7(), created_at=now
        )
        for role in ("user", "assistant"):
            chat.last_seq += 1
            Message.objects.create(
                chat=chat, turn=turn, seq=chat.last_seq, role=role, content=text, run_id=turn.run_id, created_at=now,
                token_count=len(text) if token_count is None else token_count,
            )  # fmt: skip
    chat.save()


# As templates of reasoning models do.
END = "assistant\n' }}{% endif"
OPENS = CHATML.replace(END, "assistant\n<think>\n' }}{% endif")
DROPS = CHATML.replace("message['content'] +", "message['content'].split('</think>')[-1].lstrip('\\n') +")
UNLESS_TOLD = "assistant\n' }}{% if enable_thinking is not false %}{{ '<think>\n' }}{% endif %}{% endif"
OPENS_UNLESS_TOLD = CHATML.replace(END, UNLESS_TOLD)


def use_template(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    """Let the default pool's model have another chat template."""
    tokenizer = inference.tokenizer_for(inference.pool(slug="default"))
    fresh = copy(tokenizer)
    for found in ("_without_thinking", "has_thinking_switch", "drops_reasoning"):
        vars(fresh).pop(found, None)
    fresh._template = tokenization._compile(template)
    monkeypatch.setattr(tokenizer, "_template", fresh._template)
    monkeypatch.setattr(tokenizer, "_head", None)
    for found in ("_without_thinking", "has_thinking_switch", "drops_reasoning"):
        monkeypatch.setitem(vars(tokenizer), found, getattr(fresh, found))


def prompt_of(run: Run) -> str:
    tokenizer = inference.tokenizer_for(inference.pool(slug=run.pool.slug))
    return tokenizer.spell(inference.prompt_ids_of(run_id=run.id))


def work_off() -> None:
    """Do what is due, in every pool that has a worker."""
    pretend_a_worker()
    while background.dispatch(now=timezone.now()):
        for job in Run.objects.filter(status="queued").exclude(kind="turn"):
            settle_by_hand(job.id, text="A summary")


def longest_summary() -> int:
    """Of the default pool's chats. A token is a byte here."""
    pool = inference.pool(slug="default")
    return Budget.of(pool).summary_tokens(system_tokens=len(pool.system_prompt))


def set_mode(mode: str) -> None:
    ModelPool.objects.filter(slug="default").update(mode=mode)
    policies.forget()


def test_jobs_of_a_pool_without_room_hide_no_others(ada: Person) -> None:
    for _ in range(background.STEP):
        answered(ada)
    Job.objects.update(pool="closed")
    ModelPool.objects.create(slug="closed", name="Closed", is_open=False)
    waiting = answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    assert str(Run.objects.get(kind="title").chat_id) == waiting


def test_a_title_waits_a_while_for_a_moment_without_turns_and_holds_up_no_summary(ada: Person) -> None:
    window(context_window=4096)
    answered(ada)
    patient_until = Job.objects.get().due_at + background.PATIENCE
    full = ada.new_chat(title="x")
    fill(full, turns=500, text="fifty bytes of a message, more or less, as people")
    settle_by_hand(ada.sent(full, turn="new")["run"]["id"])
    claim_by_hand(ada.sent(ada.new_chat(title="x"))["run"]["id"])
    pretend_a_worker(room=64)
    just_before = patient_until - timedelta(milliseconds=1)
    assert background.dispatch(now=just_before) == 1
    assert Run.objects.exclude(kind="turn").get().kind == "summary"
    assert background.dispatch(now=just_before) == 0, "somebody is being answered"
    assert background.dispatch(now=patient_until) == 1, "on a busy site somebody always is"
    assert Run.objects.filter(kind="title").exists()


def test_a_title_is_made_at_once_where_nobody_is_answered(ada: Person) -> None:
    answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=Job.objects.get().due_at) == 1


def test_no_title_begins_while_whoever_stopped_an_answer_sees_the_work_fall(ada: Person) -> None:
    answered(ada)
    due = Job.objects.get().due_at
    run = claim_by_hand(ada.sent(ada.new_chat(title="x"))["run"]["id"])
    pretend_a_worker(room=64)
    assert background.dispatch(now=due) == 0
    stopped = settle_by_hand(run.id, status="cancelled", text="Half").finished_at
    assert stopped is not None
    assert background.dispatch(now=stopped + background.CALM) == 0
    assert background.dispatch(now=stopped + background.CALM + timedelta(milliseconds=1)) == 1


def test_a_title_waits_for_the_small_pool_to_be_quiet_rather_than_take_the_large_one(ada: Person) -> None:
    small = ModelPool.objects.create(slug="small", name="Small")
    ModelPool.objects.filter(slug="default").update(overflow_to=small)
    answered(ada)
    due = Job.objects.get().due_at
    pretend_a_worker("small")
    claim_by_hand(ada.sent(ada.new_chat(title="x", pool="small"))["run"]["id"])
    assert background.dispatch(now=due) == 0
    assert background.dispatch(now=due + background.PATIENCE) == 1
    assert Run.objects.get(kind="title").pool == small


def test_a_title_is_made_of_the_first_question_that_got_an_answer(ada: Person) -> None:
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat, "How do ships sail?", turn="1")["run"]["id"], status="failed", text="")
    settle_by_hand(ada.sent(chat, "How do planes fly?", turn="2")["run"]["id"], text="With wings.")
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    asked = prompt_of(Run.objects.get(kind="title"))
    assert "Question: How do planes fly?\nAnswer: With wings.\n" in asked


def test_a_job_that_one_process_cannot_begin_stays_with_the_one_that_has(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = answered(ada)
    pretend_a_worker()
    real = selectors.first_answered
    calls: list[Chat] = []

    def first_answered(*, chat: Chat) -> Any:
        calls.append(chat)
        if len(calls) == 1:
            assert background.dispatch(now=timezone.now()) == 1, "another process begins it"
            raise RuntimeError("the database is locked")
        return real(chat=chat)

    monkeypatch.setattr(selectors, "first_answered", first_answered)
    assert background.dispatch(now=timezone.now()) == 0
    settle_by_hand(Run.objects.get(kind="title").id, text="Ships and winds")
    assert Chat.objects.get(id=chat).title == "Ships and winds"


def test_a_chat_whose_pool_was_closed_is_summarised_for_the_one_that_answers_now(ada: Person) -> None:
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    fill(chat, turns=100, text="fifty bytes of a message, more or less, as people")
    settle_by_hand(ada.sent(chat, turn="a")["run"]["id"])
    ModelPool.objects.update(is_open=False, is_default=False)
    ModelPool.objects.create(slug="second", name="Second", is_default=True)
    pretend_a_worker("second")
    settle_by_hand(ada.sent(chat, turn="b")["run"]["id"])
    assert background.dispatch(now=timezone.now()) == 1
    assert Run.objects.get(kind="summary").pool.slug == "second"


def test_what_one_summary_has_no_room_for_is_left_whole_for_the_next(ada: Person) -> None:
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    fill(chat, turns=40, text="begin " + "x" * 188 + " end")
    settle_by_hand(ada.sent(chat, turn="new")["run"]["id"])
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    asked, job = prompt_of(Run.objects.get(kind="summary")), Job.objects.get()
    assert "[…]" not in asked
    assert asked.count("begin ") == job.last_seq < 60


@pytest.mark.parametrize(("question", "answer"), [(100, 2600), (1300, 1700)])
def test_a_turn_that_a_summarys_prompt_has_room_for_is_quoted_whole(ada: Person, question: int, answer: int) -> None:
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    for number in range(2):
        asked = f"{number} " + "q" * (question if number == 0 else 1)
        run = ada.sent(chat, asked, turn=f"t{number}")["run"]
        settle_by_hand(run["id"], text="a" * answer, output_tokens=answer)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    asked = prompt_of(Run.objects.get(kind="summary"))
    assert "q" * question in asked
    assert "a" * answer in asked


def test_a_turn_that_takes_more_than_a_summarys_prompt_is_quoted_by_its_ends(ada: Person) -> None:
    window(context_window=4096)
    small = ModelPool.objects.create(slug="small", name="Small", context_window=1024, max_output_tokens=200)
    ModelPool.objects.filter(slug="default").update(overflow_to=small)
    chat = ada.new_chat(title="x")
    fill(chat, turns=5, text="begin " + "x" * 900 + " end")
    settle_by_hand(ada.sent(chat, turn="new")["run"]["id"])
    pretend_a_worker("small")
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="summary")
    asked = prompt_of(run)
    assert (asked.count("begin "), asked.count(" end"), asked.count("[…]")) == (2, 2, 2)
    assert run.prompt_tokens + run.max_output_tokens <= 1024


def rounds(person: Person, chat: str, *, turns: int, size: int, answer: str) -> list[Any]:
    """Ask and answer, each summary made at once and as long as it may be; the prompts' snapshots."""
    found = []
    for number in range(turns):
        run = person.sent(chat, "q" * size, turn=f"t{number}")["run"]
        found.append(Run.objects.get(id=run["id"]).context)
        settle_by_hand(run["id"], text=answer, output_tokens=len(answer))
        pretend_a_worker()
        while background.dispatch(now=timezone.now()):
            for job in Run.objects.filter(status="queued").exclude(kind="turn"):
                settle_by_hand(job.id, text="s" * job.max_output_tokens)
    return found


@pytest.mark.parametrize(
    ("size", "answer", "turns", "most"),
    [(40, 40, 150, 28), (150, 150, 40, 17), (300, 300, 20, 10), (60, 500, 20, 9), (60, 700, 20, 11), (60, 990, 20, 20)],
)
def test_where_every_summary_is_made_at_once_no_turn_is_left_out(
    ada: Person, size: int, answer: int, turns: int, most: int
) -> None:
    """With a pool's own defaults; and none is made before there is need."""
    chat = ada.new_chat(title="x")
    sent = rounds(ada, chat, turns=turns, size=size, answer="a" * answer)
    assert [number for number, context in enumerate(sent) if context["trimmed"]] == []
    assert {len(summary.content) for summary in Summary.objects.all()} == {longest_summary()}
    assert 2 <= Summary.objects.count() <= most


def test_a_chat_is_summarised_before_a_long_answer_leaves_the_next_message_no_room(ada: Person) -> None:
    chat = ada.new_chat(title="x")
    [_, full] = rounds(ada, chat, turns=2, size=200, answer="a" * 990)
    assert full["prompt_tokens"] < full["full_above"]
    assert Summary.objects.count() == 1
    assert not ada.sent(chat, "q" * 200, turn="next")["run"]["context"]["trimmed"]


def test_reasoning_that_later_prompts_do_not_have_takes_none_of_their_room(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_template(monkeypatch, DROPS)
    chat = ada.new_chat(title="x")
    sent = rounds(ada, chat, turns=12, size=60, answer=f"<think>{'Hm. ' * 200}</think>\n\n{'a' * 60}")
    assert not any(context["trimmed"] for context in sent)
    assert sent[-1]["prompt_tokens"] < sent[-1]["full_above"]
    assert Summary.objects.count() == 0
    counts = Message.objects.filter(chat_id=chat, role="assistant").values_list("token_count", flat=True)
    assert set(counts) == {60}


@pytest.mark.parametrize(
    "answer",
    [
        "<think>" + "Hm. " * 200,
        "<thinking>" + "Hm. " * 200 + "</thinking>Yes.",
        "<think>" + "嗯。" * 100 + "</think>" + "Yes. " * 50,
        "<think>" + "Hm. " * 75 + "</think>" + "是的。" * 100,
    ],
)
def test_reasoning_that_was_counted_otherwise_is_summarised_by_what_it_takes(
    ada: Person, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    use_template(monkeypatch, DROPS)
    chat = ada.new_chat(title="x")
    for number in range(14):
        run = ada.sent(chat, "q" * 60, turn=f"t{number}")["run"]
        assert not run["context"]["trimmed"], f"turn {number}"
        settle_by_hand(run["id"], text=answer, output_tokens=len(answer.encode()))
        work_off()
    assert Summary.objects.exists()


def test_a_pool_that_changes_its_template_summarises_what_older_answers_take_now(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ada.new_chat(title="x")
    answer = "<think>" + "Hm. " * 200 + "</think>Yes."
    with monkeypatch.context() as patch:
        use_template(patch, DROPS)
        rounds(ada, chat, turns=5, size=60, answer=answer)
    context_cache.drop(chat_id=UUID(chat))
    assert not Summary.objects.exists()
    settle_by_hand(ada.sent(chat, turn="then")["run"]["id"], text=answer, output_tokens=len(answer))
    work_off()
    assert Summary.objects.exists()
    assert not ada.sent(chat, turn="at last")["run"]["context"]["trimmed"]


def test_reasoning_that_the_prompt_opened_takes_no_room_of_later_ones(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops_and_opens = DROPS.replace(END, "assistant\n<think>\n' }}{% endif")
    use_template(monkeypatch, drops_and_opens)
    chat = ada.new_chat(title="x")
    sent = rounds(ada, chat, turns=6, size=60, answer=f"{'Hm. ' * 200}</think>\n\n{'a' * 60}")
    assert not any(context["trimmed"] for context in sent)
    assert Summary.objects.count() == 0
    assert {one.token_count for one in Message.objects.filter(role="assistant")} == {60}


@pytest.mark.parametrize("text", ["", "Hm."])
def test_an_answer_that_is_stopped_amid_its_reasoning_is_stored_as_it_is(
    ada: Person, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    use_template(monkeypatch, DROPS.replace(END, "assistant\n<think>\n' }}{% endif"))
    chat = ada.new_chat(title="x")
    settle_by_hand(ada.sent(chat)["run"]["id"], status="cancelled", text=text, output_tokens=len(text))
    answer = Message.objects.get(role="assistant")
    assert (answer.content, answer.token_count, answer.opens_reasoning) == (text, len(text), True)


def test_a_summary_that_is_wanted_while_nothing_is_found_to_fold_is_not_lost(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ada.new_chat(title="x")
    now = timezone.now()
    jobs.want(chat_id=UUID(chat), kind=Job.Kind.SUMMARY, pool="default", now=now)
    real = summaries.fold

    def fold(*args: Any, **more: Any) -> Any:
        found = real(*args, **more)
        jobs.want(chat_id=UUID(chat), kind=Job.Kind.SUMMARY, pool="default", now=timezone.now())
        return found

    pretend_a_worker()
    with monkeypatch.context() as patch:
        patch.setattr(summaries, "fold", fold)
        assert background.dispatch(now=now) == 0
    assert Job.objects.filter(chat_id=chat).exists()
    assert background.dispatch(now=now) == 0
    assert not Job.objects.exists(), "nobody wants it any more"


@pytest.mark.parametrize(("system", "plan"), [("Be kind. " * 220, None), ("Be kind.", 900)])
def test_a_summary_leaves_turns_room_however_little_the_chat_has(ada: Person, system: str, plan: int | None) -> None:
    ModelPool.objects.update(system_prompt=system)
    subscribe(ada, max_prompt_tokens=plan)
    chat = ada.new_chat(title="x")
    sent = rounds(ada, chat, turns=20, size=30, answer="a" * 30)
    assert 1 <= Summary.objects.count() <= 10
    part = sent[-1]["roomy"] - sent[-1]["system_tokens"]
    assert {len(summary.content) for summary in Summary.objects.all()} == {part // 6}
    assert sent[-1]["summary_version"] > 0
    assert sent[-1]["last_seq"] - sent[-1]["first_seq"] >= 2


def test_where_a_summary_leaves_turns_no_room_none_is_made(ada: Person) -> None:
    ModelPool.objects.update(system_prompt="Be kind. " * 335)
    chat = ada.new_chat(title="x")
    sent = rounds(ada, chat, turns=8, size=5, answer="a" * 5)
    assert sent[-1]["trimmed"]
    assert not Run.objects.exclude(kind="turn").exists()


def test_a_pool_whose_files_are_missing_keeps_no_others_waiting(ada: Person) -> None:
    broken = answered(ada)
    Job.objects.update(pool="broken")
    ModelPool.objects.create(slug="broken", name="Broken", model="/nowhere/at-all")
    pretend_a_worker("broken")
    fine = answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    assert str(Run.objects.get(kind="title").chat_id) == fine
    assert Job.objects.get(chat_id=broken).failures == 1


def test_a_title_is_made_by_the_pool_that_answered(ada: Person) -> None:
    """The chat's own may be closed by now."""
    chat = ada.new_chat()
    ModelPool.objects.create(slug="other", name="Other")
    pretend_a_worker("other")
    settle_by_hand(ada.sent(chat, pool="other")["run"]["id"])
    assert Job.objects.get().pool == "other"


def test_a_chat_of_many_short_messages_is_summarised_however_large_the_window(ada: Person) -> None:
    window(context_window=32768)
    chat = ada.new_chat(title="x")
    fill(chat, turns=500, text="fifty bytes of a message, more or less, as people")
    run = ada.sent(chat, turn="new")["run"]
    assert run["context"]["trimmed"]
    settle_by_hand(run["id"])
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    assert Run.objects.filter(kind="summary").exists()


def test_a_plan_with_short_prompts_gets_summaries_that_fit_them(ada: Person) -> None:
    window(context_window=8192)
    subscribe(ada, max_prompt_tokens=1500)
    chat = ada.new_chat(title="x")
    for number in range(40):
        run = ada.sent(chat, f"Question number {number}, of some length", turn=f"t{number}")["run"]
        assert run["usage"]["prompt"] <= 1500
        assert not run["context"]["trimmed"]
        settle_by_hand(run["id"], text="An answer, which is of some length, too.", output_tokens=40)
        work_off()
    assert Summary.objects.exists()


def test_one_answer_of_the_small_pool_leaves_the_large_ones_chat_alone(ada: Person) -> None:
    small = ModelPool.objects.create(slug="small", name="Small")
    window("small", context_window=1024)
    window(context_window=8192, overflow_to=small)
    subscribe(ada, overflow="smaller")
    chat = ada.new_chat(title="x")
    sent: list[Any] = []
    for number in range(24):
        pretend_a_worker("small")
        pretend_a_worker()
        set_mode("drain" if number == 20 else "normal")
        asked = f"Question number {number}, of a hundred and more bytes " + "x" * 70
        sent.append(ada.sent(chat, asked, turn=f"t{number}")["run"])
        settle_by_hand(sent[-1]["id"], text="An answer, of some length. " + "y" * 74, output_tokens=101)
        set_mode("normal")
        work_off()
    assert [run["pool"] for run in sent[19:22]] == ["default", "small", "default"]
    assert sent[20]["context"]["trimmed"]
    assert not Summary.objects.exists(), "in its own window the chat is not full"
    assert sent[-1]["usage"]["prompt"] > sent[19]["usage"]["prompt"] > 4000


def test_a_window_with_room_gets_turns_word_for_word_that_a_smaller_ones_summary_speaks_of(ada: Person) -> None:
    ModelPool.objects.create(slug="small", name="Small")
    window("small", context_window=1024)
    window(context_window=4096, high_water=50, low_water=40)
    chat = ada.new_chat(title="x")
    for number in range(18):
        pretend_a_worker("small")
        pool = "small" if number in (15, 16) else "default"
        asked = f"Question number {number}, of some bytes " + "x" * 40
        run = ada.sent(chat, asked, turn=f"t{number}", pool=pool)["run"]
        settle_by_hand(run["id"], text="An answer, of some length. " + "y" * 40, output_tokens=67)
        work_off()
    covered = Summary.objects.order_by("-version")[0].last_seq
    assert run["context"]["summary_version"] > 0
    assert run["context"]["first_seq"] < covered, "the low-water mark is this pool's"
    assert not run["context"]["trimmed"]


def test_turns_that_counts_of_another_tokenizer_cut_are_left_out_whole(ada: Person) -> None:
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    fill(chat, turns=12, text="forty bytes of a message, more or less.", token_count=320)
    run = ada.sent(chat, turn="new")["run"]
    assert run["context"]["trimmed"]
    assert Message.objects.get(chat_id=chat, seq=run["context"]["first_seq"]).role == "user"


def test_a_reminder_changes_nothing_of_a_prompt_that_would_be_made_otherwise_by_now(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was remembered, with more turns than are read where another tokenizer's counts are large."""
    window(context_window=4096)
    subscribe(ada, long_memory=True)
    chat = ada.new_chat(title="x")
    fill(chat, turns=12, text="forty bytes of a message, more or less.", token_count=300)
    for number in range(4):
        run = ada.sent(chat, f"Tell me more {number}, please. " * 5, turn=f"n{number}")["run"]
        settle_by_hand(run["id"], text="Fine. " * 20, output_tokens=120)
    quote = Recalled(seqs=(1, 2), text="User: forty bytes", tokens=20, score=0.9)
    monkeypatch.setattr(memory, "recalled", lambda *_, **__: [quote])
    context = ada.sent(chat, "And then?", turn="last")["run"]["context"]
    asked = prompt_of(Run.objects.order_by("-id")[0])
    said = Message.objects.filter(chat_id=chat, seq__gte=context["first_seq"], seq__lte=context["last_seq"])
    # Around them, the system prompt and the beginning of the answer.
    assert asked.count("<|im_start|>") - 2 == said.count()
    assert context["recalled_tokens"] >= 0


def test_messages_that_counts_of_another_tokenizer_leave_out_are_told_of(ada: Person) -> None:
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    fill(chat, turns=12, text="forty bytes of a message, more or less.", token_count=300)
    run = ada.sent(chat, turn="new")["run"]
    assert run["context"]["first_seq"] > 1
    assert run["context"]["trimmed"]
    assert [notice["code"] for notice in run["notices"]] == ["context_trimmed"]


def test_the_only_slot_is_no_jobs(ada: Person) -> None:
    answered(ada)
    cell = store.connector().cell()
    report = workers.Report(
        engine="scripted", model="m", slots=1, running=0, waiting=0, kv_usage=0.0, output_tokens=0, room=1
    )
    an_hour_ahead = store.now_ms() + 3_600_000
    cell.call(
        workers.heartbeat(cell.keys, pool="default", boot_id=BOOT_ID, report=report, held=(), now_ms=an_hour_ahead)
    )
    assert background.dispatch(now=timezone.now()) == 0


def test_of_a_stopped_turn_nothing_begins(ada: Person) -> None:
    window(context_window=1024)
    chat = ada.new_chat()
    for number in range(9):
        run = ada.sent(chat, "word " * 10, turn=f"t{number}")["run"]
        if number < 8:
            settle_by_hand(run["id"], text="word " * 10, output_tokens=50)
    Job.objects.all().delete()
    assert context.wants_summary(Run.objects.get(id=run["id"]).context, answer_tokens=0)
    assert ada.post(f"/api/v1/runs/{run['id']}/cancel").status_code == 200
    assert not Job.objects.exists()
    settle_by_hand(ada.sent(chat, turn="next")["run"]["id"])
    assert {job.kind for job in Job.objects.all()} == {"summary", "title"}


def test_jobs_of_a_suspended_owner_do_not_begin_again(ada: Person) -> None:
    answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    job = claim_by_hand(Run.objects.get(kind="title").id)
    suspension.suspend(user=ada.user, now=timezone.now())
    settle_by_hand(job.id, status="cancelled", text="")
    pretend_a_worker()
    later = timezone.now() + timedelta(minutes=1)
    assert background.dispatch(now=later) == 0
    suspension.reinstate(user=ada.user)
    assert background.dispatch(now=later) == 1


def test_what_is_turned_off_meanwhile_is_not_begun(ada: Person, settings: Any) -> None:
    answered(ada)
    settings.BACKGROUND_JOBS = {"summary"}
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 0


def test_a_chat_that_goes_while_its_job_is_accepted_leaves_nothing(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = answered(ada)
    pretend_a_worker()
    real = inference.accept_job
    deletions: list[threading.Thread] = []
    under_way = threading.Event()

    def delete() -> None:
        under_way.set()
        chats.delete(owner_id=ada.user.pk, chat_id=UUID(chat), now=timezone.now())

    def accept(**values: Any) -> Any:
        deletions.append(threading.Thread(target=closing_connections(delete)))
        deletions[0].start()
        assert under_way.wait(10)
        return real(**values)

    monkeypatch.setattr(inference, "accept_job", accept)
    background.dispatch(now=timezone.now())
    deletions[0].join(30)
    assert not deletions[0].is_alive()
    for run in Run.objects.filter(kind="title", status__in=Run.ACTIVE):
        settle_by_hand(run.id, text="A title")
    assert not Chat.objects.filter(id=chat).exists()
    assert not Run.objects.filter(chat_id=chat).exists()
    assert not Prompt.objects.exists()


def test_a_job_whose_chat_is_gone_takes_its_run_along(ada: Person) -> None:
    chat = answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    # As a deletion does that had looked for runs a moment before.
    Run.objects.filter(chat_id=chat, kind="turn").delete()
    Chat.objects.filter(id=chat).delete()
    settle_by_hand(Run.objects.get(kind="title").id, text="A title")
    assert not Run.objects.filter(chat_id=chat).exists()
    assert not Prompt.objects.exists()


def test_a_run_whose_job_was_put_off_leaves_its_chat_as_it_is(ada: Person) -> None:
    chat = answered(ada)
    remembered = cache.get(context_cache._key(UUID(chat)))
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    Job.objects.update(run_id=None)
    settle_by_hand(Run.objects.get(kind="title").id, text="A title")
    assert Chat.objects.get(id=chat).title == "How do ships sail?"
    assert remembered is not None
    assert cache.get(context_cache._key(UUID(chat))) == remembered
    assert Job.objects.count() == 1


def test_a_job_given_up_while_its_chats_answer_ends_keeps_neither_waiting_for_the_other(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    Job.objects.update(failures=jobs.MOST_FAILURES - 1)
    job = Run.objects.get(kind="title")
    turn = ada.sent(chat, turn="t2")["run"]["id"]
    has_the_chat = threading.Event()
    failures: list[str] = []
    real = chats._want_jobs

    def want(*values: Any, **more: Any) -> None:
        has_the_chat.set()
        real(*values, **more)

    monkeypatch.setattr(chats, "_want_jobs", want)

    def end(run_id: Any, text: str) -> None:
        try:
            settle_by_hand(run_id, text=text)
        except Exception as error:
            failures.append(repr(error))

    ending = threading.Thread(target=closing_connections(end), args=(turn, "Fine."))
    ending.start()
    assert has_the_chat.wait(10)
    end(job.id, "")
    ending.join(30)
    assert failures == []
    assert Chat.objects.get(id=chat).title_by == Chat.TitleBy.KEPT


@pytest.mark.parametrize("step", ["enqueue", "prompt_depth"])
def test_a_chat_deleted_while_it_is_sent_to_is_not_remembered(
    ada: Person, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before its prompt is remembered, and in the midst of that."""
    chat = ada.new_chat()
    real = getattr(inference, step)

    def then_deleted(*args: Any) -> Any:
        assert Person.again(ada).delete(f"/api/v1/chats/{chat}").status_code == 204
        return real(*args)

    monkeypatch.setattr(inference, step, then_deleted)
    ada.send(chat)
    assert not Chat.objects.filter(id=chat).exists()
    assert cache.get(context_cache._key(UUID(chat))) is None


def test_a_prompt_is_rebuilt_after_a_retry_elsewhere_that_was_not_remembered(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ModelPool.objects.create(slug="small", name="Small", system_prompt="Be short.")
    ModelPool.objects.filter(slug="default").update(overflow_to=small, system_prompt="Be kind, and thorough.")
    pretend_a_worker("small")
    subscribe(ada, overflow="smaller")
    chat = ada.new_chat()
    run = ada.sent(chat, "One")["run"]["id"]
    settle_by_hand(run, status="cancelled", text="Half")
    set_mode("drain")
    with monkeypatch.context() as patched:
        # Its process died after the commit.
        patched.setattr(Ready, "remember", lambda *_, **__: None)
        assert ada.retry(run).status_code == 202
    assert Run.objects.get(id=run).pool.slug == "small"
    settle_by_hand(run, text="Whole")
    set_mode("normal")
    following = ada.sent(chat, "Two", turn="t2")["run"]
    assert following["pool"] == "default"
    rebuilt = inference.prompt_ids_of(run_id=UUID(following["id"]))
    assert len(rebuilt) == following["usage"]["prompt"]


def test_what_a_model_thinks_whose_prompt_opens_its_reasoning_is_no_title(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_template(monkeypatch, OPENS)
    for said, title in (
        ("Okay, the user wants a title for a conversation about ships", "How do ships sail?"),
        ("They ask about ships.\n</think>\n\nShips and winds", "Ships and winds"),
    ):
        chat = answered(ada)
        pretend_a_worker()
        assert background.dispatch(now=timezone.now()) == 1
        run = Run.objects.get(kind="title", status="queued")
        assert run.max_output_tokens > titles.MOST_TOKENS, "there is room for what it thinks"
        settle_by_hand(run.id, text=said)
        assert Chat.objects.get(id=chat).title == title


def test_a_model_whose_answers_begin_with_reasoning_gets_room_for_it_and_no_title_is_made_of_it(ada: Person) -> None:
    chat = ada.new_chat()
    thoughts = "<think>Sails? I should talk about the wind. " + "Hm. " * 200 + "</think>"
    settle_by_hand(ada.sent(chat, "How do ships sail?")["run"]["id"], text=thoughts + "With the wind.")
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="title")
    assert run.max_output_tokens > 500
    asked = prompt_of(run)
    assert "Answer: With the wind.\n" in asked
    assert "I should talk" not in asked
    settle_by_hand(run.id, text="<think>" + "Hm. " * 100 + "</think>\nShips and winds")
    assert Chat.objects.get(id=chat).title == "Ships and winds"


def test_summaries_leave_reasoning_out_and_have_room_for_it(ada: Person) -> None:
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    fill(chat, turns=500, text="<think>secret plans</think>a few bytes of a message, more or less")
    settle_by_hand(ada.sent(chat, turn="new")["run"]["id"])
    ModelPool.objects.update(max_output_tokens=1000)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="summary")
    assert run.max_output_tokens > 512 + 100
    assert len(inference.prompt_ids_of(run_id=run.id)) <= 4096 - run.max_output_tokens
    asked = prompt_of(run)
    assert "Assistant: a few bytes" in asked
    assert "Assistant: <think>" not in asked
    settle_by_hand(run.id, text="<think>Hm. " * 50 + "</think>\nThey speak of bytes.")
    assert Summary.objects.get().content == "They speak of bytes."


@pytest.mark.parametrize("kind", ["title", "summary"])
def test_reasoning_that_never_ended_is_neither_summarised_nor_titled(
    ada: Person, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    use_template(monkeypatch, OPENS)
    chat = ada.new_chat(**({"title": "x"} if kind == "summary" else {}))
    text = "Okay, the user wants secret plans" + "." * 100
    for number in range(16 if kind == "summary" else 1):
        settle_by_hand(ada.sent(chat, "tell me", turn=f"t{number}")["run"]["id"], text=text, output_tokens=len(text))
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    asked = prompt_of(Run.objects.exclude(kind="turn").get())
    assert "tell me" in asked
    assert "secret plans" not in asked


def test_room_for_reasoning_is_beside_the_longest_answer_of_a_pool(
    ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_template(monkeypatch, OPENS)
    window(context_window=4096)
    chat = ada.new_chat(title="x")
    fill(chat, turns=60, text="fifty bytes of a message, more or less, as people")
    settle_by_hand(ada.sent(chat, turn="new")["run"]["id"])
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    assert Run.objects.get(kind="summary").max_output_tokens == 200 + 512


def test_room_for_reasoning_that_is_filled_with_a_summary_makes_it_no_longer(ada: Person) -> None:
    """Its answers begin with reasoning, there is no switch for that, and this time the model does without."""
    chat = ada.new_chat(title="x")
    fill(chat, turns=60, text="<think>Hm.</think>a few bytes of a message, more or less")
    settle_by_hand(ada.sent(chat, turn="new")["run"]["id"])
    longest = longest_summary()
    for said, kept in (("s" * (longest + 512), longest), ("<think>Hm</think>" + "s" * longest, longest), ("ss", 2)):
        Job.objects.update(due_at=timezone.now(), failures=0)
        Summary.objects.all().delete()
        Chat.objects.update(summary_version=0)
        pretend_a_worker()
        assert background.dispatch(now=timezone.now()) == 1
        run = Run.objects.get(kind="summary", status="queued")
        assert run.max_output_tokens == longest + 512
        settle_by_hand(run.id, text=said, output_tokens=len(said))
        assert Summary.objects.get().content == "s" * kept


@pytest.mark.parametrize("known", [["none", "high"], ["medium"]])
def test_a_template_that_refuses_an_effort_is_asked_with_another_or_none(
    ada: Person, monkeypatch: pytest.MonkeyPatch, known: list[str]
) -> None:
    refuses = f"{{% if reasoning_effort is defined and reasoning_effort not in {known} %}}"
    effort = CHATML.replace(END, "assistant\n' }}{{ reasoning_effort | default('') }}{% endif")
    use_template(monkeypatch, f"{refuses}{{{{ raise_exception('which effort?') }}}}{{% endif %}}{effort}")
    # It knows no effort's name but these, and writes it where the answer begins.
    answered(ada)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="title")
    assert prompt_of(run).endswith("assistant\nnone" if "none" in known else "assistant\n")
    assert run.max_output_tokens == titles.MOST_TOKENS


def test_a_model_that_is_told_not_to_reason_gets_no_room_for_it(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "assistant\n' }}{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif"
    use_template(monkeypatch, CHATML.replace(END, told))
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat, "How do ships sail?")["run"]["id"], text="<think>Sails?</think>With the wind.")
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="title")
    assert prompt_of(run).endswith("</think>\n\n")
    assert run.max_output_tokens == titles.MOST_TOKENS


def test_little_reasoning_is_given_room(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    effort = "assistant\n' }}{{ reasoning_effort | default('') }}{% endif %}"
    use_template(monkeypatch, CHATML.replace("assistant\n' }}{% endif %}", effort))
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat, "How do ships sail?")["run"]["id"], text="<think>Sails?</think>With the wind.")
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="title")
    assert prompt_of(run).endswith("assistant\nlow")
    assert run.max_output_tokens == titles.MOST_TOKENS + 512


def test_an_answer_that_a_retry_hides_meanwhile_gets_no_title_yet(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = answered(ada)
    real = selectors._said
    reads: list[Chat] = []

    def said(chat: Chat) -> Any:
        reads.append(chat)
        if len(reads) == 2:
            Message.objects.filter(role="assistant").update(hidden=True)
        return real(chat)

    monkeypatch.setattr(selectors, "_said", said)
    assert selectors.first_answered(chat=Chat.objects.get(id=chat)) == []


def test_a_cut_summary_ends_with_a_whole_character(ada: Person) -> None:
    for most, kept in ((51, 25), (50, 25), (200, 100)):
        assert background._first_tokens("\N{CYRILLIC SMALL LETTER YERU}" * 100, most=most, pool="default") == (
            "\N{CYRILLIC SMALL LETTER YERU}" * kept
        )


def test_jobs_ask_templates_that_know_how_for_no_reasoning(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    use_template(monkeypatch, OPENS_UNLESS_TOLD)
    chat = ada.new_chat()
    turn = ada.sent(chat, "How do ships sail?")["run"]["id"]
    assert prompt_of(Run.objects.get(id=turn)).endswith("<think>\n")
    settle_by_hand(turn, text="The wind.</think>With the wind.")
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="title")
    assert prompt_of(run).endswith("assistant\n")
    settle_by_hand(run.id, text="Ships and winds")
    assert Chat.objects.get(id=chat).title == "Ships and winds"


def test_a_prompt_opens_reasoning_only_at_its_end() -> None:
    tokenizer = tiny_tokenizer()
    for end, is_open in (
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
    ):
        assert reasoning.is_open(tokenizer.encode(end), tokenizer=tokenizer) == is_open, end
