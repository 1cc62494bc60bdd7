"""Requests: posting a turn (P1–P4, RB), cancelling (C) and retrying (Y) it; one atomic step at a time."""

from collections.abc import Iterator
from typing import NamedTuple

from docs.protocol import scripts, transactions
from docs.protocol.case import Case
from docs.protocol.state import TERMINAL, Load, Run, State, Step, Web, bag, base_of, charged, without
from docs.protocol.transactions import run_of

RETRIED = "DB COMMIT queued epoch %d"


class _Request(NamedTuple):
    """A request, and those beside it."""

    now: Web
    others: tuple[Web, ...]

    def goes(self, s: State, label: str, *values: object, to: Web | None = None, fault: bool = False) -> Step:
        """On to `to`; None: the client has its answer."""
        web = self.others if to is None else bag((*self.others, to))
        s = s._replace(web=web, faults=s.faults - fault)
        actor = f"web {self.now.kind} {self.now.turn}"
        return Step("fault" if fault else "system", s, actor, label, values)


def steps(s: State, case: Case) -> Iterator[Step]:
    for web in dict.fromkeys(s.web):
        yield from steps_of(s, case, web, others=without(s.web, web))


def steps_of(s: State, case: Case, web: Web, *, others: tuple[Web, ...]) -> Iterator[Step]:
    """The next steps of one request, which need not be under way yet."""
    request = _Request(web, others)
    match web.at:
        case "admit":
            yield from _admit(s, case, request)
        case "rebuild":
            load = transactions.rebuild(s, case)
            yield request.goes(
                s._replace(generation=load.generation), *_rebuilt(load), to=web._replace(at="load", load=load)
            )
        case "load":
            assert web.load is not None
            after = scripts.load(s, case, web.load)
            if case.may("resend", s):
                yield request.goes(after, "LOAD: no reply, the client library sends it again", to=web, fault=True)
            to = web._replace(at="admit", load=None)
            yield request.goes(after, "LOAD generation %d", web.load.generation, to=to)
        case "release":
            s = scripts.release(s, case, turn=web.turn, admission=web.admission)
            yield request.goes(s, "RELEASE admission %d", web.admission)
        case "enqueue":
            epoch = web.epoch if web.kind == "retry" else 1
            s = scripts.enqueue(s, case, turn=web.turn, epoch=epoch, admission=web.admission)
            yield request.goes(s, "ENQUEUE epoch %d, ticket; 202", epoch)
        case _ if web.kind == "post":
            yield from _post(s, case, request)
        case _ if web.kind == "cancel":
            yield from _cancel(s, case, request)
        case _:
            yield from _retry(s, case, request)


def _rebuilt(load: Load) -> tuple[str, int, int, object]:
    return "DB rebuild: generation %d, used %d, holds %s", load.generation, load.used, load.holds


def _admit(s: State, case: Case, request: _Request) -> Iterator[Step]:
    web = request.now
    base = web.epoch + 1 if web.kind == "retry" else 1
    verdict, after = scripts.admit(s, case, turn=web.turn, base=base, at_least=web.at_least)
    if verdict.word == "ok":
        to = web._replace(at="commit", admission=verdict.admission, generation=verdict.generation)
        yield request.goes(after, "ADMIT: admission %d, generation %d", *verdict[1:], to=to)
    elif verdict.word == "absent" or (verdict.word == "stale" and not case.keeps("no_duel")):
        yield request.goes(s, "ADMIT: the account is %s", verdict.word, to=web._replace(at="rebuild"))
    elif verdict.word == "refused" and web.kind == "post":
        yield request.goes(s, "ADMIT refused", to=Web("post", "refused", web.turn))
    elif verdict.word == "refused":
        yield request.goes(s, "ADMIT refused: 429")
    # A stale account is waited for; in real life not for long, then 503.


def _post(s: State, case: Case, request: _Request) -> Iterator[Step]:
    web, turn = request.now, request.now.turn
    run = s.runs[turn]
    match web.at:
        case "look" if run is not None and case.keeps("dup_lookup"):
            yield request.goes(s, "DB: the turn is known: 200")
        case "look":
            yield request.goes(s, "DB: the turn is unknown", to=web._replace(at="admit"))
        case "refused" if run is not None:
            if not case.keeps("dup_lookup"):
                s = s._replace(wrong="the repeat of an accepted turn was answered 429")
            yield request.goes(s, "DB: the turn is known: 200")
        case "refused":
            yield request.goes(s, "429")
        case "commit":
            yield from _accept(s, case, request)


def _accept(s: State, case: Case, request: _Request) -> Iterator[Step]:
    """P3. The account is locked and its generation compared first, as the transaction does."""
    web, turn = request.now, request.now.turn
    run = s.runs[turn]
    if case.may("refuse", s):
        # Something else stands in the way: the chat is busy or has moved, the database fails.
        yield request.goes(s, "DB refuses, nothing is stored", to=web._replace(at="release"), fault=True)
    if case.keeps("gen_fence") and s.generation != web.generation:
        to = Web("post", "look", turn, at_least=s.generation)
        yield request.goes(s, "DB: the generation is %d by now", s.generation, to=to)
    elif run is not None and run.admission == web.admission:
        yield request.goes(s, "DB: the turn exists, on the same hold: 200")
    elif run is not None:
        yield request.goes(s, "DB: the turn exists", to=Web("post", "release", turn, admission=web.admission))
    else:
        after = transactions.change(s, turn, Run("queued", 1, False, (), web.admission, None, 0, 0))
        to = Web("post", "enqueue", turn, admission=web.admission)
        yield request.goes(after, "DB COMMIT queued epoch 1", to=to)
        if case.may("unsure", s):
            kept = None if case.keeps("keep_unsure") else to._replace(at="release")
            yield request.goes(after, "DB COMMIT queued epoch 1, unconfirmed: 503", to=kept, fault=True)


