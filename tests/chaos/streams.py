"""Checks of what readers saw: ids, epochs and text, event by event. Pure functions of a record."""

import bisect
import itertools
import json
from collections.abc import Callable, Iterator

from tests.chaos.reader import TERMINAL
from tests.chaos.records import Played, UsageRow, View
from tests.chaos.violations import Violation
from tests.client import Event

Id = tuple[int, int]
Broken = Callable[[int, str], Violation]
START: Id = (0, 0)
_CONTENT = frozenset({"started", "delta", "notice"})


def id_of(text: str) -> Id:
    epoch, _, seq = text.partition("-")
    return int(epoch), int(seq)


class Script:
    """The whole answer, if known, by token and as text."""

    def __init__(self, texts: tuple[str, ...] | None) -> None:
        self.texts = texts
        self.whole = None if texts is None else "".join(texts)
        self._lengths = list(itertools.accumulate(map(len, texts or ())))

    def tokens(self, text: str) -> int:
        """How many tokens a beginning of the answer took: those up to the one that completed its last character."""
        return bisect.bisect_left(self._lengths, len(text)) + 1 if text else 0


def check(played: Played, usage: list[UsageRow]) -> Iterator[Violation]:
    """All readers of one turn. `usage` are the rows of its run."""
    script = Script(played.expected)
    texts: dict[Id, str] = {}
    events: dict[Id, Event] = {}
    # Those who read from the beginning first: they tell what was shown at the cursors of the others.
    for view in sorted(played.views, key=lambda view: view.after is not None):
        yield from _check_view(played, view, script=script, usage=usage, texts=texts, events=events)
    yield from _check_fences(played, events)


def _check_view(
    played: Played,
    view: View,
    *,
    script: Script,
    usage: list[UsageRow],
    texts: dict[Id, str],
    events: dict[Id, Event],
) -> Iterator[Violation]:
    def broken(rule: int, words: str) -> Violation:
        return Violation(rule=rule, subject=played.name, words=f"{view.reader}: {words}")

    cursor = START if view.after is None else id_of(view.after)
    text = texts.get(cursor, "")
    # A cursor from which nobody knows the text: then only ids can be checked until the text begins anew.
    known = view.after is None or cursor in texts
    over: Id | None = None
    last: Event | None = None
    for seen in view.seen:
        event = last = seen.event
        if event.id is None:
            yield broken(3, f"event {event.type} has no id")
            continue
        here = id_of(event.id)
        if event.type == "reset_required":
            # The reader starts over, or fetches the message.
            cursor, text, known, over = START, "", True, None
            continue
        if here <= cursor:
            what = "an event of a stale epoch" if here[0] < cursor[0] and here[0] > 0 else "an event that it had"
            yield broken(2 if here[0] < cursor[0] else 3, f"{what}: {event.id} {event.type} after {cursor}")
            continue
        if over is not None and event.type != "started":
            yield broken(2, f"{event.type} {event.id} after the end {over}")
        cursor = here
        yield from _same(events, here, event, broken)
        match event.type:
            case "started":
                over = None
                if event.data.get("epoch") != here[0]:
                    yield broken(2, f"started {event.id} says epoch {event.data.get('epoch')}")
                if not event.data.get("continues"):
                    text, known = "", True
                elif known and script.texts is not None:
                    yield from _published(script, text, here, usage, broken)
            case "delta":
                text += event.data["text"]
                if known and script.whole is not None and not script.whole.startswith(text):
                    yield broken(3, f"at {event.id} the text leaves the script {_where(script.whole, text)}")
                    known = False
            case kind if kind in TERMINAL:
                over = here
        if known:
            texts[here] = text
    yield from _check_end(played, view, last=last, text=text if known else None, broken=broken)


def _where(whole: str, text: str) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(whole, text, strict=False))
    at = sum(1 for _ in same)
    near = slice(max(0, at - 20), at + 20)
    return f"at character {at}: {text[near]!r} for {whole[near]!r}"


def _same(events: dict[Id, Event], here: Id, event: Event, broken: Broken) -> Iterator[Violation]:
    """One id, one event, whoever reads it."""
    before = events.setdefault(here, event)
    if event.type != "queued" and (before.type, _shown(before)) != (event.type, _shown(event)):
        yield broken(3, f"{event.id} is {event.type} {_shown(event)} here and {before.type} {_shown(before)} elsewhere")


def _shown(event: Event) -> str:
    # After a restart of Redis the end is announced again, in a stream that lacks the text.
    return json.dumps({name: value for name, value in event.data.items() if name != "last"}, sort_keys=True)


def _published(script: Script, text: str, here: Id, usage: list[UsageRow], broken: Broken) -> Iterator[Violation]:
    """Where an epoch goes on from what was shown, the epochs before it were charged with exactly that."""
    admission = {row.admission_id for row in usage if row.epoch == here[0] - 1}
    charged = sum(row.output_tokens for row in usage if row.admission_id in admission and row.epoch < here[0])
    if charged != script.tokens(text):
        words = (
            f"epoch {here[0]} goes on after {script.tokens(text)} published tokens, {charged} were charged till then"
        )
        yield broken(6, words)


def _check_end(
    played: Played, view: View, *, last: Event | None, text: str | None, broken: Broken
) -> Iterator[Violation]:
    if not view.ended:
        yield broken(4, "never came to the end")
        return
    run, messages = played.final_run, played.final_messages
    if run is None or messages is None or run["message_id"] is None:
        return
    stored = next((message["content"] for message in messages if message["id"] == run["message_id"]), None)
    if last is None or last.id is None or id_of(last.id)[0] != run["epoch"]:
        # It saw the end of an answer that was retried since, or had everything already.
        return
    if last.type in TERMINAL and last.data["usage"] != run["usage"]:
        yield broken(6, f"the end tells of usage {last.data['usage']}, the run of {run['usage']}")
    shown = view.refetched if last.type == "reset_required" else text
    if shown is not None and shown != stored:
        yield broken(3, f"shows {shown!r:.200} at its end {last.id}; stored is {stored!r:.200}")


def _check_fences(played: Played, events: dict[Id, Event]) -> Iterator[Violation]:
    """Nothing came into the stream after an epoch was fenced or ended, whichever reader would have seen it."""
    for here, event in events.items():
        named = event.data.get("last")
        if named in (None, "0-0") or event.type not in TERMINAL | {"started"}:
            continue
        for other, late in events.items():
            if id_of(named) < other < here and late.type in _CONTENT:
                yield Violation(
                    rule=2,
                    subject=played.name,
                    words=f"{late.type} {late.id} came after {named}, the last that {event.type} {event.id} names",
                )
