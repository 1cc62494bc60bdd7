"""Whom a busy engine serves: one who asks now and then beside one who floods it, and two plans that want all of it.

With the real engine and SLOTS answers at a time. The flood is its own baseline: it waits in the same queue at the same
time, in the order in which a plain queue would serve everybody.
"""

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from benchmarks import report
from benchmarks.sse import Client
from tests.stack import Stack, running

SLOTS = 4
FLOOD = 50
OUTPUT_TOKENS = 48
# One who asks every few seconds, as often.
ASKED = 12
PAUSE_S = 2.0
WEIGHTS = {"silver": 1, "gold": 3}
STREAMS = {"silver": 8, "gold": 12}
WARM_UP_S = 10.0
WINDOW_S = 60.0

_PLANS = """
from billing.models import Plan
for slug, weight in {weights!r}.items():
    Plan.objects.create(slug=slug, name=slug.title(), weight=weight, concurrent_runs=500)
"""
_SUBSCRIBE = """
from django.contrib.auth import get_user_model
from django.utils import timezone
from billing.models import Plan, Subscription
user = get_user_model().objects.get(email={email!r})
Subscription.objects.create(user=user, plan=Plan.objects.get(slug={plan!r}), starts_at=timezone.now())
"""


@dataclass(slots=True)
class Served:
    """A finished answer: when it was sent and ended (monotonic seconds), ms in the queue, tokens that it cost."""

    sent: float
    ended: float
    queue_ms: int
    tokens: int

    @property
    def service_s(self) -> float:
        return self.ended - self.sent - self.queue_ms / 1000


@dataclass(slots=True)
class Tally:
    """What one side was served."""

    served: list[Served] = field(default_factory=list)

    def waits_s(self) -> list[float]:
        return [one.queue_ms / 1000 for one in self.served]

    def tokens(self, *, since: float, until: float) -> int:
        """Of the answers that ended in the window."""
        return sum(one.tokens for one in self.served if since <= one.ended < until)


def subscriber(stack: Stack, *, email: str, plan: str) -> str:
    """An API key of a user with this plan."""
    key = stack.manage("create_api_key", email)
    stack.manage("shell", "--verbosity", "0", "-c", _SUBSCRIBE.format(email=email, plan=plan))
    return key


def ask(client: Client, *, content: str, output_tokens: int = OUTPUT_TOKENS) -> Served:
    """One message in a chat of its own, to the end of its answer."""
    chat = client.new_chat()
    sent = time.monotonic()
    # All of it is read, or the connection could not be used again.
    last = list(client.send(chat=chat, content=content, max_output_tokens=output_tokens))[-1]
    if last.type != "completed":
        raise RuntimeError(f"an answer did not complete: {last}")
    usage = last.data["usage"]
    tokens = usage["prompt"] - usage["cached"] + usage["output"]
    return Served(sent, last.at, last.data["timings"]["queue_ms"], tokens)


