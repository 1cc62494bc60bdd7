"""One follower of turn 0, an entry at a time (F; inference/cell/hub.py)."""

from collections.abc import Iterator

from docs.protocol.case import Case
from docs.protocol.state import TERMINAL, Entry, Follower, State, Step, is_active


def steps(s: State, case: Case) -> Iterator[Step]:
    follower, run, stream = s.follower, s.runs[0], s.streams[0]
    if follower is None or follower.ended or run is None:
        return
    for entry in stream.entries if stream is not None else ():
        if (entry.epoch, entry.number) > follower.at:
            yield _take(s, case, follower, entry)
            return
    if not is_active(run) and case.keeps("follower_db"):
        yield _goes(s, Follower(ended=True), "quiet; the database says it is over: reset_required")


def _goes(s: State, to: Follower, label: str, *values: object) -> Step:
    return Step("system", s._replace(follower=to), "follower", label, values)


def _take(s: State, case: Case, follower: Follower, entry: Entry) -> Step:
    at = (entry.epoch, entry.number)
    names_last = case.keeps("last_id")
    match entry.kind:
        case "started" if entry.continues:
            gap = follower.gap or (names_last and entry.last != follower.at)
            return _goes(s, follower._replace(at=at, gap=gap), "started epoch %d, continues", entry.epoch)
        case "started":
            return _goes(s, Follower(at, (), follower.known), "started epoch %d, anew", entry.epoch)
        case "delta":
            gap = follower.gap or (names_last and follower.at != (entry.epoch, entry.number - 1))
            to = follower._replace(at=at, text=follower.text + entry.text, gap=gap)
            return _goes(s, to, "delta %s", entry.text)
        case _ if entry.epoch < follower.known and case.keeps("old_term"):
            return _goes(s, follower._replace(at=at), "passes the old terminal event of epoch %d", entry.epoch)
        case _ if names_last and (follower.gap or entry.last != follower.at):
            return _goes(s, Follower(ended=True), "terminal event, but something is missing: reset_required")
    run = s.runs[0]
    assert run is not None
    if run.status in TERMINAL and run.epoch == entry.epoch and follower.text != run.text:
        s = s._replace(wrong=f"the page shows {follower.text}, the database has {run.text}")
    if run.epoch > entry.epoch and follower.known > entry.epoch:
        s = s._replace(wrong="a follower ended at the terminal event of an old epoch")
    return _goes(s, Follower(ended=True), "terminal event of epoch %d", entry.epoch)
