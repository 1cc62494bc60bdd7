"""The checker reports what it is there to find: each planted violation, and nothing in an honest record."""

import dataclasses
from collections.abc import Callable

import pytest

from inference import runs
from tests.chaos import report, samples
from tests.chaos.invariants import violations
from tests.chaos.records import Record, View
from tests.chaos.samples import END, event


def reader(record: Record, number: int = 0) -> View:
    return record.played[0].views[number]


def replace_event(view: View, name: str, kind: str, **data: object) -> None:
    for seen in view.seen:
        if seen.event.id == name:
            seen.event = event(name, kind, **data)
            return
    raise AssertionError(f"no event {name}")


def drop_event(view: View, name: str) -> None:
    kept = [seen for seen in view.seen if seen.event.id != name]
    assert len(kept) == len(view.seen) - 1
    view.seen = kept


def insert_event(view: View, position: int, name: str, kind: str, **data: object) -> None:
    view.seen.insert(position, samples.view("", [event(name, kind, **data)]).seen[0])


def change_run(record: Record, **changes: object) -> None:
    record.truth.runs[0] = dataclasses.replace(record.truth.runs[0], **changes)  # type: ignore[arg-type]


def change_usage(record: Record, number: int, **changes: object) -> None:
    record.truth.usage[number] = dataclasses.replace(record.truth.usage[number], **changes)  # type: ignore[arg-type]


def change_rest(record: Record, **changes: object) -> None:
    record.truth.rest = dataclasses.replace(record.truth.rest, **changes)  # type: ignore[arg-type]


def test_an_honest_record_has_no_violation() -> None:
    assert violations(samples.record()) == []


def lose_a_delta(record: Record) -> None:
    drop_event(reader(record), "2-2")


def lose_a_delta_before_a_replay(record: Record) -> None:
    drop_event(reader(record, 2), "2-3")


def double_a_delta(record: Record) -> None:
    insert_event(reader(record), 5, "2-2", "delta", text=" é")


def say_a_delta_again_under_a_new_id(record: Record) -> None:
    for view in record.played[0].views[:2]:
        replace_event(view, "2-3", "delta", text=" é four five")


def repeat_text_across_a_continuation(record: Record) -> None:
    replace_event(reader(record), "2-2", "delta", text=" two é")


def show_an_event_of_a_stale_epoch(record: Record) -> None:
    insert_event(reader(record), 4, "1-3", "delta", text=" three")


def publish_behind_the_fence(record: Record) -> None:
    # Only one reader was quick enough to see it before the next epoch began.
    insert_event(reader(record, 1), 3, "1-3", "delta", text=" é")


def show_an_event_after_the_end(record: Record) -> None:
    insert_event(reader(record), 7, f"3-{END}", "delta", text="!")


def give_two_readers_different_events(record: Record) -> None:
    replace_event(reader(record, 1), "1-2", "delta", text="One")


def store_another_text_than_was_shown(record: Record) -> None:
    assert record.played[0].final_messages is not None
    record.played[0].final_messages[0]["content"] = "One two"


def leave_a_reader_without_an_end(record: Record) -> None:
    reader(record).ended = False


def refetch_another_text(record: Record) -> None:
    view = reader(record)
    view.seen = view.seen[:3]
    insert_event(view, 3, f"2-{END}", "reset_required", status="done", message_id=samples.ANSWER)
    view.refetched = "One"


def begin_in_another_epoch_than_the_id_says(record: Record) -> None:
    for view in record.played[0].views[:2]:
        replace_event(view, "2-1", "started", epoch=1, continues=True, last="1-2")


def charge_twice(record: Record) -> None:
    record.truth.usage.append(record.truth.usage[1])


def charge_two_endings(record: Record) -> None:
    change_usage(record, 0, reason="completed")


def charge_nothing(record: Record) -> None:
    del record.truth.usage[1]


def charge_the_prompt_of_a_lost_epoch(record: Record) -> None:
    change_usage(record, 0, prompt_tokens=20)


