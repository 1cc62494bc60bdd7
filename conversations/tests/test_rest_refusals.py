"""What every route under /api/v1 refuses, found by walking the site's URL configuration: a new route is covered too."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from conversations.models import Chat, Message, Turn
from conversations.tests.support import Person, queued, reservations, settle_by_hand
from inference.models import Run

pytestmark = pytest.mark.django_db

METHODS = ("get", "post", "put", "patch", "delete")
ID = re.compile(r"<(\w+:)?(\w+)>")


@dataclass(frozen=True)
class Route:
    """One address pattern and the methods that its view has."""

    pattern: str
    methods: tuple[str, ...]

    @property
    def parameters(self) -> list[str]:
        return [name for _, name in ID.findall(self.pattern)]

    def address(self, values: dict[str, str]) -> str:
        return "/" + ID.sub(lambda found: values[found.group(2)], self.pattern)

    def __str__(self) -> str:
        return self.pattern


def _walk(patterns: list[Any], prefix: str = "") -> Iterator[Route]:
    for entry in patterns:
        pattern = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _walk(entry.url_patterns, pattern)
        elif isinstance(entry, URLPattern) and pattern.startswith("api/v1/"):
            view: Any = getattr(entry.callback, "view_class", None) or getattr(entry.callback, "cls", None)
            yield Route(pattern, tuple(method for method in METHODS if hasattr(view, method)))


ROUTES = list(_walk(get_resolver().url_patterns))
CALLS = [(route, method) for route in ROUTES for method in route.methods]
WITH_IDS = [(route, method) for route, method in CALLS if route.parameters]


def test_the_walk_finds_the_routes() -> None:
    assert {str(route) for route in ROUTES} >= {
        "api/v1/chats", "api/v1/chats/<uuid:chat_id>", "api/v1/chats/<uuid:chat_id>/messages",
        "api/v1/chats/<uuid:chat_id>/runs/<uuid:run_id>/cancel", "api/v1/runs/<uuid:run_id>",
        "api/v1/runs/<uuid:run_id>/events", "api/v1/runs/<uuid:run_id>/cancel", "api/v1/pools",
    }  # fmt: skip
    assert all(route.methods for route in ROUTES)


@pytest.fixture
def of_ada(ada: Person) -> dict[str, str]:
    """Values for every parameter of a route, all of them Ada's: a chat whose first run is over, and a waiting one."""
    chat = ada.new_chat(title="Ada's")
    settle_by_hand(ada.sent(chat, turn="t0")["run"]["id"])
    return {"chat_id": chat, "run_id": ada.sent(chat)["run"]["id"]}


def everything() -> Any:
    rows = [list(model.objects.order_by("pk").values()) for model in (Chat, Turn, Message, Run)]
    return repr(rows), sorted(queued())


def call(client: Client, method: str, address: str, body: Any = None, **more: Any) -> Any:
    if method in ("get", "delete"):
        return getattr(client, method)(address, **more)
    content = body if isinstance(body, bytes | str) else json.dumps(body if body is not None else {})
    return getattr(client, method)(address, content, **{"content_type": "application/json", **more})


