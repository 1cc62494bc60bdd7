"""Asking the web process, from outside and over HTTP, whether the site can answer."""

import asyncio
import dataclasses
import json
from typing import Any

TIMEOUT_S = 10.0
ANSWER_BYTES = 65_536


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What `/readyz` said: the HTTP status, and its JSON object if it was one."""

    status: int
    body: dict[str, Any]


async def ask(*, host: str, port: int, host_header: str) -> Answer | None:
    """`/readyz`'s answer; None when nothing answers HTTP there yet."""
    headers = (f"Host: {host_header}", "X-Forwarded-Proto: https", "Connection: close")
    request = "\r\n".join(("GET /readyz HTTP/1.1", *headers, "", ""))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request.encode("ascii"))
                await writer.drain()
                raw = await reader.read(ANSWER_BYTES)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return parse(raw)


def parse(raw: bytes) -> Answer | None:
    """The status and JSON body of a whole HTTP/1.1 response; None when it is none."""
    head, _, body = raw.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return None
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    return Answer(status=int(words[1]), body=document if isinstance(document, dict) else {})