def charge_what_was_never_published(record: Record) -> None:
    change_usage(record, 0, output_tokens=3)
    change_usage(record, 1, output_tokens=3)


def charge_fewer_tokens_than_the_answer_has(record: Record) -> None:
    change_usage(record, 1, output_tokens=3)


def tell_of_other_usage_at_the_end(record: Record) -> None:
    for view in record.played[0].views:
        usage = {"prompt": 20, "cached": 0, "output": 5}
        replace_event(view, f"2-{END}", "completed", message_id=samples.ANSWER, usage=usage, last="2-3")


def tell_of_other_usage_by_the_api(record: Record) -> None:
    assert record.played[0].final_run is not None
    record.played[0].final_run["usage"]["output"] = 5


def charge_somebody_else(record: Record) -> None:
    change_usage(record, 1, user_id="user-2")


def charge_a_run_that_is_not_there(record: Record) -> None:
    record.truth.usage.append(dataclasses.replace(record.truth.usage[0], run_id="run-2"))


def leave_a_reservation(record: Record) -> None:
    change_rest(record, reservations=["admission-1 of user user-1: turn|1|100|1|0"])


def count_other_usage_in_redis(record: Record) -> None:
    change_rest(record, used={samples.USER: 27})


def leave_a_run_queued(record: Record) -> None:
    change_rest(record, queued=["run-1:2"])


def leave_a_lease(record: Record) -> None:
    change_rest(record, leases=["run-1:2"])


def leave_the_engine_running(record: Record) -> None:
    change_rest(record, running=1)


def leave_tickets(record: Record) -> None:
    change_rest(record, tickets=1)


def lose_a_worker_for_good(record: Record) -> None:
    change_rest(record, workers=1)


def never_end_a_run(record: Record) -> None:
    change_run(record, status="streaming", message_id=None, total_s=None)
    del record.truth.messages[1]


def end_a_run_late(record: Record) -> None:
    change_run(record, total_s=1000.0)


def fail_without_a_cause(record: Record) -> None:
    change_run(record, status="failed", error_code="engine_refused")


def cancel_unasked(record: Record) -> None:
    change_run(record, status="cancelled", error_code="cancelled")


def interrupt_after_one_loss(record: Record) -> None:
    change_run(record, status="interrupted", error_code="worker_lost")


def interrupt_after(record: Record, *outcomes: str, code: str) -> None:
    """The run's attempts before its last one ended as told."""
    made = record.truth.attempts[0]
    record.truth.attempts = [
        dataclasses.replace(made, epoch=number, outcome=outcome)
        for number, outcome in enumerate((*outcomes, "interrupted"), 1)
    ]
    change_run(record, status="interrupted", error_code=code, epoch=len(outcomes) + 1)


def interrupt_as_lost_after_drains(record: Record) -> None:
    interrupt_after(record, "drained", "lost", "drained", code="worker_lost")


def interrupt_as_stopped_after_few_drains(record: Record) -> None:
    interrupt_after(record, *["drained"] * 48, code="worker_stopped")


def end_a_retried_run_late(record: Record) -> None:
    change_run(record, base_epoch=2, total_s=1000.0)


def leave_an_attempt_running(record: Record) -> None:
    record.truth.attempts[0] = dataclasses.replace(record.truth.attempts[0], outcome="running")


def attempt_other_tokens_than_charged(record: Record) -> None:
    record.truth.attempts[1] = dataclasses.replace(record.truth.attempts[1], output_tokens=5)


def store_a_turn_twice(record: Record) -> None:
    record.truth.turns.append(dataclasses.replace(record.truth.turns[0], id="turn-row-2", run_id="run-2"))


def store_a_message_without_its_run(record: Record) -> None:
    record.truth.runs.clear()
    record.truth.usage.clear()
    record.truth.attempts.clear()


def store_a_run_without_its_message(record: Record) -> None:
    del record.truth.messages[0]


def store_a_run_without_its_turn(record: Record) -> None:
    record.truth.turns.clear()


