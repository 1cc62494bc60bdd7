"""schemathesis finds nothing on the served API in a short run (`make fuzz`: a long one), and would find something."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.fuzz.__main__ import complaints, run
from tests.fuzz.furniture import Furniture
from tests.fuzz.run import Outcome, Tally, fuzz

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
CASES = 400
AN_ID = ["01890a5d-ac96-774b-bcce-b302099a8057"]
SOMETHING = Furniture(chats=AN_ID, runs=AN_ID, stopped=AN_ID)
SCHEMA = {
    "openapi": "3.0.3",
    "info": {"title": "A site with one route", "version": "1"},
    "paths": {
        "/thing": {
            "get": {
                "parameters": [{"name": "size", "in": "query", "schema": {"type": "integer"}}],
                "responses": {
                    "200": {
                        "description": "",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "properties": {"size": {"type": "integer"}},
                                    "required": ["size"],
                                }
                            }
                        },
                    },
                    "400": {"description": ""},
                },
            }
        }
    },
}


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(examples=8, chats=12, seed=1)


def test_nothing_is_found_on_the_api(outcome: Outcome) -> None:
    assert complaints(outcome, at_least=CASES) == [], f"{outcome.as_text()}\n{outcome.output}"
    assert outcome.failures == 0


def test_cases_reach_what_is_there_and_what_is_not(outcome: Outcome) -> None:
    with_ids = {name: tally for name, tally in outcome.operations.items() if "{" in name}
    assert len(with_ids) >= 7
    for name, tally in with_ids.items():
        # Random ids alone would show nothing but 404.
        assert tally.count(2) >= 0.08 * tally.answers, name
        assert tally.statuses[404], name


def test_event_streams_are_read(outcome: Outcome) -> None:
    for name in ("GET /api/v1/runs/{run_id}/events", "POST /api/v1/chats/{chat_id}/messages"):
        assert outcome.operations[name].kinds["text/event-stream"], name


class Double(ThreadingHTTPServer):
    """One route with a schema, which answers what a test wants."""

    answer: tuple[int, Any] = (200, {"size": 1})
    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Double)
        status, body = (200, SCHEMA) if self.path.startswith("/api/schema") else self.server.answer
        if "size=" in self.path and not self.path.partition("size=")[2].lstrip("-").isdigit():
            status, body = 400, {}
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.refuse
        raise AttributeError(name)

    def refuse(self) -> None:
        self.send_response(405)
        self.send_header("Allow", "GET")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture
def double() -> Iterator[Double]:
    with Double(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=10)


def fuzzed(double: Double) -> Outcome:
    url = f"http://127.0.0.1:{double.server_address[1]}"
    return fuzz(url=url, key="sk-none", furniture=SOMETHING, examples=5, seed=1)


def test_a_site_that_keeps_to_its_schema_passes(double: Double) -> None:
    outcome = fuzzed(double)
    assert complaints(outcome, at_least=5) == [], outcome.output
    assert set(outcome.operations) == {"GET /thing"}


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ((418, {}), "Undocumented status code"),
        ((500, {}), "Server error"),
        ((200, {"size": "much"}), "Response violates schema"),
        ((200, {}), "Response violates schema"),
    ],
    ids=["an undocumented status", "a server error", "a wrong type", "a member that is missing"],
)
def test_a_planted_defect_is_reported(double: Double, answer: tuple[int, Any], title: str) -> None:
    double.answer = answer
    outcome = fuzzed(double)
    assert title in outcome.operations["GET /thing"].failures
    assert outcome.failures > 0
    assert "schemathesis ended with status 1" in complaints(outcome, at_least=1)


def test_an_operation_that_is_never_reached_is_reported() -> None:
    tallies = {"GET /there": Tally(), "GET /nowhere": Tally()}
    tallies["GET /there"].statuses.update([200, 404])
    tallies["GET /nowhere"].statuses.update([404, 404])
    summary = {"test_cases": {"generated": 4, "with_failures": 0, "errored": 0}}
    found = Outcome(exit_code=0, summary=summary, operations=tallies, output="")
    assert complaints(found, at_least=4) == ["GET /nowhere was never answered with a success: its cases reach nothing"]
    assert len(complaints(found, at_least=5)) == 2
