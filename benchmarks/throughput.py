"""Tokens per second through the site: many streams at once against one, in the same run."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks import report
from benchmarks.sse import Client
from tests.stack import Stack

STREAMS = 16
OUTPUT_TOKENS = 64


def stream(stack: Stack, *, key: str, number: int, start: threading.Barrier) -> tuple[int, float, float]:
    """One answer: its tokens, when it was sent and when it was complete."""
    client = Client(url=stack.url, key=key)
    try:
        chat = client.new_chat()
        start.wait()
        sent = time.monotonic()
        content = f"Tell a long story number {number} about the sea."
        for arrival in client.send(chat=chat, content=content, max_output_tokens=OUTPUT_TOKENS):
            if arrival.type == "completed":
                return int(arrival.data["usage"]["output"]), sent, arrival.at
    finally:
        client.close()
    raise RuntimeError("an answer did not complete")


def tokens_per_second(stack: Stack, *, key: str, streams: int, base: int) -> float:
    """All tokens of `streams` simultaneous answers over the time from the first send to the last end."""
    start = threading.Barrier(streams)
    with ThreadPoolExecutor(max_workers=streams) as pool:
        answers = list(
            pool.map(lambda number: stream(stack, key=key, number=number, start=start), range(base, base + streams))
        )
    seconds = max(end for _, _, end in answers) - min(sent for _, sent, _ in answers)
    return sum(tokens for tokens, _, _ in answers) / seconds


def run(stack: Stack, *, key: str) -> dict[str, object]:
    tokens_per_second(stack, key=key, streams=STREAMS, base=0)  # warm-up
    single = [tokens_per_second(stack, key=key, streams=1, base=100 + i) for i in range(3)]
    many = [tokens_per_second(stack, key=key, streams=STREAMS, base=200 + 100 * i) for i in range(3)]
    one, all_of_them = sorted(single)[1], sorted(many)[1]
    figures: dict[str, object] = {
        "streams": STREAMS,
        "output_tokens": OUTPUT_TOKENS,
        "single_tokens_per_second": round(one, 1),
        "many_tokens_per_second": round(all_of_them, 1),
        "ratio": round(all_of_them / one, 2),
    }
    report.table(
        f"Tokens per second through the site, answers of {OUTPUT_TOKENS} tokens (median of 3)",
        ["streams", "tokens/s", "times one stream"],
        [[1, f"{one:.1f}", "1.00"], [STREAMS, f"{all_of_them:.1f}", f"{all_of_them / one:.2f}"]],
    )
    return figures
