"""One chat, far longer than its window, on a running site: what each turn was asked with, and what sending it took."""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from tests.client import Api, Json
from tests.stack import ROOT, Stack

EMAIL = "longchat@example.com"
# Of the default pool: the chat's part is 2,048 - 64 - 128 = 1,856 tokens.
SETTINGS = {"context_window": 2048, "max_output_tokens": 64, "reserve_tokens": 128}
FACT = "My ship is called Kumquat, and her harbour is Lisbon."
WORD = "Kumquat"
_TOPICS = ("sails", "ropes", "winds", "stars", "maps", "tides", "storms", "cooks", "cats", "songs", "flags", "whales")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: how it ended, tokens of its prompt and of that what the engine had cached, and what sending took.

    `cpu_ms` is of the thread that accepts it. `first_seq` and `summary_version` say where the prompt begins.
    """

    number: int
    run_id: str
    status: str
    prompt: int
    cached: int
    output: int
    summary_version: int
    first_seq: int
    trimmed: bool
    notices: tuple[str, ...]
    ttft_ms: int | None
    cpu_ms: float
    queries: int


class Sender:
    """A process that accepts turns of one user's as a web process would."""

    def __init__(self, stack: Stack) -> None:
        environment = {**stack.environment, "DJANGO_SETTINGS_MODULE": "chatsite.settings.local"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sender", EMAIL],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def send(self, *, chat: str, content: str, turn: str) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"chat": chat, "content": content, "turn": turn}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the sender ended with {self._process.wait(timeout=30)}"
        answer: Json = json.loads(line)
        return answer


def asked(number: int) -> str:
    """What the turn of this number says: no two are alike."""
    topic = _TOPICS[number % len(_TOPICS)]
    if number == 1:
        return f"{FACT} What should I know about {topic}?"
    return f"Question {number}: tell me one thing about {topic}, and one about the number {number * 37 % 101}."


def talk(stack: Stack, *, turns: int, told: Callable[[Turn], object] = lambda turn: None) -> tuple[str, list[Turn]]:
    """Send so many turns one after the other, each once the last one is answered; the chat and what was sent.

    The pool gets a window of 2,048 tokens. `told` is called with each turn.
    """
    values = ", ".join(f"{name}={value}" for name, value in SETTINGS.items())
    command = f"from inference.models import ModelPool; ModelPool.objects.filter(is_default=True).update({values})"
    stack.manage("shell", "--verbosity=0", "--command", command)
    key = stack.manage("create_api_key", EMAIL)
    done: list[Turn] = []
    with Api(url=stack.url, key=key) as api, Sender(stack) as sender:
        chat = api.new_chat()
        for number in range(1, turns + 1):
            sent = sender.send(chat=chat, content=asked(number), turn=str(number))
            for _ in api.follow(sent["run"]):
                pass
            run = api.get(f"/api/v1/runs/{sent['run']}")
            done.append(_turn(number, sent, run))
            told(done[-1])
    return chat, done


def _turn(number: int, sent: Json, run: Json) -> Turn:
    return Turn(
        number=number,
        run_id=run["id"],
        status=run["status"],
        prompt=run["usage"]["prompt"],
        cached=run["usage"]["cached"],
        output=run["usage"]["output"],
        summary_version=run["context"]["summary_version"],
        first_seq=run["context"]["first_seq"],
        trimmed=run["context"]["trimmed"],
        notices=tuple(notice["code"] for notice in run["notices"]),
        ttft_ms=run["timings"]["ttft_ms"],
        cpu_ms=sent["cpu_ms"],
        queries=sent["queries"],
    )


def between_updates(turns: list[Turn]) -> list[Turn]:
    """The turns whose prompt begins as the one before it: with the same summary, and with the same message."""
    return [
        turn
        for last, turn in pairwise(turns)
        if (last.summary_version, last.first_seq) == (turn.summary_version, turn.first_seq)
    ]


def cached_share(turns: list[Turn]) -> float:
    """Of all tokens of their prompts, those that the engine had cached (0–1)."""
    return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


def median_cost(turns: list[Turn]) -> tuple[float, float]:
    """What sending one of them took: CPU in ms and queries, both medians."""
    return statistics.median(turn.cpu_ms for turn in turns), statistics.median(turn.queries for turn in turns)


def summaries_of(stack: Stack, chat: str) -> list[str]:
    """What the versions of the chat's summary say, the oldest first."""
    command = (
        "import json; from conversations.models import Summary; "
        f"print(json.dumps(list(Summary.objects.filter(chat_id='{chat}').order_by('version')"
        ".values_list('content', flat=True))))"
    )
    said: list[str] = json.loads(stack.manage("shell", "--verbosity=0", "--command", command))
    return said


def title_of(stack: Stack, chat: str) -> str:
    """The chat's title, and whose it is."""
    command = (
        "from conversations.models import Chat; "
        f"print('{{}} ({{}})'.format(*Chat.objects.values_list('title', 'title_by').get(id='{chat}')))"
    )
    return stack.manage("shell", "--verbosity=0", "--command", command)


@contextlib.contextmanager
def without_jobs(stack: Stack) -> Iterator[None]:
    """Keep the site's jobs process dead: it is killed whenever the site starts it again, long before it can work."""
    over = threading.Event()

    def keep_dead() -> None:
        while not over.wait(0.05):
            pid = stack.pid_of("jobs")
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=keep_dead)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
