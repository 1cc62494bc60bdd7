"""Chats far longer than the window: what stays in the prompt, with summaries and where there are none."""

import re
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from conversations import background, jobs
from conversations.models import Chat, Job, Summary
from conversations.tests.support import Person, pretend_a_worker, settle_by_hand
from inference import api as inference
from inference.models import ModelPool, Prompt, Run
from inference.testing import tiny_tokenizer

pytestmark = pytest.mark.django_db(transaction=True)

TOKENIZER = tiny_tokenizer()
FACT = "The password of the lighthouse is kumquat."
Summarise = Callable[[str], str]


@pytest.fixture
def pool(site: None) -> ModelPool:
    """A window of 2,048 tokens, which are bytes here."""
    values = {"context_window": 2048, "max_output_tokens": 200, "reserve_tokens": 100, "system_prompt": "Be kind."}
    ModelPool.objects.update(**values)
    return ModelPool.objects.get(slug="default")


def kept_facts(prompt: str) -> str:
    """What a summariser that keeps facts says: each sentence about a password that it is shown, once."""
    facts = dict.fromkeys(re.findall(r"The password of the \w+ is \w+\.", prompt))
    return " ".join(facts) or "They chatted."


def work_off(summarise: Summarise) -> int:
    """Do the jobs that are due as workers would, until none is; how many."""
    done = 0
    pretend_a_worker()
    while background.dispatch(now=timezone.now()):
        for run in Run.objects.filter(status="queued").exclude(kind=Run.Kind.TURN):
            text = summarise(prompt_of(run.id)) if run.kind == Run.Kind.SUMMARY else "A title"
            settle_by_hand(run.id, text=text)
            done += 1
    return done


def prompt_of(run_id: Any) -> str:
    """The text of the prompt that the run was accepted with."""
    return TOKENIZER.decode(inference.prompt_ids_of(run_id=run_id))


def turn(person: Person, chat: str, number: int, *, fact: str = "") -> Any:
    asked = f"Turn {number}: tell me more about ship number {number}. {fact}"
    run = person.sent(chat, asked, turn=f"t{number}")["run"]
    answer = f"Ship {number} has sails of canvas, and a crew of {number}."
    settle_by_hand(run["id"], text=answer, output_tokens=len(answer))
    return run


def test_a_fact_of_turn_1_is_in_the_prompt_of_turn_200_by_the_summaries(ada: Person, pool: ModelPool) -> None:
    chat = ada.new_chat()
    runs = []
    for number in range(1, 201):
        runs.append(turn(ada, chat, number, fact=FACT if number == 1 else ""))
        work_off(kept_facts)
    last = runs[-1]
    text = prompt_of(last["id"])
    assert FACT in text
    assert last["context"]["first_seq"] > 300, "it is there because a summary says so"
    assert last["context"]["summary_version"] == Chat.objects.get(id=chat).summary_version > 5
    assert not any(run["context"]["trimmed"] for run in runs)
    assert not any(run["notices"] for run in runs)
    assert max(run["usage"]["prompt"] for run in runs) <= 2048 - 200
    # One after the other, they speak of every message from the first on.
    ranges = list(
        Summary.objects.filter(chat_id=chat).order_by("version").values_list("version", "first_seq", "last_seq")
    )
    assert ranges[0][:2] == (1, 1)
    for (version, _, last_seq), (next_version, next_first, _) in pairwise(ranges):
        assert (next_version, next_first) == (version + 1, last_seq + 1)


def test_between_two_summaries_each_prompt_begins_with_the_one_before_and_its_answer(
    ada: Person, pool: ModelPool
) -> None:
    chat = ada.new_chat()
    last: list[int] = []
    version = 0
    went_on = 0
    for number in range(1, 61):
        run = turn(ada, chat, number)
        ids = inference.prompt_ids_of(run_id=run["id"])
        if run["context"]["summary_version"] == version and last:
            assert ids[: len(last)] == last
            went_on += 1
        version = run["context"]["summary_version"]
        last = [*ids, *TOKENIZER.encode(f"Ship {number} has sails of canvas, and a crew of {number}.")]
        work_off(kept_facts)
    assert version > 2
    assert went_on >= 60 - 1 - version


def test_without_anybody_to_do_the_jobs_turns_succeed_and_say_what_is_left_out(ada: Person, pool: ModelPool) -> None:
    chat = ada.new_chat()
    starts: list[int] = []
    for number in range(1, 101):
        run = turn(ada, chat, number)
        assert run["usage"]["prompt"] + 200 <= 2048
        notices = [notice["code"] for notice in run["notices"]]
        assert notices == (["context_trimmed"] if run["context"]["trimmed"] else [])
        starts.append(run["context"]["first_seq"])
    assert starts[-1] > 150
    assert starts == sorted(starts)
    # A cut stays for a while: that is what the engine's prefix cache lives on.
    cuts = sum(one != other for one, other in pairwise(starts))
    assert 5 <= cuts <= 20
    assert Summary.objects.count() == 0
    assert Job.objects.filter(chat_id=chat, kind=Job.Kind.SUMMARY).count() == 1


