"""The web server: daphne, made to wait for readers slower than what is written for them, and to refuse in words.

Daphne hands what an application sends to the transport and returns at once. Of a client that stopped reading, every
byte would then be kept in memory. Here `send` waits while the transport's buffer is full, so that an event stream's own
bounded buffer takes over (docs/streaming.md), and a client that takes nothing for long is cut off.

What daphne refuses before an application sees it, it refuses with a page of its own: here not below /api/.
"""

import asyncio
import json
import sys
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

from daphne import server

# First: daphne decides on the event loop while it is imported.
from daphne.cli import CommandLineInterface
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from twisted.internet import tcp
from twisted.internet.interfaces import IPushProducer
from twisted.web.http_headers import Headers
from zope.interface import implementer

from chatsite import tuning

# A reader that has not taken the transport's buffer (64 KiB) after this long has most likely gone without a word. It
# may come back and go on from its last event.
PATIENCE_S = 30.0


@implementer(IPushProducer)
class Brake:
    """Told by the transport when its buffer is full, and when it has been emptied."""

    def __init__(self) -> None:
        # Made when needed: most of many thousand connections never pause.
        self._pause: asyncio.Event | None = None

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's names
        self._pause = self._pause or asyncio.Event()

    def resumeProducing(self) -> None:  # noqa: N802
        if self._pause is not None:
            self._pause.set()
            self._pause = None

    def stopProducing(self) -> None:  # noqa: N802
        self.resumeProducing()

    async def released(self, *, patience_s: float) -> bool:
        """Wait while the buffer is full; False when it still is after `patience_s`."""
        if self._pause is None:
            return True
        try:
            async with asyncio.timeout(patience_s):
                await self._pause.wait()
        except TimeoutError:
            return False
        return True


class Request(WebRequest):  # type: ignore[misc] # daphne has no types
    """Daphne's request, whose own refusals are problem documents below /api/."""

    requestHeaders: Headers  # noqa: N815
    _CODES = {400: "malformed", 503: "unavailable"}  # noqa: RUF012

    def process(self) -> Any:
        # Meant for a proxy in front; from anybody else it moves the site's addresses, or is not even text.
        self.requestHeaders.removeHeader(b"daphne-root-path")
        processed = super().process()
        # By now the application has them. An event stream may stay open for hours.
        self.requestHeaders = Headers()
        return processed

    def basic_error(self, status: int, status_text: bytes, body: str) -> None:
        if not self.uri.startswith(b"/api/"):
            super().basic_error(status, status_text, body)
            return
        code = self._CODES.get(status, "internal_error")
        document = {
            "type": f"/problems/{code}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": f"{body}.",
            "code": code,
        }
        headers = [(b"Content-Type", b"application/problem+json"), (b"Cache-Control", b"no-store")]
        self.handle_reply({"type": "http.response.start", "status": status, "headers": headers})
        self.handle_reply({"type": "http.response.body", "body": json.dumps(document).encode()})


class Factory(HTTPFactory):  # type: ignore[misc] # daphne has no types
    """Makes our requests."""

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = Request
        return protocol


def _write_at_once(protocol: Any, body: bytes) -> bool:
    """Put one more chunk of a response into an idle connection's socket. False when it has to go the usual way.

    Twisted keeps what it is given until its reactor has been told to wait for the socket, is told that there is room,
    and has been told to wait no longer: two thirds of what an event cost (docs/benchmarks.md).
    """
    channel = protocol.channel
    if not body or channel is None or protocol.finished or protocol.queued or not protocol.chunked:
        return False
    transport = channel.transport
    if type(transport) is not tcp.Server or transport.disconnecting or not transport.connected:
        return False
    # It has no public name for "nothing waits".
    if transport.dataBuffer or transport._tempDataLen:
        return False
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    sent = transport.writeSomeData(chunk)
    if isinstance(sent, Exception):
        # The reactor meets the same failure, and knows whom to tell.
        return False
    protocol.sentLength += len(body)
    if sent < len(chunk):
        transport.write(chunk[sent:])
    return True


class PatientServer(Server):  # type: ignore[misc] # daphne has no types
    """Daphne's server, whose `send` returns only when there is room for more."""

    patience_s = PATIENCE_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._crowd = tuning.Crowd()

    def protocol_connected(self, protocol: Any) -> None:
        super().protocol_connected(protocol)
        self._crowd.comes()

    def timeout_checker(self) -> None:
        """Daphne calls this every two seconds."""
        super().timeout_checker()
        if self._crowd.has_left(len(self.connections)):
            tuning.give_back_memory()

    async def handle_reply(self, protocol: Any, message: MutableMapping[str, Any]) -> None:
        streams = message["type"] == "http.response.body" and message.get("more_body")
        if streams and _write_at_once(protocol, message.get("body", b"")):
            return
        if not streams:
            if message["type"] == "http.response.body" and protocol.producer and protocol.channel:
                # Twisted wants its producers to say goodbye before the response ends.
                protocol.unregisterProducer()
            await super().handle_reply(protocol, message)
            return
        if not protocol.producer and protocol.channel and not protocol.finished:
            protocol.registerProducer(Brake(), True)
        await super().handle_reply(protocol, message)
        # They have been written.
        protocol.responseHeaders = Headers()
        brake = protocol.producer
        if brake and not await brake.released(patience_s=self.patience_s) and protocol.channel:
            protocol.channel.transport.abortConnection()


class CommandLine(CommandLineInterface):  # type: ignore[misc] # daphne has no types
    """Daphne's command line."""

    server_class = PatientServer


# The server takes its factory by this name and offers no other way.
server.HTTPFactory = Factory

if __name__ == "__main__":
    CommandLine().run(sys.argv[1:])
