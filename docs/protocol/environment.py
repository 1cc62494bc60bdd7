"""What comes from outside: clients, late commands, and faults."""

from collections.abc import Iterator

from docs.protocol import scripts, web
from docs.protocol.case import Case
from docs.protocol.reaper import IDLE as IDLE_REAPER
from docs.protocol.state import Account, Follower, Snapshot, State, Step, Web, put, replace, without
from docs.protocol.worker import IDLE as IDLE_WORKER

# Requests under way at a time.
REQUESTS = 2


def steps(s: State, case: Case) -> Iterator[Step]:
    yield from _clients(s, case)
    yield from _late(s, case)
    if s.faults:
        yield from _deaths(s, case)
        yield from _losses(s, case)


def _clients(s: State, case: Case) -> Iterator[Step]:
    for turn, (posts, cancels, retries) in enumerate(s.clients):
        run = s.runs[turn]
        if len(s.web) >= REQUESTS:
            break
        # Turns are alike: the second begins after the first.
        if posts and (turn == 0 or s.clients[turn - 1][0] < case.posts):
            yield from _sends(s, case, Web("post", "look", turn), (posts - 1, cancels, retries))
        if cancels and run is not None:
            yield from _sends(s, case, Web("cancel", "start", turn), (posts, cancels - 1, retries))
        if retries and web.is_retryable(run):
            yield from _sends(s, case, Web("retry", "start", turn), (posts, cancels, retries - 1))
    run = s.runs[0]
    if case.follows and s.follower is None and run is not None:
        follower = Follower(known=run.epoch)
        yield Step("client", s._replace(follower=follower), "follower", "connects, from the start")


def _sends(s: State, case: Case, request: Web, left: tuple[int, int, int]) -> Iterator[Step]:
    sent = s._replace(clients=put(s.clients, request.turn, left))
    for step in web.steps_of(sent, case, request, others=s.web):
        yield step._replace(nature="client")


def _late(s: State, case: Case) -> Iterator[Step]:
    """A command of a broken connection arrives after all."""
    for late in dict.fromkeys(s.late):
        turn, epoch = late.turn, late.epoch
        after = s._replace(late=without(s.late, late))
        match late.command:
            case "open":
                opened = scripts.open_epoch(
                    after, case, turn=turn, epoch=epoch, base=late.base, number=late.number, text=late.text
                )
                after = opened[1] if opened is not None else after
            case "append":
                _, after = scripts.append(after, case, turn=turn, epoch=epoch, number=late.number, text=late.text)
            case "close":
                after = scripts.close(after, case, turn=turn, epoch=epoch, base=late.base, text=late.text)
        yield Step("system", after, "network", "the late %s of epoch %d arrives", (late.command, epoch))


def _deaths(s: State, case: Case) -> Iterator[Step]:
    if "crash" not in case.kinds:
        return
    s = s._replace(faults=s.faults - 1)
    for request in dict.fromkeys(s.web):
        dead = s._replace(web=without(s.web, request))
        yield Step("fault", dead, f"web {request.kind} {request.turn}", "dies at %s", (request.at,))
    for worker in dict.fromkeys(s.workers):
        if worker != IDLE_WORKER:
            dead = s._replace(workers=replace(s.workers, worker, IDLE_WORKER))
            yield Step("fault", dead, f"worker epoch {worker.epoch}", "dies at %s", (worker.at,))
    for reaper in dict.fromkeys(s.reapers):
        if reaper != IDLE_REAPER:
            dead = s._replace(reapers=replace(s.reapers, reaper, IDLE_REAPER))
            yield Step("fault", dead, "reaper", "dies at %s", (reaper.at,))


def _losses(s: State, case: Case) -> Iterator[Step]:
    empty = (None,) * case.turns
    # Broken connections end with the server, and so does what was under way on them.
    lost = s._replace(faults=s.faults - 1, snapshot=None, late=())
    if "wipe" in case.kinds:
        account = None if case.keeps("rule_rebuild") else Account(s.generation, 0, ())
        wiped = lost._replace(
            account=account,
            streams=empty,
            queue=(),
            tickets=0,
            incarnation=s.incarnation + 1,
            counted=(0,) * case.turns,
        )
        yield Step("fault", wiped, "Redis", "loses everything")
        if s.tickets:
            # They are in other hands than the rest, and come back from the disk.
            yield Step("fault", wiped._replace(tickets=s.tickets), "Redis", "loses everything but the tickets")
    if "roll" in case.kinds and s.snapshot is None:
        snapshot = Snapshot(s.queue, s.tickets, s.account, s.streams)
        yield Step("client", s._replace(snapshot=snapshot), "Redis", "writes to its disk for the last time")
    elif "roll" in case.kinds and s.snapshot is not None:
        queue, tickets, account, streams = s.snapshot
        back = lost._replace(queue=queue, tickets=tickets, account=account, streams=streams)
        yield Step("fault", back, "Redis", "restarts without its last second, as the same incarnation")
    if "ticket" in case.kinds and s.tickets:
        fewer = s._replace(faults=s.faults - 1, tickets=s.tickets - 1)
        yield Step("fault", fewer, "broker", "loses a ticket")
        if s.tickets < 2:
            more = s._replace(faults=s.faults - 1, tickets=s.tickets + 1)
            yield Step("fault", more, "broker", "doubles a ticket")
