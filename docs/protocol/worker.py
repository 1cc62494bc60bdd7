"""A worker's slot: claim, open, publish, settle (W1–W5, T1–T4), and hand over when it is told to stop (H)."""

from collections.abc import Iterator
from typing import NamedTuple

from docs.protocol import scripts, transactions
from docs.protocol.case import Case
from docs.protocol.state import Late, State, Step, Worker, bag, base_of, charged, put, replace
from docs.protocol.transactions import owns, run_of

# Between claim and settlement a worker renews its lease.
HOLDING = ("open", "run", "verify", "reopen", "drain", "seal", "hand over")
# A slot whose run is off its hands asks for the next before it waits for a ticket.
ASKING = Worker("ask")
IDLE = Worker()


class _Slot(NamedTuple):
    """A slot in one state."""

    s: State
    case: Case
    now: Worker

    def goes(self, to: Worker, s: State, label: str, *values: object, fault: bool = False) -> Step:
        s = s._replace(workers=replace(s.workers, self.now, to), faults=s.faults - fault)
        actor = f"worker epoch {self.now.epoch}" if self.now.epoch else "worker"
        return Step("fault" if fault else "system", s, actor, label, values)

    def stops(self, label: str) -> Step:
        """Nothing more is to be done for this epoch."""
        return self.goes(ASKING, self.s, label)


def steps(s: State, case: Case) -> Iterator[Step]:
    for worker in dict.fromkeys(s.workers):
        slot = _Slot(s, case, worker)
        match worker.at:
            case "idle" | "ask":
                yield from _claim(slot)
            case "own":
                yield from _own(slot)
            case "open" | "reopen":
                yield from _open(slot)
            case "run":
                yield from _generate(slot)
                yield from _append(slot)
                yield from _end(slot)
            case "verify":
                yield from _generate(slot)
                yield from _verify(slot)
                yield from _end(slot)
            case "close":
                yield from _close(slot)
            case "settle":
                tokens = charged(s, worker.turn, worker.admission)
                after = scripts.settle(s, case, turn=worker.turn, admission=worker.admission, tokens=tokens)
                yield slot.goes(ASKING, after, "SETTLE admission %d: %d", worker.admission, tokens)
            case _:
                yield from _hand_over(slot)


def holds_lease(s: State, turn: int, epoch: int) -> bool:
    return any(worker.at in HOLDING and worker.turn == turn and worker.epoch == epoch for worker in s.workers)


def _claim(slot: _Slot) -> Iterator[Step]:
    """W1, in an incarnation that is remembered for W2."""
    s, _, worker = slot
    takes = worker.at == "idle"
    if takes and not s.tickets:
        return
    taken = s._replace(tickets=s.tickets - takes)
    if not s.queue:
        yield slot.goes(IDLE, taken, "CLAIM: the queue is empty")
    for turn, epoch in s.queue:
        after = taken._replace(queue=tuple(entry for entry in s.queue if entry != (turn, epoch)))
        if not slot.case.keeps("db_epoch"):
            epoch = s.counted[turn] + 1
            after = after._replace(counted=put(s.counted, turn, epoch))
        to = Worker("own", turn, epoch, incarnation=s.incarnation)
        yield slot.goes(to, after, "CLAIM: turn %d epoch %d", turn, epoch)


def _own(slot: _Slot) -> Iterator[Step]:
    """W2."""
    s, case, worker = slot
    turn, epoch = worker.turn, worker.epoch
    run = run_of(s, turn)
    if run.status != "queued" or (run.epoch != epoch and case.keeps("db_epoch")):
        yield slot.stops("DB: 0 rows, drop it")
        return
    base, carry = base_of(run.admission), run.carry
    if not case.keeps("carry_db") and epoch > 1:
        stream = s.streams[turn]
        carry = scripts.content(stream.entries, base)[0] if stream is not None else ()
    owned = run._replace(
        status="streaming", epoch=epoch, claimed=run.claimed | 1 << epoch, incarnation=worker.incarnation
    )
    to = Worker("open", turn, epoch, base, carry, incarnation=worker.incarnation)
    yield slot.goes(to, transactions.change(s, turn, owned), "DB COMMIT streaming, carry %s", carry)