def add_job(record: Record, *, payer: str) -> None:
    """A title that was made in the background."""
    run = dataclasses.replace(record.truth.runs[0], id="job-1", kind="title", epoch=1, output_tokens=4)
    usage = dataclasses.replace(record.truth.usage[1], run_id="job-1", epoch=1, user_id=payer)
    attempt = dataclasses.replace(record.truth.attempts[1], run_id="job-1", epoch=1)
    record.truth.runs.append(run)
    record.truth.usage.append(usage)
    record.truth.attempts.append(attempt)


def charge_a_user_for_a_job(record: Record) -> None:
    add_job(record, payer=record.truth.runs[0].owner_id)


def store_no_answer(record: Record) -> None:
    del record.truth.messages[1]


def store_two_answers(record: Record) -> None:
    record.truth.messages.append(dataclasses.replace(record.truth.messages[1], id="answer-2"))


def lose_an_accepted_turn(record: Record) -> None:
    record.truth = dataclasses.replace(record.truth, turns=[], runs=[], messages=[], usage=[], attempts=[])


def accept_a_turn_twice(record: Record) -> None:
    record.played[0].created = 2


def answer_a_repeat_with_another_run(record: Record) -> None:
    record.played[0].accepted.append({"run": {"id": "run-2"}, "message": {"id": samples.QUESTION}})


def answer_a_repeat_with_another_message(record: Record) -> None:
    record.played[0].accepted.append({"run": {"id": samples.RUN}, "message": {"id": "question-2"}})


def show_a_stranger_something(record: Record) -> None:
    record.played[0].leaks.append("a stranger's GET /api/v1/runs/run-1: 200")


def answer_with_a_server_error(record: Record) -> None:
    record.played[0].problems.append("send: 500")


def leave_a_process_behind(record: Record) -> None:
    record.processes.append("process 12 was left behind: EngineCore")


def test_a_job_that_the_system_pays_for_answers_no_turn() -> None:
    record = samples.record()
    add_job(record, payer="")
    assert violations(record) == []


