"""The reaper: rules R1–R6 and H, from what it sees to what it does, one atomic step at a time (inference/reaper.py)."""

from collections.abc import Iterator
from typing import NamedTuple

from docs.protocol import scripts, transactions
from docs.protocol.case import Case
from docs.protocol.state import (
    CONFIRMED,
    TERMINAL,
    Account,
    Hold,
    Reaper,
    State,
    Step,
    base_of,
    charged,
    is_active,
    replace,
)
from docs.protocol.transactions import run_of
from docs.protocol.worker import holds_lease

IDLE = Reaper()


class _Pass(NamedTuple):
    """A reaper in one state."""

    s: State
    case: Case
    now: Reaper

    def goes(self, to: Reaper, label: str, *values: object, s: State | None = None, fault: bool = False) -> Step:
        s = self.s if s is None else s
        s = s._replace(reapers=replace(s.reapers, self.now, to), faults=s.faults - fault)
        return Step("fault" if fault else "system", s, "reaper", label, values)


def steps(s: State, case: Case) -> Iterator[Step]:
    for reaper in dict.fromkeys(s.reapers):
        act = _Pass(s, case, reaper)
        if reaper.at == "idle":
            yield from _see_runs(act)
            yield from _see_accounts(act)
            if case.keeps("rule_ticket") and s.queue and not s.tickets:
                yield act.goes(IDLE, "sees a queue without a ticket: ticket", s=s._replace(tickets=1))
        else:
            yield from _act(act)


def _see_runs(act: _Pass) -> Iterator[Step]:
    """R1, R2, R4."""
    s, case, _ = act
    for turn, run in enumerate(s.runs):
        if run is None:
            continue
        if run.status == "queued":
            if case.keeps("rule_queue") and (turn, run.epoch) not in s.queue:
                to = Reaper("enqueue", turn, run.epoch, run.admission)
                yield act.goes(to, "sees turn %d queued and not in Redis", turn)
            if case.deadline:
                failed = transactions.change(s, turn, run._replace(status="failed", text=run.carry))
                to = Reaper("close", turn, run.epoch, run.admission, text=run.carry, settles=True)
                step = act.goes(to, "DB COMMIT failed: turn %d waited too long", turn, s=failed)
                yield step._replace(nature="client")
        elif run.status == "streaming" and case.keeps("rule_lease"):
            to = Reaper("seal", turn, run.epoch, run.admission, run.incarnation)
            if not holds_lease(s, turn, run.epoch):
                yield act.goes(to, "sees the lease of epoch %d gone", run.epoch)
            elif case.may("lease", s):
                # Its process hangs, or its engine does: it may come back at any time.
                yield act.goes(to, "sees the lease of epoch %d lapsed, whose worker lives", run.epoch, fault=True)
        elif run.status in TERMINAL and case.keeps("rule_close"):
            stream = s.streams[turn]
            if stream is not None and (stream.epoch, stream.mode == "closed") < (run.epoch, True):
                to = Reaper("close", turn, run.epoch, run.admission)
                yield act.goes(to, "sees the open stream of turn %d, which is over", turn)


def _see_accounts(act: _Pass) -> Iterator[Step]:
    """R3, R5."""
    s, case, _ = act
    account = s.account
    if account is None:
        if case.keeps("rule_rebuild") and any(run is not None and is_active(run) for run in s.runs):
            yield act.goes(Reaper("rebuild"), "sees the account absent")
        return
    for hold in account.holds:
        yield from _see_hold(act, account, hold)
    if case.keeps("rule_rebuild") and account.generation < s.generation and not _is_loading(s):
        yield act.goes(Reaper("rebuild"), "sees the account behind the database")


def _see_hold(act: _Pass, account: Account, hold: Hold) -> Iterator[Step]:
    s, case, _ = act
    run = s.runs[hold.turn]
    if run is not None:
        if run.admission == hold.admission:
            is_over = not is_active(run)
        else:
            is_over = hold.state == CONFIRMED and case.keeps("rule_settle_old")
        if is_over and case.keeps("rule_settle"):
            to = Reaper("settle", hold.turn, admission=hold.admission)
            yield act.goes(to, "sees a hold that is over, admission %d", hold.admission)
    if hold.state == CONFIRMED:
        return
    # Past its time to live. Whoever made it may be slow, though.
    is_slow = any(web.turn == hold.turn and web.at in ("commit", "enqueue", "rebuild", "load") for web in s.web)
    if is_slow and not case.may("pend", s):
        return
    if not case.keeps("db_expiry"):
        dropped = scripts.settle(s, case, turn=hold.turn, admission=hold.admission, tokens=0)
        yield act.goes(IDLE, "time to live: hold %d is dropped", hold.admission, s=dropped, fault=is_slow)
    elif (run is None or run.admission != hold.admission) and not _is_loading(s):
        yield act.goes(Reaper("rebuild"), "sees an unconfirmed old hold %d", hold.admission, fault=is_slow)


def _is_loading(s: State) -> bool:
    """Whoever is about to load an account is given the time: that is what the rebuilder's key in Redis is for."""
    return any(web.at == "load" for web in s.web) or any(reaper.at == "load" for reaper in s.reapers)


def _act(act: _Pass) -> Iterator[Step]:
    s, case, reaper = act
    turn, epoch, base = reaper.turn, reaper.epoch, base_of(reaper.admission)
    match reaper.at:
        case "enqueue":
            after = scripts.enqueue(s, case, turn=turn, epoch=epoch, admission=reaper.admission)
            yield act.goes(IDLE, "ENQUEUE epoch %d, ticket", epoch, s=after)
        case "seal":
            published, after = scripts.seal(s, case, turn=turn, epoch=epoch, base=base, fences=case.keeps("seal"))
            to = reaper._replace(at="take over", text=published)
            yield act.goes(to, "SEAL epoch %d: published %s", epoch, published, s=after)
        case "take over":
            taken = transactions.take_over(
                s, case, turn=turn, epoch=epoch, incarnation=reaper.incarnation, published=reaper.text
            )
            if taken is None:
                yield act.goes(IDLE, "DB: 0 rows")
                return
            run = run_of(taken, turn)
            to = Reaper("enqueue", turn, run.epoch, run.admission)
            if run.status != "queued":
                to = Reaper("close", turn, epoch, run.admission, text=run.text, settles=True)
            yield act.goes(to, "DB COMMIT %s epoch %d", run.status, run.epoch, s=taken)
        case "close":
            to = Reaper("settle", turn, admission=reaper.admission) if reaper.settles else IDLE
            after = scripts.close(s, case, turn=turn, epoch=epoch, base=base, text=reaper.text)
            yield act.goes(to, "CLOSE epoch %d", epoch, s=after)
        case "settle":
            tokens = charged(s, turn, reaper.admission)
            after = scripts.settle(s, case, turn=turn, admission=reaper.admission, tokens=tokens)
            yield act.goes(IDLE, "SETTLE admission %d", reaper.admission, s=after)
        case "rebuild":
            load = transactions.rebuild(s, case)
            yield act.goes(
                Reaper("load", load=load),
                "DB rebuild: generation %d, used %d, holds %s",
                load.generation,
                load.used,
                load.holds,
                s=s._replace(generation=load.generation),
            )
        case "load":
            assert reaper.load is not None
            after = scripts.load(s, case, reaper.load)
            if case.may("resend", s):
                yield act.goes(reaper, "LOAD: no reply, the client library sends it again", s=after, fault=True)
            yield act.goes(IDLE, "LOAD generation %d", reaper.load.generation, s=after)