def assert_problem(response: Any, status: int, code: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert {"type", "title", "status", "detail", "code"} <= set(body)
    assert code is None or body["code"] == code
    return body


GOOD_BODY = {"content": "Hello", "client_turn_id": "t9", "title": "Mine"}


BAD_CREDENTIALS = (None, "Bearer sk-nonsense", "Bearer ", "Bearer é", "Basic YTpi", "Token x")


@pytest.mark.parametrize(("route", "method"), CALLS, ids=str)
def test_without_good_credentials_every_route_answers_401(of_ada: dict[str, str], route: Route, method: str) -> None:
    before = everything()
    for authorization in BAD_CREDENTIALS:
        headers = {} if authorization is None else {"authorization": authorization}
        stranger = Client(headers=headers, raise_request_exception=False)
        response = call(stranger, method, route.address(of_ada), GOOD_BODY)
        assert_problem(response, 401)
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert everything() == before


@pytest.mark.parametrize(("route", "method"), WITH_IDS, ids=str)
def test_another_users_ids_answer_404_on_every_route_and_change_nothing(
    of_ada: dict[str, str], eve: Person, route: Route, method: str
) -> None:
    before = everything()
    assert_problem(call(eve.client, method, route.address(of_ada), GOOD_BODY), 404, "not_found")
    assert everything() == before
    assert reservations(eve.user.id) == {}


@pytest.mark.parametrize(
    ("route", "method"), [(route, method) for route, method in WITH_IDS if len(route.parameters) > 1], ids=str
)
def test_one_foreign_id_among_ones_own_answers_404(
    of_ada: dict[str, str], eve: Person, route: Route, method: str
) -> None:
    chat = eve.new_chat()
    of_eve = {"chat_id": chat, "run_id": eve.sent(chat)["run"]["id"]}
    before = everything()
    for parameter in route.parameters:
        mixed = of_eve | {parameter: of_ada[parameter]}
        assert_problem(call(eve.client, method, route.address(mixed), GOOD_BODY), 404, "not_found")
    assert everything() == before


@pytest.mark.parametrize(("route", "method"), WITH_IDS, ids=str)
def test_ids_of_nothing_answer_404(ada: Person, route: Route, method: str) -> None:
    unknown = dict.fromkeys(route.parameters, str(UUID(int=7)))
    assert_problem(call(ada.client, method, route.address(unknown), GOOD_BODY), 404, "not_found")


MALFORMED_IDS = ("abc", "1", "%00", "..", "0" * 5000, "é", "%ff", "{id}", str(UUID(int=7)) + "0")


@pytest.mark.parametrize(("route", "method"), WITH_IDS, ids=str)
def test_malformed_ids_answer_404(of_ada: dict[str, str], ada: Person, route: Route, method: str) -> None:
    for bad in MALFORMED_IDS:
        for parameter in route.parameters:
            address = route.address(of_ada | {parameter: bad})
            assert_problem(call(ada.client, method, address, GOOD_BODY), 404, "not_found")


@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_other_methods_answer_405_and_name_the_ones_there_are(
    of_ada: dict[str, str], ada: Person, route: Route
) -> None:
    before = everything()
    for method in (*METHODS, "trace"):
        if method not in route.methods:
            response = ada.client.generic(method.upper(), route.address(of_ada), "{}", content_type="application/json")
            assert_problem(response, 405, "method_not_allowed")
            assert {name.lower() for name in response.headers["Allow"].split(", ")} >= set(route.methods)
    assert everything() == before


QUERIES = ("a=%00", "limit=%ff", "cursor=%00", "after=%F0%9F%99%82", "format=xml", "&&&===", "limit=1&limit=0")


@pytest.mark.parametrize("route", [route for route in ROUTES if "get" in route.methods], ids=str)
def test_no_query_gets_a_server_error_or_an_answer_that_is_no_json(
    of_ada: dict[str, str], ada: Person, route: Route
) -> None:
    for query in QUERIES:
        response = ada.client.get(f"{route.address(of_ada)}?{query}")
        assert response.status_code in (200, 400), query
        kinds = {200: "application/json", 400: "application/problem+json"}
        assert response.headers["Content-Type"] == kinds[response.status_code], query


BODIES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "no JSON": ("{", {}, 400),
    "a half": ('{"content": "Hel', {}, 400),
    "nothing": ("", {}, 400),
    "a word": ("hello", {}, 400),
    "a list": ("[]", {}, 400),
    "a number": ("7", {}, 400),
    "a string": ('"content"', {}, 400),
    "null": ("null", {}, 400),
    "not UTF-8": (b'{"content": "\xff\xfe", "client_turn_id": "t9"}', {}, 400),
    "UTF-16": ('{"content": "Hello"}'.encode("utf-16"), {}, 400),
    "NaN": ('{"max_output_tokens": NaN}', {}, 400),
    "a number of 5000 digits": ('{"max_output_tokens": ' + "9" * 5000 + "}", {}, 400),
    "a nest": ("[" * 100_000, {}, 400),
    "a form": ("content=Hello&client_turn_id=t9", {"content_type": "application/x-www-form-urlencoded"}, 415),
    "text": ('{"content": "Hello"}', {"content_type": "text/plain"}, 415),
    "too much": (b'{"content": "' + b"x" * 5_000_001 + b'"}', {}, 413),
}
# The other routes ask for nothing, so they may ignore what they get.
READS_A_BODY = {
    ("api/v1/chats/<uuid:chat_id>", "patch"),
    ("api/v1/chats/<uuid:chat_id>/messages", "post"),
    ("api/v1/chats", "post"),
}


@pytest.mark.parametrize(("route", "method"), [one for one in CALLS if one[1] in ("post", "put", "patch")], ids=str)
@pytest.mark.parametrize("kind", BODIES)
def test_a_body_that_cannot_be_read_is_refused_and_nothing_is_stored(
    of_ada: dict[str, str], ada: Person, route: Route, method: str, kind: str
) -> None:
    settle_by_hand(of_ada["run_id"])
    before = everything()
    body, more, status = BODIES[kind]
    response = call(ada.client, method, route.address(of_ada), body, **more)
    if (str(route), method) not in READS_A_BODY:
        assert response.status_code < 500
    elif kind == "nothing" and not route.pattern.endswith("messages"):
        # All fields of a chat are optional.
        assert response.status_code in (200, 201)
        return
    else:
        assert_problem(response, status)
    assert everything() == before


TOO_LONG_A_NAME = "x" * 100_000
TEXTS: list[Any] = [None, 7, 1.5, True, [], {}, ["x"], "a\0b", "\ud800", "\udfff\ud800"]
BAD_VALUES: list[tuple[str, Any]] = [
    *(("content", value) for value in [*TEXTS, "", " ", "\n\u3000\t", "x" * 400_001]),
    *(("client_turn_id", value) for value in [*TEXTS, "", " ", "x" * 129]),
    *(("pool", value) for value in [*TEXTS[1:], "", " ", "no-such-pool", "Default", "default ", TOO_LONG_A_NAME]),
    *(
        ("max_output_tokens", value)
        for value in ["5", "", True, False, 1.0, 1.5, 0, -1, 1025, 2**31, 2**63, 10**30, -(10**30), [], {}]
    ),
]


