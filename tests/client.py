"""A client of the API, as a stranger would write one: HTTP, JSON and server-sent events."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import httpx

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: str | None
    type: str
    data: Json


class EventParser:
    """Makes events of a stream's lines, by the format's rules; comments are dropped."""

    def __init__(self) -> None:
        self._id: str | None = None
        self._kind = "message"
        self._data: list[str] = []

    def feed(self, line: str) -> Event | None:
        """The event that this line ends, if any."""
        event = None
        if not line:
            if self._data:
                event = Event(self._id, self._kind, json.loads("\n".join(self._data)))
            self._id, self._kind, self._data = None, "message", []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "id":
                    self._id = value
                case "event":
                    self._kind = value
                case "data":
                    self._data.append(value)
        return event


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Events of a stream's lines."""
    parser = EventParser()
    for line in lines:
        event = parser.feed(line)
        if event is not None:
            yield event


def sse_lines(response: httpx.Response) -> Iterator[str]:
    """Lines ended by LF, CR or CRLF alone: not by U+2028, at which `iter_lines` would split."""
    rest = ""
    for text in response.iter_text():
        rest += text
        *lines, rest = rest.replace("\r\n", "\n").split("\n")
        yield from lines


class Api:
    """One user's access by API key."""

    def __init__(self, *, url: str, key: str) -> None:
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=httpx.Timeout(60))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str) -> Json:
        return self._json(self.http.get(path))

    def post(self, path: str, body: Json | None = None) -> Json:
        return self._json(self.http.post(path, json=body))

    def new_chat(self) -> str:
        return str(self.post("/api/v1/chats", {})["id"])

    def send(self, chat: str, content: str, *, turn: str | None = None, **more: Any) -> Json:
        """POST a message, answered with JSON."""
        body = {"content": content, "client_turn_id": turn or str(uuid4()), **more}
        return self.post(f"/api/v1/chats/{chat}/messages", body)

    def stream(self, chat: str, content: str, *, turn: str | None = None, **more: Any) -> Iterator[Event]:
        """POST a message, answered with its events."""
        body = {"content": content, "client_turn_id": turn or str(uuid4()), **more}
        with self.http.stream(
            "POST", f"/api/v1/chats/{chat}/messages", json=body, headers={"Accept": "text/event-stream"}
        ) as response:
            response.raise_for_status()
            yield from parse_events(sse_lines(response))

    def follow(self, run: str, *, after: str | None = None) -> Iterator[Event]:
        """GET a run's events."""
        parameters = {"after": after} if after else {}
        with self.http.stream("GET", f"/api/v1/runs/{run}/events", params=parameters) as response:
            response.raise_for_status()
            yield from parse_events(sse_lines(response))

    def ask(self, chat: str, content: str, **more: Any) -> tuple[Json, str]:
        """Send, follow to the end. Returns the run and the answer's text as the stream showed it."""
        run = self.send(chat, content, **more)["run"]["id"]
        text = text_of(list(self.follow(run)))
        return self.get(f"/api/v1/runs/{run}"), text

    def messages(self, chat: str) -> list[Json]:
        """Newest first."""
        results: list[Json] = self.get(f"/api/v1/chats/{chat}/messages")["results"]
        return results

    def gauge(self, name: str) -> float:
        """A metric of the default pool."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f'{name}{{pool="default"}} '):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    @staticmethod
    def _json(response: httpx.Response) -> Json:
        if response.is_error:
            raise AssertionError(f"{response.status_code}: {response.text}")
        body: Json = response.json()
        return body


def text_of(events: list[Event]) -> str:
    """The answer that a follower of these events shows."""
    text = ""
    for event in events:
        if event.type == "started" and not event.data.get("continues"):
            text = ""
        elif event.type == "delta":
            text += event.data["text"]
    return text