def test_summaries_that_come_late_close_the_gap_they_left(ada: Person, pool: ModelPool) -> None:
    chat = ada.new_chat()
    for number in range(1, 61):
        run = turn(ada, chat, number, fact=FACT if number == 1 else "")
    assert run["context"]["trimmed"]
    assert work_off(kept_facts) >= 2, "more than one prompt of the summariser's holds"
    run = turn(ada, chat, 61)
    assert not run["context"]["trimmed"]
    assert not run["notices"]
    assert FACT in prompt_of(run["id"])
    assert Job.objects.count() == 0


def test_a_summary_that_fails_leaves_turns_alone_and_is_tried_again_later(ada: Person, pool: ModelPool) -> None:
    chat = ada.new_chat(title="Ships")
    for number in range(1, 31):
        turn(ada, chat, number)
    now = timezone.now()
    pauses = []
    for _ in range(jobs.MOST_FAILURES):
        pretend_a_worker()
        assert background.dispatch(now=now) == 1
        [run] = Run.objects.filter(status="queued")
        settle_by_hand(run.id, status="failed", text="")
        job = Job.objects.get(chat_id=chat)
        ended = Run.objects.get(id=run.id).finished_at
        assert ended is not None
        pauses.append((job.due_at - ended).total_seconds())
        assert background.dispatch(now=job.due_at - timedelta(milliseconds=1)) == 0
        now = job.due_at
        if len(pauses) < jobs.MOST_FAILURES:
            assert turn(ada, chat, 31 + len(pauses))["status"] == "queued"
    assert pauses == [15, 60, 240, 3600]
    assert background.dispatch(now=now + timedelta(days=9)) == 0, "nobody goes on with the chat"
    turn(ada, chat, 40)
    pretend_a_worker()
    assert background.dispatch(now=now - timedelta(milliseconds=1)) == 0, "once an hour at most, from then on"
    assert background.dispatch(now=now) == 1
    settle_by_hand(Run.objects.get(status="queued").id, status="failed", text="")
    assert background.dispatch(now=now + timedelta(days=9)) == 0, "one more try, and no more"
    turn(ada, chat, 41)
    pretend_a_worker()
    assert background.dispatch(now=Job.objects.get(chat_id=chat).due_at) == 1
    settle_by_hand(Run.objects.get(status="queued").id, text="They spoke of ships.")
    assert Summary.objects.exists()


@pytest.mark.parametrize("text", ["", "  \n", "<think>What did they say", "<think>Hm</think>\n"])
def test_a_summary_that_says_nothing_is_none(ada: Person, pool: ModelPool, text: str) -> None:
    chat = ada.new_chat(title="Ships")
    for number in range(1, 31):
        turn(ada, chat, number)
    pretend_a_worker()
    assert background.dispatch(now=timezone.now()) == 1
    settle_by_hand(Run.objects.get(status="queued").id, text=text)
    assert Summary.objects.count() == 0
    assert Chat.objects.get(id=chat).summary_version == 0
    assert Job.objects.get().failures == 1


def test_prompts_are_stored_by_what_is_new_and_rebuilt_byte_for_byte(ada: Person, pool: ModelPool) -> None:
    chat = ada.new_chat()
    sent: dict[str, list[int]] = {}
    for number in range(1, 41):
        asked = f"Turn {number}: tell me more about ship number {number}."
        run = ada.sent(chat, asked, turn=f"t{number}")["run"]["id"]
        sent[run] = [*map(int, memoryview(bytes(Run.objects.get(id=run).prompt_ids)).cast("I"))]
        answer = f"Ship {number} has sails of canvas."
        settle_by_hand(run, text=answer, output_tokens=len(answer))
        work_off(kept_facts)
    # What was changed since changes nothing of what was sent.
    ModelPool.objects.update(system_prompt="Be brief.")
    for run, ids in sent.items():
        assert inference.prompt_ids_of(run_id=UUID(run)) == ids
    rows = Prompt.objects.filter(run_id__in=list(sent))
    assert rows.filter(base_id__isnull=False).count() > 30
    stored = sum(len(bytes(rest)) for rest in rows.values_list("rest", flat=True))
    assert stored < sum(4 * len(ids) for ids in sent.values()) / 8
