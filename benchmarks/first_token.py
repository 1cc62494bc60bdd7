"""Time to the first token: what the whole way through the site adds to the bare engine.

Two engines with the same weights and options run side by side and are asked in turn, one at a time: one directly,
the other through HTTP, Django, Celery, the worker and the event stream. Every prompt is new, so that neither has a
prefix cached that the other has not.
"""

import asyncio
import time

from benchmarks import report
from benchmarks.sse import Client
from inference.tokenization import ChatTurn, load
from inference.worker import vllm_engine
from inference.worker.engine import GenerationRequest, Sampling
from tests.stack import Stack

ROUNDS = 60
WARM_UP = 5
OUTPUT_TOKENS = 4
SYSTEM = "You are an AI assistant trained to provide factual answers."


def question(number: int) -> str:
    return f"In one word: is {number} even or odd?"


async def bare_ms(engine: vllm_engine.VllmEngine, prompt_ids: list[int], name: str) -> float:
    """Time to the engine's first text."""
    began = time.monotonic()
    first = 0.0
    request = GenerationRequest(
        request_id=name,
        prompt_ids=prompt_ids,
        max_output_tokens=OUTPUT_TOKENS,
        sampling=Sampling(temperature=0.1, top_p=0.95),
    )
    async for delta in engine.generate(request):
        if delta.text and not first:
            first = time.monotonic()
    return (first - began) * 1000


def site_ms(client: Client, *, chat: str, content: str) -> tuple[float, int]:
    """Time from the POST to the first delta at the client, and the part spent before a worker claimed it."""
    began = time.monotonic()
    first, queue_ms = 0.0, 0
    for arrival in client.send(chat=chat, content=content, max_output_tokens=OUTPUT_TOKENS):
        if arrival.type == "delta" and not first:
            first = arrival.at
        if arrival.type == "completed":
            queue_ms = int(arrival.data["timings"]["queue_ms"])
    return (first - began) * 1000, queue_ms


async def measure(stack: Stack, *, key: str) -> dict[str, object]:
    """Ask both in turn and compare, pair by pair."""
    model = stack.environment["MODEL"]
    tokenizer = load(model)
    engine = await vllm_engine.start(model=model, options={"max_model_len": 4096, "max_num_seqs": 32})
    client = Client(url=stack.url, key=key)
    bare: list[float] = []
    site: list[float] = []
    queued: list[float] = []
    try:
        for number in range(ROUNDS + WARM_UP):
            content = question(1000 + number)
            ids = tokenizer.encode_chat([ChatTurn("system", SYSTEM), ChatTurn("user", content)])
            chat = client.new_chat()
            bare.append(await bare_ms(engine, ids, f"bare-{number}"))
            taken, queue_ms = site_ms(client, chat=chat, content=content)
            site.append(taken)
            queued.append(queue_ms)
    finally:
        client.close()
        await engine.close()
    bare, site, queued = bare[WARM_UP:], site[WARM_UP:], queued[WARM_UP:]
    added = [through - direct for through, direct in zip(site, bare, strict=True)]
    figures: dict[str, object] = {
        "bare_ms": report.spread(bare),
        "site_ms": report.spread(site),
        "added_ms": report.spread(added),
        "queue_ms": report.spread(queued),
    }
    report.table(
        "Time to the first token, idle engine, interleaved (ms)",
        ["", "p50", "p90", "p99", "n"],
        [[name, *spread.values()] for name, spread in figures.items() if isinstance(spread, dict)],
    )
    return figures


def run(stack: Stack, *, key: str) -> dict[str, object]:
    return asyncio.run(measure(stack, key=key))
