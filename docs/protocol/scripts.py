"""The scripts that Redis runs, each one step (inference/cell/lua)."""

from typing import NamedTuple

from docs.protocol.case import Case
from docs.protocol.state import (
    CONFIRMED,
    INCOMPLETE,
    SHARED,
    TERMINAL,
    TERMINAL_NUMBER,
    UNCONFIRMED,
    UNKNOWN,
    Account,
    Entry,
    Hold,
    Id,
    Late,
    Load,
    State,
    Stream,
    Text,
    base_of,
    put,
)


class Verdict(NamedTuple):
    """ADMIT's reply: ok · absent · stale · refused."""

    word: str
    admission: int = 0
    generation: int = 0


def admit(s: State, case: Case, *, turn: int, base: int, at_least: int) -> tuple[Verdict, State]:
    account = s.account
    if account is None:
        return Verdict("absent"), s
    if account.generation < at_least:
        return Verdict("stale"), s
    for hold in account.holds:
        if hold.turn == turn and (hold.base == base or not case.keeps("adm_id")):
            if hold.state == UNCONFIRMED:
                s = _with_hold(s, account, hold, hold._replace(state=SHARED))
            return Verdict("ok", hold.admission, account.generation), s
    if (
        account.used + (len(account.holds) + 1) * case.reserve > case.budget
        or len(account.holds) + 1 > case.concurrency
    ):
        return Verdict("refused"), s
    admission = base * 100 + s.next_admission
    s = _with_hold(s, account, None, Hold(turn, base, admission, UNCONFIRMED))
    return Verdict("ok", admission, account.generation), s._replace(next_admission=s.next_admission + 1)


def settle(s: State, case: Case, *, turn: int, admission: int, tokens: int) -> State:
    account = s.account
    if account is None:
        return s
    for hold in account.holds:
        if hold.turn == turn and (hold.admission == admission or not case.keeps("adm_id")):
            return _with_hold(s, account._replace(used=account.used + tokens), hold, None)
    return s


def release(s: State, case: Case, *, turn: int, admission: int) -> State:
    for hold in s.account.holds if s.account is not None else ():
        if hold.turn == turn and (hold.admission == admission or not case.keeps("adm_id")):
            if (hold.state == SHARED and case.keeps("shared")) or (hold.state == CONFIRMED and case.keeps("confirmed")):
                return s
            return settle(s, case, turn=turn, admission=admission, tokens=0)
    return s


def load(s: State, case: Case, rebuilt: Load) -> State:
    if case.keeps("load_inc") and rebuilt.incarnation != s.incarnation:
        return s  # it lands among the keys of a dead incarnation
    if s.account is None or s.account.generation < rebuilt.generation:
        return s._replace(account=Account(rebuilt.generation, rebuilt.used, rebuilt.holds))
    return s


def enqueue(s: State, case: Case, *, turn: int, epoch: int, admission: int) -> State:
    """ENQUEUE, and the ticket after it: a process that dies in between is a lost ticket."""
    account, stream = s.account, s.streams[turn]
    if case.keeps("reset_base") and base_of(admission) == epoch and (stream is None or stream.epoch < epoch):
        s = _with_stream(s, case, turn, Stream(epoch, "wait", ()))
    for hold in account.holds if account is not None else ():
        if account is not None and hold.turn == turn and hold.admission == admission:
            s = _with_hold(s, account, hold, hold._replace(state=CONFIRMED))
    queue = s.queue if (turn, epoch) in s.queue else tuple(sorted((*s.queue, (turn, epoch))))
    return s._replace(queue=queue, tickets=min(2, s.tickets + 1))


def open_epoch(
    s: State, case: Case, *, turn: int, epoch: int, base: int, number: int, text: Text
) -> tuple[int, State] | None:
    """The number of the last entry it wrote, or None when refused."""
    stream = s.streams[turn]
    again = stream is not None and stream.epoch == epoch and stream.mode != "wait"
    if stream is not None:
        if stream.epoch > epoch:
            return None
        if again and stream.mode == "open":
            passed = case.keeps("numbers") and _last_number(stream, epoch) >= number
            if passed or not case.keeps("own_reopen"):
                return None
        elif again and case.keeps("seal_open"):
            return None
    entries = stream.entries if stream is not None else ()
    shown, last = content(entries, _base(case, base))
    if stream is None or stream.mode == "closed":
        continues = False
    elif not case.keeps("open_compare"):
        continues = epoch > 1
    else:
        continues = epoch > base and number == 1 and last != (0, 0) and shown == text
    if again and not case.keeps("show_anew"):
        continues = True
    written = [Entry(epoch, number, "started", continues=continues, last=last)]
    if not continues and text:
        written.append(Entry(epoch, number + 1, "delta", text))
    s = _with_stream(s, case, turn, Stream(epoch, "open", (*entries, *written)))
    return written[-1].number, _seen(s, turn, epoch)