@pytest.mark.parametrize(
    ("plant", "rule", "words"),
    [
        (lose_a_delta, 3, "leaves the script"),
        (lose_a_delta_before_a_replay, 3, "stored is"),
        (double_a_delta, 3, "an event that it had"),
        (say_a_delta_again_under_a_new_id, 3, "leaves the script"),
        (repeat_text_across_a_continuation, 3, "leaves the script"),
        (show_an_event_of_a_stale_epoch, 2, "stale epoch"),
        (publish_behind_the_fence, 2, "came after 1-2"),
        (show_an_event_after_the_end, 2, "after the end"),
        (give_two_readers_different_events, 3, "elsewhere"),
        (store_another_text_than_was_shown, 3, "stored is"),
        (leave_a_reader_without_an_end, 4, "never came to the end"),
        (refetch_another_text, 3, "stored is"),
        (begin_in_another_epoch_than_the_id_says, 2, "says epoch 1"),
        (charge_twice, 1, "epoch 2 is charged 2 times"),
        (charge_two_endings, 1, "2 final charges"),
        (charge_nothing, 1, "0 final charges"),
        (charge_the_prompt_of_a_lost_epoch, 1, "40 prompt tokens are charged, 20 are due"),
        (charge_what_was_never_published, 6, "after 2 published tokens, 3 were charged"),
        (charge_fewer_tokens_than_the_answer_has, 6, "its charges hold 5 output tokens, the answer 6"),
        (tell_of_other_usage_at_the_end, 6, "the end tells of usage"),
        (tell_of_other_usage_by_the_api, 6, "the API tells of usage"),
        (charge_somebody_else, 1, "is not this run's"),
        (charge_a_user_for_a_job, 1, "is not this run's"),
        (charge_a_run_that_is_not_there, 1, "does not exist"),
        (leave_a_reservation, 6, "a reservation is left"),
        (count_other_usage_in_redis, 6, "27 tokens in Redis, 26 in the ledger"),
        (leave_a_run_queued, 4, "still waits in the queue"),
        (leave_a_lease, 4, "still is leased"),
        (leave_the_engine_running, 5, "1 sequences run in the engines"),
        (leave_tickets, 5, "broker's queues"),
        (lose_a_worker_for_good, 4, "1 workers are alive"),
        (never_end_a_run, 4, "never ended: streaming"),
        (end_a_run_late, 4, "beyond its 120 s"),
        (fail_without_a_cause, 4, "failed (engine_refused) without a cause"),
        (cancel_unasked, 4, "cancelled (cancelled) without a cause"),
        (interrupt_after_one_loss, 4, "interrupted (worker_lost) without a cause"),
        (interrupt_as_lost_after_drains, 4, "interrupted (worker_lost) without a cause"),
        (interrupt_as_stopped_after_few_drains, 4, "interrupted (worker_stopped) without a cause"),
        (end_a_retried_run_late, 4, "beyond its 120 s"),
        (leave_an_attempt_running, 4, "the attempt never ended"),
        (attempt_other_tokens_than_charged, 6, "made 5 tokens, 4 tokens in the ledger"),
        (store_a_turn_twice, 1, "is stored 2 times"),
        (store_a_message_without_its_run, 9, "has a turn and no run"),
        (store_a_run_without_its_message, 9, "has 0 user messages"),
        (store_a_run_without_its_turn, 9, "answers no turn"),
        (store_no_answer, 9, "has 0 answers"),
        (store_two_answers, 1, "has 2 answers"),
        (lose_an_accepted_turn, 1, "stored is nothing"),
        (accept_a_turn_twice, 1, "accepted as new 2 times"),
        (answer_a_repeat_with_another_run, 1, "run run-2 was accepted"),
        (answer_a_repeat_with_another_message, 1, "different messages"),
        (show_a_stranger_something, 7, "stranger"),
        (answer_with_a_server_error, 0, "500"),
        (leave_a_process_behind, 0, "left behind"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_planted_is_found(plant: Callable[[Record], None], rule: int, words: str) -> None:
    record = samples.record()
    plant(record)
    found = violations(record)
    assert any(one.rule == rule and words in one.words for one in found), [str(one) for one in found]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(["lost", "drained", "lost"], "worker_lost"), (["drained"] * (runs.MAX_DRAINS - 1), "worker_stopped")],
)
def test_an_answer_may_break_off_once_it_was_begun_as_often_as_may_be(outcomes: list[str], code: str) -> None:
    record = samples.record()
    interrupt_after(record, *outcomes, code=code)
    assert not any("without a cause" in one.words for one in violations(record))


def test_a_cut_in_a_characters_middle_counts_the_tokens_before_it() -> None:
    """Tokens of a half-finished character are not published; the successor makes them again."""
    record = samples.record()
    change_usage(record, 0, output_tokens=1)
    change_usage(record, 1, output_tokens=5)
    record.truth.attempts = [
        dataclasses.replace(attempt, output_tokens=tokens)
        for attempt, tokens in zip(record.truth.attempts, (1, 5), strict=True)
    ]
    for view in record.played[0].views:
        view.seen = [seen for seen in view.seen if seen.event.id not in ("1-2", "2-2")]
        replace_event(view, "2-3", "delta", text=" two é four five")
    for view in record.played[0].views[:2]:
        insert_event(view, 2, "1-2", "delta", text="One")
    assert violations(record) == []


def test_an_answer_that_begins_anew_discards_what_was_shown() -> None:
    record = samples.record()
    for view in record.played[0].views[:2]:
        replace_event(view, "2-1", "started", epoch=2, continues=False, last="1-2")
    for view in record.played[0].views:
        replace_event(view, "2-2", "delta", text="One two é")
    assert violations(record) == []


def test_a_pause_lasts_from_the_fault_to_the_readers_next_event() -> None:
    # The worker of epoch 1 died at 3.4 s; the next event came at 4 s.
    assert report.pauses(samples.record())["kill worker"] == {"n": 2, "p50": 0.6, "p90": 0.6, "max": 0.6}


def test_a_fault_of_another_worker_is_no_pause() -> None:
    record = samples.record()
    record.hits[0].pid = 12
    assert report.pauses(record) == {}
