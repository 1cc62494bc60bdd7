"""Answers that are followed while something happens to their workers: what was shown, and how long it stood still."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.client import Api, Event, text_of
from tests.stack import Stack
from tests.waiting import wait_for


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer as its reader sees it: when it was asked for, the events, and when each came (monotonic seconds)."""

    chat: str
    asked_at: float = 0.0
    events: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def deltas(self) -> int:
        return sum(event.type == "delta" for event in self.events)

    @property
    def text(self) -> str:
        return text_of(self.events)

    @property
    def epochs(self) -> list[tuple[int, str | None, bool | None]]:
        """Of each `started`: epoch, reason, continues."""
        started = [event.data for event in self.events if event.type == "started"]
        return [(data["epoch"], data.get("reason"), data.get("continues")) for data in started]

    def first_text_at(self, *, epoch: int) -> float:
        """When the first text of an epoch came."""
        texts = zip(self.times, self.events, strict=True)
        return next(at for at, event in texts if event.type == "delta" and str(event.id).startswith(f"{epoch}-"))

    def pause_s(self, *, since: float) -> float:
        """From `since` to the first text of the second epoch."""
        return self.first_text_at(epoch=2) - since


class Readers:
    """Asks questions of one user and follows each answer on a thread of its own."""

    def __init__(self, *, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._threads = ThreadPoolExecutor(max_workers=32)
        self._reading: list[Future[None]] = []
        self.answers: list[Answer] = []

    def ask(self, *questions: str, max_output_tokens: int) -> list[Answer]:
        """Send them all at once; returns when every answer shows a few texts."""
        asked = []
        for question in questions:
            with Api(url=self._url, key=self._key) as api:
                answer = Answer(chat=api.new_chat())
            asked.append(answer)
            self._reading.append(self._threads.submit(self._read, answer, question, max_output_tokens))
        self.answers += asked
        self.until(lambda: all(answer.deltas >= 3 for answer in asked), what="all answers show something")
        return asked

    def until(self, condition: Callable[[], bool], *, what: str, seconds: float = 60.0) -> None:
        """Wait for a condition; raises what a reader raised meanwhile."""

        def look() -> bool:
            for reading in self._reading:
                if reading.done():
                    reading.result()
            return condition()

        wait_for(look, what=what, seconds=seconds)

    def finish(self, *, seconds: float = 120.0) -> list[Answer]:
        """All answers, once they have ended."""
        end = time.monotonic() + seconds
        for reading in self._reading:
            reading.result(timeout=max(0.1, end - time.monotonic()))
        return self.answers

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, answer: Answer, question: str, max_output_tokens: int) -> None:
        with Api(url=self._url, key=self._key) as api:
            answer.asked_at = time.monotonic()
            for event in api.stream(answer.chat, question, max_output_tokens=max_output_tokens):
                answer.times.append(time.monotonic())
                answer.events.append(event)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_for_workers(api: Api, count: int, *, seconds: float = 120.0) -> None:
    wait_for(lambda: api.gauge("chatsite_pool_workers") == count, what=f"{count} workers are alive", seconds=seconds)


def all_on_one_worker(
    stack: Stack, api: Api, readers: Readers, questions: Sequence[str], *, max_output_tokens: int
) -> tuple[int, list[Answer]]:
    """Have one of the site's two workers stream all answers; its process id, and the answers. The other is idle."""
    busy, idle = stack.pid_of("worker"), stack.pid_of("worker-2")
    assert busy is not None
    assert idle is not None
    with stopped(idle):
        wait_for_workers(api, 1)
        answers = readers.ask(*questions, max_output_tokens=max_output_tokens)
    wait_for_workers(api, 2)
    # The other has just been frozen: until it has had Redis in sight for a lease's time again it takes nobody for dead.
    readers.until(lambda: all(answer.deltas >= 15 for answer in answers), what="all answers are well under way")
    return busy, answers


Row = tuple[int, str, int, int]


def ledgers(stack: Stack, answers: Sequence[Answer]) -> list[list[Row]]:
    """Epoch, reason, prompt and output tokens of the rows that each answer is charged by."""
    runs = [answer.events[0].data["run"]["id"] for answer in answers]
    found = stack.manage(
        "shell",
        "--verbosity=0",
        "--command",
        "import json; from billing.models import UsageEntry as U; "
        "fields = ('epoch', 'reason', 'prompt_tokens', 'output_tokens'); "
        f"rows = [list(U.objects.filter(run_id=run).order_by('epoch').values_list(*fields)) for run in {runs}]; "
        "print(json.dumps(rows))",
    )
    return [[(row[0], row[1], row[2], row[3]) for row in rows] for rows in json.loads(found)]