def append(s: State, case: Case, *, turn: int, epoch: int, number: int, text: Text) -> tuple[str, State]:
    """Replies ok · absent · stop · error (a number that the stream has passed)."""
    stream = s.streams[turn]
    entries = stream.entries if stream is not None else ()
    if stream is None or (stream.epoch == epoch and stream.mode == "wait"):
        if case.keeps("append_missing") or stream is not None:
            return "absent", s
    elif stream.epoch != epoch or stream.mode != "open":
        return "stop", s
    elif case.keeps("numbers") and _last_number(stream, epoch) >= number:
        return "error", s
    s = _with_stream(s, case, turn, Stream(epoch, "open", (*entries, Entry(epoch, number, "delta", text))))
    return "ok", _seen(s, turn, epoch)


def seal(s: State, case: Case, *, turn: int, epoch: int, base: int, fences: bool) -> tuple[Text | None, State]:
    """What was published; None where the stream is lost. `fences` is False only where a rule is left out."""
    stream = s.streams[turn]
    if stream is None:
        return None, _with_stream(s, case, turn, Stream(epoch, "sealed", ())) if fences else s
    text, last = content(stream.entries, _base(case, base))
    if fences and (stream.epoch < epoch or (stream.epoch == epoch and stream.mode != "closed")):
        s = _with_stream(s, case, turn, Stream(epoch, "sealed", stream.entries))
    return (None if last == (0, 0) else text), s


def close(s: State, case: Case, *, turn: int, epoch: int, base: int, text: Text | None) -> State:
    """CLOSE; with text None the caller does not know the answer."""
    stream = s.streams[turn]
    entries = stream.entries if stream is not None else ()
    shown, last = content(entries, _base(case, base))
    if text != shown:
        last = (epoch, UNKNOWN if text is None else INCOMPLETE)
    if stream is not None and stream.epoch >= epoch:
        if stream.mode == "closed" or (stream.epoch > epoch and case.keeps("close_epoch")):
            return s
        epoch = stream.epoch
    end = Entry(epoch, TERMINAL_NUMBER, "terminal", last=last)
    return _with_stream(s, case, turn, Stream(epoch, "closed", (*entries, end)))


def content(entries: tuple[Entry, ...], base: int) -> tuple[Text, Id]:
    """What a page shows of these entries, and the id of the last one that shows something."""
    text: Text = ()
    last = (0, 0)
    for entry in entries:
        if entry.epoch < base or entry.kind == "terminal":
            continue
        if entry.kind == "delta":
            text += entry.text
        elif not entry.continues:
            text = ()
        last = (entry.epoch, entry.number)
    return text, last


def _base(case: Case, base: int) -> int:
    return base if case.keeps("reset_base") else 0


def _last_number(stream: Stream, epoch: int) -> int:
    entry = stream.entries[-1] if stream.entries else None
    return entry.number if entry is not None and entry.epoch == epoch else 0


def _with_stream(s: State, case: Case, turn: int, stream: Stream) -> State:
    s = s._replace(streams=put(s.streams, turn, stream))
    return forget_void(s, case) if s.late else s


def forget_void(s: State, case: Case) -> State:
    """Leave out the late commands that cannot do anything any more: there are fewer states then."""
    late = tuple(command for command in s.late if case.without or not _is_void(command, s.streams[command.turn]))
    return s if len(late) == len(s.late) else s._replace(late=late)


def _is_void(late: Late, stream: Stream | None) -> bool:
    if stream is None or stream.epoch < late.epoch:
        return False
    if stream.epoch > late.epoch or stream.mode == "closed":
        return True
    if late.command == "close":
        return False
    return stream.mode == "sealed" or (stream.mode == "open" and _last_number(stream, late.epoch) >= late.number)


def _with_hold(s: State, account: Account, old: Hold | None, new: Hold | None) -> State:
    holds = [hold for hold in account.holds if hold != old]
    if new is not None:
        holds.append(new)
    return s._replace(account=account._replace(holds=tuple(sorted(holds))))


def _seen(s: State, turn: int, epoch: int) -> State:
    """Redis took a write of this epoch: it must be the running one. A late one of an epoch that ended the run itself
    must at least be true: part of the answer."""
    run, stream = s.runs[turn], s.streams[turn]
    assert run is not None
    assert stream is not None
    if run.epoch == epoch and run.status == "streaming":
        return s
    if run.epoch == epoch and run.status in TERMINAL and run.text is not None:
        shown, _ = content(stream.entries, base_of(run.admission))
        if run.text[: len(shown)] == shown:
            return s
    return s._replace(wrong=f"stale epoch {epoch} became visible (database: {run.status}, epoch {run.epoch})")
