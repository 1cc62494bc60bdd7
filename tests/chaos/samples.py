"""An honest record of one continued turn, for the checker's own tests to spoil."""

import dataclasses

from tests.chaos import plan
from tests.chaos.records import (
    AttemptRow,
    Hit,
    Json,
    MessageRow,
    Played,
    Record,
    Rest,
    RunRow,
    Seen,
    Truth,
    TurnRow,
    UsageRow,
    View,
)
from tests.client import Event

CHAT, TURN, RUN, USER, ADMISSION = "chat-1", "turn-row-1", "run-1", "user-1", "admission-1"
QUESTION, ANSWER = "question-1", "answer-1"
# The third token begins a character that the fourth completes.
TEXTS = ("One", " two", "", " é", " four", " five")
TEXT = "".join(TEXTS)
USAGE = {"prompt": 20, "cached": 0, "output": 6}
END = 4_294_967_295


def ask() -> plan.Ask:
    """A turn without anything special."""
    [made] = plan.make(seed=1, turns=1, kills=0, database="sqlite", engine="scripted").asks
    return dataclasses.replace(
        made,
        content="Count.",
        tokens=len(TEXTS),
        fail_after=None,
        max_output_tokens=None,
        cancel=None,
        retries=0,
        readings=made.readings[:1],
    )


def event(name: str, kind: str, **data: object) -> Event:
    return Event(name, kind, data)


def events() -> list[Event]:
    """Two epochs: the first published two tokens and died, the second went on."""
    return [
        event("0-1", "queued", position=0),
        event("1-1", "started", epoch=1),
        event("1-2", "delta", text="One two"),
        event("2-1", "started", epoch=2, reason="worker_lost", continues=True, last="1-2"),
        event("2-2", "delta", text=" é"),
        event("2-3", "delta", text=" four five"),
        event(f"2-{END}", "completed", message_id=ANSWER, usage=dict(USAGE), last="2-3"),
    ]


def view(reader: str, found: list[Event], *, after: str | None = None) -> View:
    seen = [Seen(float(number), 1, one) for number, one in enumerate(found, 1)]
    return View(reader=reader, run_id=RUN, after=after, seen=seen, ended=True, connections=1)


def run_row() -> RunRow:
    return RunRow(
        id=RUN,
        owner_id=USER,
        chat_id=CHAT,
        status="done",
        epoch=2,
        base_epoch=1,
        admission_id=ADMISSION,
        prompt_tokens=20,
        output_tokens=6,
        error_code="",
        message_id=ANSWER,
        claimed=True,
        total_s=4.0,
    )


def usage_row(*, epoch: int, reason: str, output_tokens: int, prompt_tokens: int = 0) -> UsageRow:
    return UsageRow(
        user_id=USER,
        run_id=RUN,
        epoch=epoch,
        admission_id=ADMISSION,
        reason=reason,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )


def message_row(*, id: str, role: str, seq: int, content: str) -> MessageRow:  # noqa: A002 - the column's name
    return MessageRow(
        id=id,
        chat_id=CHAT,
        turn_id=TURN,
        seq=seq,
        role=role,
        content=content,
        state="complete",
        hidden=False,
        run_id=RUN,
    )


def record() -> Record:
    """All is well: one turn, two readers and a replay from within, a worker killed in the middle."""
    accepted: Json = {"run": {"id": RUN}, "message": {"id": QUESTION}}
    played = Played(
        ask=ask(),
        chat_id=CHAT,
        expected=TEXTS,
        accepted=[accepted, accepted],
        created=1,
        views=[view("reader 1", events()), view("reader 2", events()), view("replay", events()[4:], after="2-1")],
        final_run={"id": RUN, "status": "done", "epoch": 2, "message_id": ANSWER, "usage": dict(USAGE)},
        final_messages=[{"id": ANSWER, "content": TEXT}],
        finished=True,
    )
    truth = Truth(
        turns=[TurnRow(id=TURN, chat_id=CHAT, client_turn_id=played.ask.turn_id, run_id=RUN)],
        runs=[run_row()],
        messages=[
            message_row(id=QUESTION, role="user", seq=1, content="Count."),
            message_row(id=ANSWER, role="assistant", seq=2, content=TEXT),
        ],
        usage=[
            usage_row(epoch=1, reason="lost", output_tokens=2),
            usage_row(epoch=2, reason="completed", output_tokens=4, prompt_tokens=20),
        ],
        attempts=[
            AttemptRow(run_id=RUN, epoch=1, worker="host-11-boot", outcome="lost", output_tokens=2),
            AttemptRow(run_id=RUN, epoch=2, worker="host-12-boot", outcome="done", output_tokens=4),
        ],
        rest=Rest(used={USER: 26}),
    )
    fault = plan.Fault(number=0, after_turns=1, delay_s=0.0, target="worker-1", kind=plan.Kind.KILL, down_s=1.0)
    return Record(played=[played], truth=truth, hits=[Hit(fault=fault, at=3.4, pid=11)])
