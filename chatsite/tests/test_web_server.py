"""The web server with readers that are slow and requests that are none, in a process of its own."""

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest

from chatsite import processes
from chatsite.problem_codes import CODES
from chatsite.tests.flood import CHUNK, CHUNKS
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
# What the kernel buffers for a connection on this machine, and the server beside it, is far below.
HALF = CHUNKS // 2


@contextlib.contextmanager
def flooding(*, patience_s: float) -> Iterator[int]:
    """The server's port."""
    port = processes.free_port()
    listen = ["--bind", "127.0.0.1", "--port", str(port)]
    process = processes.spawn(
        [sys.executable, "-m", "chatsite.tests.flood", str(patience_s), "--verbosity", "0", *listen], folder=ROOT
    )
    try:
        wait_for(lambda: processes.listening(host="127.0.0.1", port=port), what="the server listens", seconds=30)
        yield port
    finally:
        processes.kill_group(process)


def progress(port: int) -> tuple[int, int]:
    chunks, disconnects = httpx.get(f"http://127.0.0.1:{port}/").text.split()
    return int(chunks), int(disconnects)


def ask_for_a_flood(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection


def stalls(port: int) -> bool:
    """Whether the application gets no further between two looks."""
    before, _ = progress(port)
    after, _ = progress(port)
    return before == after > 0


def test_a_reader_that_takes_nothing_stops_what_is_written_and_then_gets_all_of_it() -> None:
    with flooding(patience_s=60) as port, ask_for_a_flood(port) as connection:
        wait_for(lambda: stalls(port), what="the writing stalls", seconds=30)
        assert progress(port)[0] < HALF
        received = 0
        while received < CHUNKS * len(CHUNK):
            received += len(connection.recv(1 << 20))
        wait_for(lambda: progress(port)[0] == CHUNKS, what="all is written", seconds=30)


def test_a_reader_that_takes_nothing_for_long_is_cut_off() -> None:
    with flooding(patience_s=0.2) as port, ask_for_a_flood(port) as connection:
        wait_for(lambda: progress(port)[1] == 1, what="the reader is cut off", seconds=30)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while taken := len(connection.recv(1 << 20)):
                received += taken
        assert received < HALF * len(CHUNK)


def test_others_are_served_while_one_is_waited_for() -> None:
    with flooding(patience_s=60) as port, ask_for_a_flood(port):
        wait_for(lambda: stalls(port), what="the writing stalls", seconds=30)
        flood = httpx.get(f"http://127.0.0.1:{port}/flood", timeout=60)
        assert len(flood.content) == CHUNKS * len(CHUNK)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with flooding(patience_s=60) as found:
        yield found


def asked(port: int, path: str, header: bytes) -> tuple[int, str, bytes]:
    """Status, content type and body for a request with one more header, its bytes as they are."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n".encode() + header + b"\r\n\r\n")
        response = HTTPResponse(connection)
        response.begin()
        return response.status, response.headers.get("Content-Type", ""), response.read()


@pytest.mark.parametrize("value", [b"\x0b", b"a\x1cb", "Å".encode()])
def test_a_header_that_the_server_refuses_itself_gets_a_problem_below_the_api(port: int, value: bytes) -> None:
    status, kind, body = asked(port, "/api/v1/chats", b"X-Anything: " + value)
    assert (status, kind) == (400, "application/problem+json")
    document = json.loads(body)
    assert (document["code"], document["status"], document["type"]) == ("malformed", 400, "/problems/malformed")
    assert CODES[document["code"]].status == 400
    status, kind, _ = asked(port, "/", b"X-Anything: " + value)
    assert (status, kind.partition(";")[0]) == (400, "text/html")


@pytest.mark.parametrize("value", [b"\xff", b"/elsewhere"])
def test_a_client_cannot_say_where_the_site_begins(port: int, value: bytes) -> None:
    status, _, body = asked(port, "/root", b"Daphne-Root-Path: " + value)
    assert (status, body) == (200, b"")
