"""A streaming client that costs little: standard library, one connection, timestamps at arrival."""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event: when it came (monotonic seconds), its type and its data."""

    at: float
    type: str
    data: dict[str, Any]


class Client:
    """One keep-alive connection with an API key."""

    def __init__(self, *, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=300)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def new_chat(self) -> str:
        self._connection.request("POST", "/api/v1/chats", "{}", self._headers)
        response = self._connection.getresponse()
        return str(json.loads(response.read())["id"])

    def send(self, *, chat: str, content: str, max_output_tokens: int) -> Iterator[Arrival]:
        """POST a message and yield its events. Raises RuntimeError for a refusal."""
        body = {"content": content, "client_turn_id": str(uuid4()), "max_output_tokens": max_output_tokens}
        self._connection.request(
            "POST",
            f"/api/v1/chats/{chat}/messages",
            json.dumps(body),
            {**self._headers, "Accept": "text/event-stream"},
        )
        response = self._connection.getresponse()
        if response.status not in (200, 202):
            raise RuntimeError(f"{response.status}: {response.read().decode()}")
        kind = ""
        while line := response.readline():
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield Arrival(time.monotonic(), kind, json.loads(line[6:]))

    def close(self) -> None:
        self._connection.close()
