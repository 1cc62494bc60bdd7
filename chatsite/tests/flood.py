"""A server under test: `python -m chatsite.tests.flood PATIENCE_S …` floods whoever asks, and tells how far it got."""

import sys
from typing import Any

from chatsite.web_server import CommandLine, PatientServer

CHUNK = b"x" * 65_536
CHUNKS = 1_000

progress = {"chunks": 0, "disconnects": 0}


async def application(scope: Any, receive: Any, send: Any) -> None:
    """/flood: 64 MB, as fast as they are taken. /root: where the site is said to begin. Anything else: how many chunks
    were handed over, who was cut off."""
    if scope["path"] != "/flood":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        counts = f"{progress['chunks']} {progress['disconnects']}"
        body = (scope["root_path"] if scope["path"] == "/root" else counts).encode()
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(CHUNKS):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        progress["chunks"] += 1
    await send({"type": "http.response.body", "body": b""})
    while (await receive())["type"] != "http.disconnect":
        pass
    progress["disconnects"] += 1


if __name__ == "__main__":
    PatientServer.patience_s = float(sys.argv[1])
    CommandLine().run([*sys.argv[2:], "chatsite.tests.flood:application"])