def flood(stack: Stack) -> dict[str, object]:
    """FLOOD prompts of one user at once; beside them another user of the same plan asks now and then."""
    flooder = subscriber(stack, email="flood@example.com", plan="silver")
    asker = subscriber(stack, email="now-and-then@example.com", plan="silver")

    def one_of_many(number: int) -> Served:
        client = Client(url=stack.url, key=flooder)
        try:
            return ask(client, content=f"Tell a long story number {number} about the sea.")
        finally:
            client.close()

    asked = Tally()
    with ThreadPoolExecutor(max_workers=FLOOD) as threads:
        flooding = [threads.submit(one_of_many, number) for number in range(FLOOD)]
        client = Client(url=stack.url, key=asker)
        try:
            while len(asked.served) < ASKED and not all(one.done() for one in flooding):
                time.sleep(PAUSE_S)
                number = len(asked.served)
                asked.served.append(ask(client, content=f"Name {number + 2} rivers, and say where they are."))
        finally:
            client.close()
        many = Tally([one.result() for one in flooding])
    service_s = statistics.median(one.service_s for one in asked.served)
    waits, allowed = asked.waits_s(), service_s + 1
    p90 = report.percentile(waits, 0.9)
    report.table(
        f"Waits in seconds, {SLOTS} answers at a time: {FLOOD} prompts of one user, and another who asks now and then",
        ["", "p50", "p90", "max", "n"],
        [
            [name, *(f"{value:.2f}" for value in (statistics.median(w), report.percentile(w, 0.9), max(w))), len(w)]
            for name, w in (("the flood", many.waits_s()), ("now and then", waits))
        ],
    )
    print(f"  goal: p90 of now and then ≤ one service time + 1 s = {allowed:.2f} s: {_verdict(p90 <= allowed)}")
    return {
        "flood_wait_s": report.spread(many.waits_s()),
        "asker_wait_s": report.spread(waits),
        "service_s": round(service_s, 2),
        "met": p90 <= allowed,
    }


def shares(stack: Stack, *, window_s: float = WINDOW_S, warm_up_s: float = WARM_UP_S) -> dict[str, object]:
    """Two plans that want more than there is, each from several users, until the window is over."""
    tallies = {plan: Tally() for plan in WEIGHTS}
    over = threading.Event()
    lock = threading.Lock()

    def keep_asking(plan: str, key: str, number: int) -> None:
        client = Client(url=stack.url, key=key)
        try:
            count = 0
            while not over.is_set():
                count += 1
                served = ask(client, content=f"Tell story {number}.{count} of a ship.")
                with lock:
                    tallies[plan].served.append(served)
        finally:
            client.close()

    keys = {plan: [subscriber(stack, email=f"{plan}-{i}@example.com", plan=plan) for i in range(4)] for plan in WEIGHTS}
    with ThreadPoolExecutor(max_workers=sum(STREAMS.values())) as threads:
        asking = [
            threads.submit(keep_asking, plan, keys[plan][number % 4], number)
            for plan, streams in STREAMS.items()
            for number in range(streams)
        ]
        _wait(warm_up_s, asking_on=lambda: not any(one.done() for one in asking))
        since = time.monotonic()
        _wait(window_s, asking_on=lambda: not any(one.done() for one in asking))
        until = time.monotonic()
        over.set()
        for one in asking:
            one.result()
    tokens = {plan: tally.tokens(since=since, until=until) for plan, tally in tallies.items()}
    total, weights = sum(tokens.values()), sum(WEIGHTS.values())
    rows, off = [], 0.0
    for plan, weight in WEIGHTS.items():
        share, fair = tokens[plan] / total, weight / weights
        off = max(off, abs(share - fair))
        rows.append([plan, weight, STREAMS[plan], tokens[plan], f"{share:.1%}", f"{fair:.1%}"])
    report.table(
        f"Tokens of two plans that want more than {SLOTS} answers at a time, {window_s:.0f} s after {warm_up_s:.0f} s",
        ["plan", "weight", "streams", "tokens", "share", "by weight"],
        rows,
    )
    print(f"  goal: within 3 percentage points of the weights: off by {off:.1%}: {_verdict(off <= 0.03)}")
    return {"tokens": tokens, "off": round(off, 4), "met": off <= 0.03}


def run() -> dict[str, object]:
    with running(engine="vllm", environment={"WORKER_SLOTS": str(SLOTS)}) as stack:
        stack.manage("shell", "--verbosity", "0", "-c", _PLANS.format(weights=WEIGHTS))
        return {"slots": SLOTS, "flood": flood(stack), "shares": shares(stack)}


def _wait(seconds: float, *, asking_on: Callable[[], bool]) -> None:
    """Let time pass while all go on asking. Raises RuntimeError when one stops."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not asking_on():
            raise RuntimeError("somebody stopped asking")
        time.sleep(0.1)


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"
