"""Playing one planned turn against the site: send, repeat, read, stop, retry it, pry at it, look at its end."""

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from tests.chaos.plan import Ask, Reading, Repeat
from tests.chaos.reader import AGAIN_S, EXCUSED, OVER, Reader, Webs
from tests.chaos.records import Json, Played, View

# How long a site may refuse a send before it counts as one that does not recover.
ACCEPT_S = 120.0
RETRYABLE = frozenset({"cancelled", "interrupted", "failed"})


class Refused(Exception):
    """The site did not do what was asked for as long as a client has patience."""


class Player:
    """Plays turns of one user. `stranger` is another user's connections."""

    def __init__(self, *, webs: Webs, stranger: Webs, patience_s: float, began: Callable[[], None]) -> None:
        self._webs = webs
        self._stranger = stranger
        self._patience_s = patience_s
        self._began = began

    async def new_chat(self) -> str:
        """Open a chat."""
        body = await self._insist("POST", "/api/v1/chats", {}, web=0)
        return str(body["id"])

    async def play(self, played: Played) -> None:
        """Play one turn to its end. What goes wrong stands in `played` afterwards."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._play(played)
                played.finished = True
        except TimeoutError:
            played.problems.append(f"not at its end within {self._patience_s:g} s")
        except Refused as error:
            played.problems.append(str(error))

    async def _play(self, played: Played) -> None:
        ask = played.ask
        self._began()
        repeats = [asyncio.create_task(self._repeat(played, repeat)) for repeat in ask.repeats]
        first, *others = ask.readings
        try:
            reader = await self._begin(played, first)
            # Whoever reads from elsewhere, later.
            more = [asyncio.create_task(self._read_too(played, f"reader {n}", r)) for n, r in enumerate(others, 2)]
            aside = [asyncio.create_task(work) for work in self._meanwhile(played, reader)]
            try:
                await reader.follow()
                await asyncio.gather(*more, *aside, *repeats)
            finally:
                for task in (*more, *aside):
                    task.cancel()
        finally:
            for task in repeats:
                task.cancel()
        await self._retry(played, reader)
        await self._look(played)

    async def _begin(self, played: Played, reading: Reading) -> Reader:
        """Have the turn accepted; returns its first reader, which may have the stream of the POST behind it."""
        ask = played.ask
        deadline = time.monotonic() + ACCEPT_S
        web = ask.web
        while True:
            try:
                if ask.streamed:
                    reader = await self._send_streamed(played, reading, web=web)
                    if reader is not None:
                        return reader
                else:
                    response = await self._webs[web].post(self._path(played), json=_body(ask))
                    if self._accepted(played, response.status_code, response):
                        return self._reader(played, "reader 1", reading)
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise Refused(f"not accepted within {ACCEPT_S:g} s")
            web = 1 - web
            await asyncio.sleep(AGAIN_S)

    async def _send_streamed(self, played: Played, reading: Reading, *, web: int) -> Reader | None:
        headers = {"Accept": "text/event-stream"}
        path = self._path(played)
        async with self._webs[web].stream("POST", path, json=_body(played.ask), headers=headers) as response:
            if response.status_code not in (200, 202) or "event-stream" not in response.headers["content-type"]:
                await response.aread()
                self._accepted(played, response.status_code, response)
                return None
            view = View(reader="reader 1", run_id="", connections=1, connected=[(time.monotonic(), web)])
            rest = dataclasses.replace(reading, cuts=reading.cuts[1:])
            reader = Reader(
                webs=self._webs,
                view=view,
                reading=rest,
                complain=played.problems.append,
                accepted=played.accepted.append,
            )
            try:
                await reader.read(response, most=reading.cuts[0].events if reading.cuts else None)
            except httpx.HTTPError:
                view.breaks.append((time.monotonic(), web))
            if not view.run_id:
                return None
            played.views.append(view)
            return reader

    def _accepted(self, played: Played, status: int, response: httpx.Response) -> bool:
        if status in (200, 202):
            played.accepted.append(response.json())
            played.created += status == 202
            return True
        if status not in EXCUSED | {429}:
            played.problems.append(f"send: {status} {response.text[:200]}")
        return False

    def _reader(self, played: Played, name: str, reading: Reading) -> Reader:
        view = View(reader=name, run_id=played.run_id)
        played.views.append(view)
        return Reader(webs=self._webs, view=view, reading=reading, complain=played.problems.append)

    async def _repeat(self, played: Played, repeat: Repeat) -> None:
        """The same request once more, its answer taken or not even waited for."""
        await asyncio.sleep(repeat.delay_s)
        played.repeats += 1
        try:
            async with asyncio.timeout(repeat.drop_s):
                response = await self._webs[repeat.web].post(self._path(played), json=_body(played.ask))
        except (TimeoutError, httpx.HTTPError):
            return
        self._accepted(played, response.status_code, response)

    async def _read_too(self, played: Played, name: str, reading: Reading) -> None:
        await asyncio.sleep(reading.delay_s)
        await self._reader(played, name, reading).follow()

    def _meanwhile(self, played: Played, reader: Reader) -> list[Coroutine[Any, Any, None]]:
        ask = played.ask
        works: list[Coroutine[Any, Any, None]] = []
        if ask.cancel is not None:
            works.append(self._cancel(played, reader))
        if ask.conflict:
            works.append(self._contradict(played))
        if ask.probe:
            works.append(self._pry(played))
        return works

    async def _cancel(self, played: Played, reader: Reader) -> None:
        cancel = played.ask.cancel
        assert cancel is not None
        while len(reader.view.seen) < cancel.events and not reader.view.ended:
            reader.news.clear()
            await reader.news.wait()
        if reader.view.ended and cancel.events:
            return
        path = f"/api/v1/runs/{played.run_id}/cancel"
        if cancel.times > 2:
            path = f"/api/v1/chats/{played.chat_id}/runs/{played.run_id}/cancel"
        # From now on it may end so, whatever the answers to the requests are.
        played.cancelled = True
        await asyncio.gather(*(self._insist("POST", path, None, web=cancel.web + n) for n in range(cancel.times)))

    async def _contradict(self, played: Played) -> None:
        """The turn's name with another content is refused."""
        body = {**_body(played.ask), "content": "Something else."}
        try:
            response = await self._webs[1 - played.ask.web].post(self._path(played), json=body)
        except httpx.HTTPError:
            return
        if response.status_code not in EXCUSED | {409, 429}:
            played.problems.append(f"the turn's id with another content: {response.status_code}")

    async def _pry(self, played: Played) -> None:
        """Nothing of this turn is there for a stranger."""
        run, chat = f"/api/v1/runs/{played.run_id}", f"/api/v1/chats/{played.chat_id}"
        routes = [
            ("GET", run),
            ("GET", f"{run}/events"),
            ("POST", f"{run}/cancel"),
            ("GET", chat),
            ("GET", f"{chat}/messages"),
            ("POST", f"{chat}/runs/{played.run_id}/cancel"),
            ("POST", f"{run}/retry"),
        ]
        for number, (method, path) in enumerate(routes):
            try:
                response = await self._stranger[number].request(method, path)
            except httpx.HTTPError:
                continue
            if response.status_code not in EXCUSED | {404}:
                played.leaks.append(f"a stranger's {method} {path}: {response.status_code}")

    async def _retry(self, played: Played, reader: Reader) -> None:
        for _ in range(played.ask.retries):
            run = await self._insist("GET", f"/api/v1/runs/{played.run_id}", None, web=played.ask.web)
            if run["status"] not in RETRYABLE:
                return
            path = f"/api/v1/runs/{played.run_id}/retry"
            played.retried += 1
            # Two fingers on the button: one new attempt.
            await asyncio.gather(*(self._insist("POST", path, None, web=web) for web in (0, 1)))
            await reader.follow()

    async def _look(self, played: Played) -> None:
        """What the API says at the end; the stream once more from its beginning and from somewhere within."""
        web = 1 - played.ask.web
        while True:
            run = await self._insist("GET", f"/api/v1/runs/{played.run_id}", None, web=web)
            if run["status"] in OVER:
                break
            await asyncio.sleep(AGAIN_S)
        played.final_run = run
        messages = await self._insist("GET", f"/api/v1/chats/{played.chat_id}/messages?limit=4", None, web=web)
        played.final_messages = messages["results"]
        if played.ask.late_repeat:
            await self._repeat(played, Repeat(delay_s=0.0, web=web, drop_s=None))
        ids = [seen.event.id for view in played.views for seen in view.seen if seen.event.id is not None]
        chosen = random.Random(played.ask.number)
        for number in range(played.ask.replays):
            after = None if number == 0 or not ids else chosen.choice(ids)
            view = View(reader=f"replay after {after}", run_id=played.run_id, after=after)
            played.views.append(view)
            reading = Reading(delay_s=0.0, web=web + number, cuts=())
            await Reader(webs=self._webs, view=view, reading=reading, complain=played.problems.append).follow()

    async def _insist(self, method: str, path: str, body: Json | None, *, web: int) -> Json:
        """Ask until it is answered. Raises Refused for an answer that no fault excuses, and after all patience."""
        deadline = time.monotonic() + ACCEPT_S
        while time.monotonic() < deadline:
            try:
                response = await self._webs[web].request(method, path, json=body)
                if response.status_code in (200, 201, 202):
                    answer: Json = response.json()
                    return answer
                if response.status_code not in EXCUSED | {429}:
                    raise Refused(f"{method} {path}: {response.status_code} {response.text[:200]}")
            except httpx.HTTPError:
                pass
            web += 1
            await asyncio.sleep(AGAIN_S)
        raise Refused(f"{method} {path}: no answer within {ACCEPT_S:g} s")

    def _path(self, played: Played) -> str:
        return f"/api/v1/chats/{played.chat_id}/messages"


def _body(ask: Ask) -> Json:
    body: Json = {"content": ask.content, "client_turn_id": ask.turn_id}
    return body if ask.max_output_tokens is None else {**body, "max_output_tokens": ask.max_output_tokens}