def _open(slot: _Slot) -> Iterator[Step]:
    """W3, and W5's second half."""
    s, case, worker = slot
    if case.keeps("open_inc") and worker.incarnation != s.incarnation:
        yield slot.goes(worker._replace(at="verify", incarnation=0), s, "OPEN: another incarnation")
        return
    number, text = worker.number + 1, worker.whole
    if case.may("lost", s):
        # It may have written two entries, and still may.
        passed = worker.number + 2 if case.keeps("skip_numbers") else worker.number
        late = Late("open", worker.turn, worker.epoch, worker.base, number, text)
        to = worker._replace(at="verify", number=passed, flushed=worker.made, incarnation=0)
        yield slot.goes(to, _on_its_way(s, case, late), "OPEN at %d: no reply", number, fault=True)
    opened = scripts.open_epoch(
        s, case, turn=worker.turn, epoch=worker.epoch, base=worker.base, number=number, text=text
    )
    if opened is None:
        yield slot.stops("OPEN refused, stop")
        return
    last, after = opened
    to = worker._replace(at="run", number=last, flushed=worker.made, incarnation=0)
    yield slot.goes(to, after, "OPEN at %d, text so far %s", number, text)


def _generate(slot: _Slot) -> Iterator[Step]:
    """What the engine does, and what is asked of it."""
    s, case, worker = slot
    if worker.order:
        return
    if len(worker.carry) + worker.made < case.tokens:
        token = worker.own(worker.made, worker.made + 1)
        yield slot.goes(worker._replace(made=worker.made + 1), s, "engine: token %d", *token)
    if owns(s, worker.turn, worker.epoch) and run_of(s, worker.turn).cancel:
        yield slot.goes(worker._replace(order="cancelled"), s, "sees the cancel flag, aborts")
    if case.may("engine", s):
        yield slot.goes(worker._replace(order="failed"), s, "the engine fails", fault=True)
    if case.may("drain", s):
        yield slot.goes(worker._replace(order="drain"), s, "is told to stop, aborts", fault=True)


def _append(slot: _Slot) -> Iterator[Step]:
    """W4."""
    s, case, worker = slot
    if worker.flushed == worker.made:
        return
    number, text = worker.number + 1, worker.own(worker.flushed, worker.made)
    sent = worker._replace(number=number, flushed=worker.made)
    adrift = sent._replace(at="verify")
    if case.may("lost", s):
        late = Late("append", worker.turn, worker.epoch, worker.base, number, text)
        to = adrift if case.keeps("no_resend") else worker._replace(number=number)
        yield slot.goes(to, _on_its_way(s, case, late), "APPEND %d %s: no reply", number, text, fault=True)
    reply, after = scripts.append(s, case, turn=worker.turn, epoch=worker.epoch, number=number, text=text)
    match reply:
        case "ok":
            yield slot.goes(sent, after, "APPEND %d %s", number, text)
        case "stop":
            yield slot.stops("APPEND refused, stop")
        case _:
            yield slot.goes(adrift, s, "APPEND %d: %s", number, reply)


def _verify(slot: _Slot) -> Iterator[Step]:
    """W5's first half: still the owner? It may then publish in the incarnation that is there now."""
    s, _, worker = slot
    if not owns(s, worker.turn, worker.epoch):
        yield slot.stops("DB verify: not the owner any more, stop")
        return
    run = run_of(s, worker.turn)._replace(incarnation=s.incarnation)
    to = worker._replace(at="reopen", incarnation=s.incarnation)
    yield slot.goes(to, transactions.change(s, worker.turn, run), "DB COMMIT verify: incarnation %d", s.incarnation)


