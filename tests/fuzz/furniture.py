"""What a fuzzed site has before the first case, so that ids lead somewhere."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.client import Api

# To the scripted engine: long enough to be stopped on the way, short enough for whoever asks again.
STOPPABLE = "Hello [[tps=40 tokens=80 prefill_ms=0]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Furniture:
    """Ids that exist: chats, runs in the chats of the same place, and runs that were stopped and can be retried."""

    chats: list[str]
    runs: list[str]
    stopped: list[str]


def furnish(api: Api, *, chats: int) -> Furniture:
    """Make chats with one answered message each, and half as many whose answer was stopped."""

    def answered(number: int) -> tuple[str, str]:
        chat = str(api.post("/api/v1/chats", {"title": f"Chat {number}"})["id"])
        run, _ = api.ask(chat, "Hello", max_output_tokens=4)
        return chat, str(run["id"])

    def stopped(number: int) -> str:
        run = str(api.send(api.new_chat(), STOPPABLE)["run"]["id"])
        api.post(f"/api/v1/runs/{run}/cancel")
        list(api.follow(run))
        return run

    with ThreadPoolExecutor(max_workers=4) as pool:
        made = list(pool.map(answered, range(chats)))
        ended = list(pool.map(stopped, range(chats // 2)))
    return Furniture(chats=[chat for chat, _ in made], runs=[run for _, run in made], stopped=ended)
