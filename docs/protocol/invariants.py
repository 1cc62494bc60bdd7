"""What must hold in every state, at every step, and at rest."""

from docs.protocol import scripts, web
from docs.protocol.case import Case
from docs.protocol.state import (
    INCOMPLETE,
    TERMINAL,
    Row,
    Run,
    State,
    Step,
    Stream,
    Text,
    base_of,
    charged,
    is_active,
)
from docs.protocol.worker import IDLE as IDLE_WORKER

# Without any of these, no worker may lose a run.
_HARD = frozenset({"crash", "wipe", "roll", "lease", "pend", "down", "drain", "engine"})


def broken(s: State, case: Case, before: State) -> str:
    """What is wrong in this state, reached from one where nothing is; empty when nothing is."""
    if s.wrong:
        return s.wrong
    if s.runs is before.runs and s.streams is before.streams and s.generation == before.generation:
        return ""  # nothing of what follows has changed: the ledger changes with its run
    live = [(turn, run) for turn, run in enumerate(s.runs) if run is not None and is_active(run)]
    running = sum(case.reserve - charged(s, turn, run.admission) for turn, run in live)
    total = sum(row.tokens for row in s.ledger) + running
    if total > case.budget:
        return f"over-admitted: ledger and running answers are {total} of {case.budget} tokens"
    if len(live) > case.concurrency:
        return f"over-admitted: {len(live)} answers at a time, {case.concurrency} allowed"
    if s.generation > 8 + 4 * s.incarnation:
        return f"rebuilds void each other for ever: generation {s.generation}"
    if not case.kinds & _HARD and any(row.reason == "lost" for row in s.ledger):
        return "an epoch was given up although its worker lived and Redis kept everything"
    for turn, run in enumerate(s.runs):
        if run is None:
            continue
        rows = [row for row in s.ledger if row.turn == turn]
        wrong = _in_run(run, rows, case) or _in_stream(s.streams[turn], run, s, case)
        if wrong:
            return wrong
    return ""


def _has_holes(text: Text) -> bool:
    return [token % 10 for token in text] != list(range(1, len(text) + 1))


def _in_run(run: Run, rows: list[Row], case: Case) -> str:
    if is_active(run):
        if run.text is not None:
            return f"the text of an old epoch is visible while epoch {run.epoch} runs"
    else:
        assert run.text is not None
        if _has_holes(run.text):
            return f"the answer has missing or doubled tokens: {run.text}"
        if sum(row.tokens for row in rows if row.admission == run.admission) != len(run.text):
            return f"charged {rows} for the text {run.text}"
        if run.status == "done" and len(run.text) != case.tokens:
            return "done, but not finished"
    for epoch in range(1, run.epoch + 1):
        if run.claimed >> epoch & 1 and (case.keeps("db_epoch") or run.status != "queued"):
            count = sum(1 for row in rows if row.epoch == epoch)
            if count != (epoch < run.epoch or not is_active(run)):
                return f"epoch {epoch} has {count} ledger rows"
    return ""


def _in_stream(stream: Stream | None, run: Run, s: State, case: Case) -> str:
    if stream is None:
        return ""
    if stream.mode != "closed":
        shown, _ = scripts.content(stream.entries, base_of(run.admission) if case.keeps("reset_base") else 0)
        return f"a reader who joins now sees a text with holes: {shown}" if _has_holes(shown) else ""
    if stream.epoch != run.epoch:
        return ""
    if is_active(run):
        return f"terminal event while epoch {run.epoch} goes on"
    named = stream.entries[-1].last
    shown, last = scripts.content(stream.entries, base_of(run.admission))
    if (named == last or not case.keeps("last_id")) and shown != run.text:
        return f"the stream shows {shown}, the database has {run.text}"
    if named == (run.epoch, INCOMPLETE) and s.incarnation == 0 and not case.kinds & {"down", "roll"}:
        return "the stream lacks something although Redis lost nothing"
    return ""


def broken_step(before: State, step: Step) -> str:
    """What is wrong in this step; empty when nothing is."""
    if step.state.runs is before.runs:
        return ""
    for old, new in zip(before.runs, step.state.runs, strict=True):
        if old is None or new is None or old is new or old == new:
            continue
        if new.epoch < old.epoch:
            return "an epoch went back"
        if old.status == "done" or (old.status in TERMINAL and step.label is not web.RETRIED):
            return f"a terminal state changed: {old.status} to {new.status}"
    return ""


def at_rest(s: State) -> bool:
    """Whether everything is done: runs over, holds settled, streams closed, followers answered."""
    if s.web or s.queue or any(worker != IDLE_WORKER for worker in s.workers):
        return False
    if any(reaper.at != "idle" for reaper in s.reapers) or (s.follower is not None and not s.follower.ended):
        return False
    for run, stream in zip(s.runs, s.streams, strict=True):
        if run is None:
            continue
        if is_active(run) or (stream is not None and (stream.epoch, stream.mode) != (run.epoch, "closed")):
            return False
    # Redis may have forgotten the account of a user who has nothing under way: the next admission rebuilds it.
    account = s.account
    return account is None or (not account.holds and account.used == sum(row.tokens for row in s.ledger))


def not_at_rest(s: State) -> str:
    """What keeps a state from rest for ever."""
    for run in s.runs:
        if run is not None and is_active(run):
            return f"never comes to rest: a run stays {run.status}"
    account = s.account
    if account is not None and (account.holds or account.used != sum(row.tokens for row in s.ledger)):
        return f"never comes to rest: {account}"
    return "never comes to rest: a stream or a follower stays open"
