"""One reader of an answer: follows it to its end over as many connections as that takes, as a page or an app does."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import httpx

from tests.chaos.plan import Reading
from tests.chaos.records import Json, Seen, View
from tests.client import Event, EventParser

# Without a byte for so long a reader looks elsewhere: what it hangs on may be frozen.
SILENCE_S = 6.0
AGAIN_S = 0.2
TERMINAL = frozenset({"completed", "cancelled", "interrupted", "failed"})
# What a site in trouble may say.
EXCUSED = frozenset({503})
OVER = frozenset({"done", "cancelled", "interrupted", "failed"})


class Webs:
    """One user's connections to both web processes."""

    def __init__(self, *, urls: list[str], key: str) -> None:
        timeout = httpx.Timeout(SILENCE_S, connect=2.0)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        headers = {"Authorization": f"Bearer {key}"}
        self.clients = [
            httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits) for url in urls
        ]

    async def close(self) -> None:
        await asyncio.gather(*(client.aclose() for client in self.clients))

    def __getitem__(self, web: int) -> httpx.AsyncClient:
        return self.clients[web % len(self.clients)]


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """The events of a streaming response. Raises httpx.HTTPError when it breaks off."""
    parser = EventParser()
    rest = ""
    async for text in response.aiter_text():
        rest += text
        *lines, rest = rest.replace("\r\n", "\n").split("\n")
        for line in lines:
            event = parser.feed(line)
            if event is not None:
                yield event


class Reader:
    """Reads into `view`; `news` is set at every event, for whoever acts on what is shown.

    `complain` is told of answers that no fault excuses, `accepted` of the run that a streamed send begins with.
    """

    def __init__(
        self,
        *,
        webs: Webs,
        view: View,
        reading: Reading,
        complain: Callable[[str], None],
        accepted: Callable[[Json], None] = lambda _: None,
    ) -> None:
        self.view = view
        self.news = asyncio.Event()
        self._webs = webs
        self._complain = complain
        self._accepted = accepted
        self._web = reading.web
        self._cuts = list(reading.cuts)
        self._cursor = view.after

    def note(self, event: Event) -> None:
        """Take an event."""
        self.view.seen.append(Seen(time.monotonic(), self.view.connections, event))
        if event.id is not None:
            self._cursor = event.id
        self.news.set()

    async def follow(self) -> None:
        """Return at the end of the run; after an explicit retry it may be called again."""
        self.view.ended = False
        try:
            await self._follow()
        finally:
            self.news.set()

    async def _follow(self) -> None:
        while not self.view.ended:
            cut = self._cuts.pop(0) if self._cuts else None
            began = time.monotonic()
            try:
                cut_off = await self._connect(most=None if cut is None else cut.events)
            except httpx.HTTPError:
                # Killed, frozen, or not up: the other process serves any run from any cursor.
                self.view.breaks.append((time.monotonic(), self._web))
                self._web = 1 - self._web
                await asyncio.sleep(max(0.0, AGAIN_S - (time.monotonic() - began)))
                continue
            if cut is not None and cut_off:
                await asyncio.sleep(cut.away_s)
                self._web = cut.web

    async def _connect(self, *, most: int | None) -> bool:
        """Follow over one connection until the end or until `most` events came. True when it was cut off by us."""
        parameters = {} if self._cursor is None else {"after": self._cursor}
        path = f"/api/v1/runs/{self.view.run_id}/events"
        self.view.connections += 1
        async with self._webs[self._web].stream("GET", path, params=parameters) as response:
            if response.status_code == 204:
                # The cursor is at the end: the run is over.
                self.view.ended = True
                return False
            if response.status_code != 200:
                if response.status_code not in EXCUSED:
                    self._complain(f"{path} after {self._cursor}: {response.status_code}")
                raise httpx.HTTPError(f"{response.status_code} for {path}")
            self.view.connected.append((time.monotonic(), self._web))
            return await self.read(response, most=most)

    async def read(self, response: httpx.Response, *, most: int | None) -> bool:
        """Take the events of a response that streams already."""
        count = 0
        if most == 0 and self.view.run_id:
            return True
        async for event in events(response):
            if event.type == "run":
                # A streamed send was accepted: what it says comes before anything that is shown.
                self.view.run_id = event.data["run"]["id"]
                self._accepted(event.data)
                if most == 0:
                    return True
                continue
            self.note(event)
            count += 1
            if event.type == "reset_required":
                await self._refetch(event)
                return False
            if event.type in TERMINAL:
                # A superseded end is passed over: the run was retried, and its stream goes on.
                self.view.ended = True
            elif event.type == "started":
                self.view.ended = False
            if count == most and not self.view.ended:
                return True
        return False

    async def _refetch(self, event: Event) -> None:
        """What a page does when history is gone: fetch the messages; follow again where the run is not over."""
        while True:
            run = await self._get(f"/api/v1/runs/{self.view.run_id}")
            if run["status"] not in OVER:
                # It was retried meanwhile, or its worker is being replaced: what comes is shown anew.
                self._cursor = None
                return
            messages = await self._get(f"/api/v1/chats/{run['chat_id']}/messages")
            found = [message for message in messages["results"] if message["id"] == run["message_id"]]
            if found:
                self.view.refetched = found[0]["content"]
                self.view.ended = True
                return
            await asyncio.sleep(AGAIN_S)

    async def _get(self, path: str) -> Json:
        while True:
            try:
                response = await self._webs[self._web].get(path)
                if response.status_code == 200:
                    body: Json = response.json()
                    return body
                if response.status_code not in EXCUSED:
                    self._complain(f"GET {path}: {response.status_code}")
            except httpx.HTTPError:
                pass
            self._web = 1 - self._web
            await asyncio.sleep(AGAIN_S)