def _cancel(s: State, case: Case, request: _Request) -> Iterator[Step]:
    web, turn = request.now, request.now.turn
    run = run_of(s, turn)
    match web.at:
        case "start" if run.status in TERMINAL:
            yield request.goes(s, "DB: it is over")
        case "start" if run.status == "queued":
            to = Web("cancel", "close", turn, run.epoch, admission=run.admission, text=run.carry)
            after = transactions.change(s, turn, run._replace(status="cancelled", text=run.carry))
            yield request.goes(after, "DB COMMIT cancelled, it was queued at epoch %d", run.epoch, to=to)
        case "start" if case.keeps("cancel_owner"):
            yield request.goes(transactions.change(s, turn, run._replace(cancel=True)), "DB COMMIT cancel flag")
        case "start":
            stream = s.streams[turn]
            text = scripts.content(stream.entries, base_of(run.admission))[0] if stream is not None else ()
            to = Web("cancel", "commit", turn, run.epoch, admission=run.admission, text=text)
            yield request.goes(s, "reads what is published: %s", text, to=to)
        case "commit" if transactions.owns(s, turn, web.epoch):
            own_tokens = sum(1 for token in web.text if token // 10 == web.epoch)
            after = transactions.end(s, turn, status="cancelled", text=web.text, own_tokens=own_tokens)
            yield request.goes(after, "DB COMMIT cancelled, text %s", web.text, to=web._replace(at="close"))
        case "commit":
            yield request.goes(s, "DB: too late")
        case "close":
            base = base_of(web.admission)
            after = scripts.close(s, case, turn=turn, epoch=web.epoch, base=base, text=web.text)
            to = Web("cancel", "settle", turn, admission=web.admission)
            yield request.goes(after, "CLOSE epoch %d", web.epoch, to=to)
        case "settle":
            tokens = charged(s, turn, web.admission)
            after = scripts.settle(s, case, turn=turn, admission=web.admission, tokens=tokens)
            yield request.goes(after, "SETTLE admission %d", web.admission)


def is_retryable(run: Run | None) -> bool:
    return run is not None and run.status in TERMINAL and run.status != "done"


def _retry(s: State, case: Case, request: _Request) -> Iterator[Step]:
    """`epoch`, `old` and `text` are what the run was at the start."""
    web, turn = request.now, request.now.turn
    run = run_of(s, turn)
    match web.at:
        case "start" if not is_retryable(run) or run.epoch >= case.max_epochs:
            yield request.goes(s, "DB: not to be retried")
        case "start":
            at = "close" if case.keeps("adm_id") else "admit"
            to = web._replace(at=at, epoch=run.epoch, old=run.admission, text=run.text or ())
            yield request.goes(s, "DB: over at epoch %d", run.epoch, to=to)
        case "close":
            base = base_of(web.old)
            after = scripts.close(s, case, turn=turn, epoch=web.epoch, base=base, text=web.text)
            yield request.goes(after, "CLOSE epoch %d", web.epoch, to=web._replace(at="settle", text=()))
        case "settle":
            tokens = charged(s, turn, web.old)
            after = scripts.settle(s, case, turn=turn, admission=web.old, tokens=tokens)
            yield request.goes(after, "SETTLE the old admission %d", web.old, to=web._replace(at="admit", old=0))
        case "commit":
            yield from _accept_again(s, case, request)


def _accept_again(s: State, case: Case, request: _Request) -> Iterator[Step]:
    web, turn = request.now, request.now.turn
    run = run_of(s, turn)
    release = Web("retry", "release", turn, admission=web.admission)
    if case.may("refuse", s):
        yield request.goes(s, "DB refuses, nothing is stored", to=release, fault=True)
    if case.keeps("gen_fence") and s.generation != web.generation:
        to = Web("retry", "start", turn, at_least=s.generation)
        yield request.goes(s, "DB: the generation is %d by now", s.generation, to=to)
    elif is_retryable(run) and run.epoch == web.epoch:
        epoch = run.epoch + 1 if case.keeps("db_epoch") else run.epoch
        again = run._replace(status="queued", epoch=epoch, cancel=False, carry=(), admission=web.admission)
        if case.keeps("retry_hides"):
            again = again._replace(text=None)
        after = transactions.change(s, turn, again)
        to = Web("retry", "enqueue", turn, epoch, admission=web.admission)
        yield request.goes(after, RETRIED, epoch, to=to)
        if case.may("unsure", s):
            kept = None if case.keeps("keep_unsure") else release
            yield request.goes(after, RETRIED, epoch, to=kept, fault=True)
    elif run.admission == web.admission:
        yield request.goes(s, "DB: retried already, on the same hold: 200")
    else:
        yield request.goes(s, "DB: not to be retried any more", to=release)