def _end(slot: _Slot) -> Iterator[Step]:
    """T1, T2. Past the outage bound, an answer is committed without its tail in the stream."""
    s, case, worker = slot
    finished = len(worker.carry) + worker.made == case.tokens
    if not finished and not worker.order:
        return
    is_flushed = worker.at == "run" and worker.flushed == worker.made
    past_bound = not is_flushed and case.may("down", s)
    if not finished and worker.order == "drain":
        step = slot.goes(worker._replace(at="drain", number=0, flushed=0), s, "hands over")
        # Where something is not in the stream yet, it waits for a moment, no longer.
        if is_flushed:
            yield step
        elif worker.at == "verify":
            yield step._replace(nature="client")
        return
    if not is_flushed and not past_bound and case.keeps("flush_first"):
        return
    if not owns(s, worker.turn, worker.epoch):
        if not past_bound:
            yield slot.stops("DB: 0 rows, stop")
        return
    status = "done" if finished else worker.order
    admission = run_of(s, worker.turn).admission
    after = transactions.end(s, worker.turn, status=status, text=worker.whole, own_tokens=worker.made)
    to = Worker("close", worker.turn, worker.epoch, worker.base, admission=admission, text=worker.whole)
    outage = ", its tail unpublished" if past_bound else ""
    yield slot.goes(to, after, "DB COMMIT %s, text %s%s", status, worker.whole, outage, fault=past_bound)


def _close(slot: _Slot) -> Iterator[Step]:
    """T3. Whether it arrived or not, T4 follows."""
    s, case, worker = slot
    to = worker._replace(at="settle", text=None, base=0)
    if case.may("lost", s):
        late = Late("close", worker.turn, worker.epoch, worker.base, 0, worker.text or ())
        yield slot.goes(to, _on_its_way(s, case, late), "CLOSE: no reply", fault=True)
    after = scripts.close(s, case, turn=worker.turn, epoch=worker.epoch, base=worker.base, text=worker.text)
    yield slot.goes(to, after, "CLOSE epoch %d", worker.epoch)


def _hand_over(slot: _Slot) -> Iterator[Step]:
    """H by the owner itself, which is gone afterwards."""
    s, case, worker = slot
    turn, epoch = worker.turn, worker.epoch
    match worker.at:
        case "drain" if not owns(s, turn, epoch):
            yield slot.goes(IDLE, s, "DB: not the owner any more, goes")
        case "drain":
            to = Worker("seal", turn, epoch, worker.base, incarnation=run_of(s, turn).incarnation)
            yield slot.goes(to, s, "DB: streaming, incarnation %d", to.incarnation)
        case "seal":
            published, after = scripts.seal(
                s, case, turn=turn, epoch=epoch, base=worker.base, fences=case.keeps("drain_seal")
            )
            yield slot.goes(worker._replace(at="hand over", text=published), after, "SEAL: published %s", published)
        case "hand over":
            taken = transactions.take_over(
                s, case, turn=turn, epoch=epoch, incarnation=worker.incarnation, published=worker.text
            )
            if taken is None:
                yield slot.goes(IDLE, s, "DB: 0 rows, goes")
                return
            run = run_of(taken, turn)
            at = "requeue" if run.status == "queued" else "close"
            to = Worker(at, turn, run.epoch, worker.base, admission=run.admission, text=run.text)
            yield slot.goes(to, taken, "DB COMMIT %s epoch %d", run.status, run.epoch)
        case "requeue":
            after = scripts.enqueue(s, case, turn=turn, epoch=epoch, admission=worker.admission)
            yield slot.goes(IDLE, after, "ENQUEUE epoch %d, ticket; goes", epoch)


def _on_its_way(s: State, case: Case, late: Late) -> State:
    return scripts.forget_void(s._replace(late=bag((*s.late, late))), case)
