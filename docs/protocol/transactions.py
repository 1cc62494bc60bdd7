"""The database's transactions, each one step (inference/runs.py, inference/admission.py)."""

from docs.protocol.case import Case
from docs.protocol.state import (
    CONFIRMED,
    Hold,
    Load,
    Row,
    Run,
    State,
    Text,
    base_of,
    is_active,
    put,
)


def rebuild(s: State, case: Case) -> Load:
    """What the rebuild's transaction reads; it also raises the generation to the load's."""
    live = [(turn, run) for turn, run in enumerate(s.runs) if run is not None and is_active(run)]
    covered = {(turn, run.admission) for turn, run in live} if case.keeps("rebuild_live") else set()
    return Load(
        generation=s.generation + 1,
        used=sum(row.tokens for row in s.ledger if (row.turn, row.admission) not in covered),
        holds=tuple(sorted(Hold(turn, base_of(run.admission), run.admission, CONFIRMED) for turn, run in live)),
        incarnation=s.incarnation,
    )


def run_of(s: State, turn: int) -> Run:
    run = s.runs[turn]
    assert run is not None
    return run


def owns(s: State, turn: int, epoch: int) -> bool:
    """Whether the run streams at this epoch: the condition of everything that an owner commits."""
    run = run_of(s, turn)
    return run.status == "streaming" and run.epoch == epoch


def change(s: State, turn: int, run: Run) -> State:
    return s._replace(runs=put(s.runs, turn, run))


def end(s: State, turn: int, *, status: str, text: Text, own_tokens: int) -> State:
    """End a streaming run: terminal state, message and ledger row."""
    run = run_of(s, turn)
    s = change(s, turn, run._replace(status=status, text=text))
    return record(s, turn, epoch=run.epoch, admission=run.admission, tokens=own_tokens, reason=status)


def record(s: State, turn: int, *, epoch: int, admission: int, tokens: int, reason: str) -> State:
    if any(row.turn == turn and row.epoch == epoch for row in s.ledger):
        return s._replace(wrong=f"second ledger row for epoch {epoch}")
    return s._replace(ledger=tuple(sorted((*s.ledger, Row(turn, epoch, admission, tokens, reason)))))


def take_over(s: State, case: Case, *, turn: int, epoch: int, incarnation: int, published: Text | None) -> State | None:
    """H (c): the run waits again at the next epoch, or is over. None when it is not to be had."""
    run = run_of(s, turn)
    if not owns(s, turn, epoch) or (case.keeps("cas_inc") and run.incarnation != incarnation):
        return None
    text = run.carry if published is None else published
    own_tokens = sum(1 for token in text if token // 10 == epoch)
    if (run.cancel and case.keeps("cancel_reap")) or epoch >= case.max_epochs:
        return end(s, turn, status="cancelled" if run.cancel else "interrupted", text=text, own_tokens=own_tokens)
    if run.cancel:
        s = s._replace(wrong="a cancelled run goes on at a new epoch")
    after = epoch + 1 if case.keeps("db_epoch") else epoch
    s = change(s, turn, run._replace(status="queued", epoch=after, carry=text))
    return record(s, turn, epoch=epoch, admission=run.admission, tokens=own_tokens, reason="lost")