def named(value: Any) -> str:
    return ascii(value)[:30]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES, ids=named)
def test_a_message_with_a_bad_value_is_refused_and_nothing_is_stored(ada: Person, field: str, value: Any) -> None:
    chat = ada.new_chat()
    before = everything()
    body = {"content": "Hello", "client_turn_id": "t1", field: value}
    problem = assert_problem(ada.post(f"/api/v1/chats/{chat}/messages", body), 400)
    if problem["code"] != "unknown_pool":
        assert problem["code"] == "invalid"
        assert list(problem["errors"]) == [field]
        assert problem["detail"].startswith(f"{field}: ")
    assert everything() == before
    assert reservations(ada.user.id) == {}


@pytest.mark.parametrize("missing", ["content", "client_turn_id"])
def test_a_message_without_a_required_field_is_refused_by_name(ada: Person, missing: str) -> None:
    body = {"content": "Hello", "client_turn_id": "t1"}
    del body[missing]
    problem = assert_problem(ada.post(f"/api/v1/chats/{ada.new_chat()}/messages", body), 400, "invalid")
    assert list(problem["errors"]) == [missing]


@pytest.mark.parametrize("method", ["post", "patch"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("title", value) for value in [*TEXTS, "x" * 201, TOO_LONG_A_NAME]),
        *(("pool", value) for value in [*TEXTS[1:], "", " ", "no-such-pool", "Default", TOO_LONG_A_NAME]),
    ],
    ids=named,
)
def test_a_chat_with_a_bad_value_is_refused_and_nothing_is_stored(
    ada: Person, method: str, field: str, value: Any
) -> None:
    chat = ada.new_chat(title="As it was")
    before = everything()
    address = "/api/v1/chats" if method == "post" else f"/api/v1/chats/{chat}"
    problem = assert_problem(call(ada.client, method, address, {field: value}), 400)
    assert problem["code"] in ("invalid", "unknown_pool")
    assert everything() == before


def test_a_chat_cannot_be_left_without_a_pool(ada: Person) -> None:
    assert_problem(ada.patch(f"/api/v1/chats/{ada.new_chat()}", {"pool": None}), 400, "invalid")


@pytest.mark.parametrize("turn", ["é" * 128, "🙂" * 128, "'; DROP TABLE", "../..", "%00"])
def test_a_turn_id_is_taken_as_it_is(ada: Person, turn: str) -> None:
    chat = ada.new_chat()
    assert ada.send(chat, turn=turn).status_code == 202
    assert ada.send(chat, turn=turn).status_code == 200


def test_a_revoked_key_and_a_suspended_user_are_refused(ada: Person, eve: Person) -> None:
    assert ada.get("/api/v1/chats").status_code == 200
    ada.user.api_keys.update(revoked_at=ada.user.date_joined)
    assert_problem(ada.get("/api/v1/chats"), 401)
    eve.user.is_active = False
    eve.user.save()
    assert_problem(eve.get("/api/v1/chats"), 401)


def test_an_accept_header_that_json_cannot_meet_answers_406(ada: Person) -> None:
    assert_problem(ada.client.get("/api/v1/chats", headers={"accept": "text/html"}), 406, "not_acceptable")


@pytest.fixture
def browser(ada: Person) -> Client:
    """Ada's, logged in by a session cookie; its forms need their token."""
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(ada.user)
    return client


def test_a_session_reads_without_a_token_and_writes_only_with_one(browser: Client, ada: Person) -> None:
    assert browser.get("/api/v1/chats").status_code == 200
    browser.get("/login/")
    refused = call(browser, "post", "/api/v1/chats", {})
    assert_problem(refused, 403, "permission_denied")
    assert Chat.objects.count() == 0
    token = ada_token(browser)
    assert call(browser, "post", "/api/v1/chats", {}, headers={"x-csrftoken": token}).status_code == 201


def ada_token(browser: Client) -> str:
    """The token that a page hands to its scripts."""
    browser.get("/")
    return browser.cookies["csrftoken"].value


@pytest.mark.parametrize(("route", "method"), [one for one in CALLS if one[1] != "get"], ids=str)
def test_every_writing_route_asks_a_session_for_its_token(
    browser: Client, of_ada: dict[str, str], route: Route, method: str
) -> None:
    before = everything()
    assert_problem(call(browser, method, route.address(of_ada), GOOD_BODY), 403, "permission_denied")
    assert everything() == before


def test_an_api_key_needs_no_token(ada: Person) -> None:
    out = StringIO()
    call_command("create_api_key", "ada@example.org", stdout=out)
    careful = Client(enforce_csrf_checks=True, headers={"authorization": f"Bearer {out.getvalue().strip()}"})
    assert call(careful, "post", "/api/v1/chats", {}).status_code == 201
