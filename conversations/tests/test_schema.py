"""The served schema says what the routes do."""

from io import StringIO
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.test import Client

from chatsite.problem_codes import CODES
from conversations.tests.support import Person, settle_by_hand

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def schema() -> Schema:
    """Fails on any warning of the generator's, and on a document that is not valid OpenAPI."""
    out = StringIO()
    call_command("spectacular", fail_on_warn=True, validate=True, stdout=out)
    document: Schema = yaml.safe_load(out.getvalue())
    return document


def test_every_route_is_described(schema: Schema) -> None:
    described = {(path, method) for path, methods in schema["paths"].items() for method in methods}
    assert described >= {
        ("/api/v1/chats", "get"), ("/api/v1/chats", "post"), ("/api/v1/chats/{chat_id}", "get"),
        ("/api/v1/chats/{chat_id}", "patch"), ("/api/v1/chats/{chat_id}", "delete"),
        ("/api/v1/chats/{chat_id}/messages", "get"), ("/api/v1/chats/{chat_id}/messages", "post"),
        ("/api/v1/chats/{chat_id}/runs/{run_id}/cancel", "post"), ("/api/v1/runs/{run_id}", "get"),
        ("/api/v1/runs/{run_id}/cancel", "post"), ("/api/v1/runs/{run_id}/retry", "post"),
        ("/api/v1/runs/{run_id}/events", "get"), ("/api/v1/pools", "get"),
        ("/api/v1/me", "get"), ("/api/v1/usage", "get"), ("/api/v1/usage/daily", "get"),
    }  # fmt: skip


def answer_of(schema: Schema, path: str, method: str, status: int, kind: str = "application/json") -> Schema:
    found: Schema = schema["paths"][path][method]["responses"][str(status)]["content"][kind]["schema"]
    return found


def check(schema: Schema, shape: Schema, value: Any, path: str = "") -> None:
    """Fail where `value` lacks what `shape` promises or holds what it does not name."""
    if "$ref" in shape:
        shape = schema["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]]
    if value is None:
        assert shape.get("nullable"), path
        return
    if "allOf" in shape:
        for part in shape["allOf"]:
            check(schema, part, value, path)
        return
    match shape.get("type"):
        case "object":
            assert set(value) <= set(shape["properties"]), path
            assert set(shape.get("required", ())) <= set(value), path
            for name, below in value.items():
                check(schema, shape["properties"][name], below, f"{path}.{name}")
        case "array":
            for below in value:
                check(schema, shape["items"], below, f"{path}[]")
        case "string":
            assert isinstance(value, str), path
        case "integer":
            assert type(value) is int, path
        case "boolean":
            assert isinstance(value, bool), path
        case other:
            raise AssertionError(f"{path}: {other} {shape}")


@pytest.mark.django_db
def test_answers_have_the_shapes_that_the_schema_promises(schema: Schema, ada: Person) -> None:
    chat = ada.post("/api/v1/chats", {"title": "Rome"})
    check(schema, answer_of(schema, "/api/v1/chats", "post", 201), chat.json())
    chat_id = chat.json()["id"]
    messages = f"/api/v1/chats/{chat_id}/messages"
    check(schema, answer_of(schema, "/api/v1/chats/{chat_id}", "get", 200), ada.get(f"/api/v1/chats/{chat_id}").json())
    sent = ada.send(chat_id)
    check(schema, answer_of(schema, "/api/v1/chats/{chat_id}/messages", "post", 202), sent.json())
    check(schema, answer_of(schema, "/api/v1/chats", "get", 200), ada.get("/api/v1/chats").json())
    run = sent.json()["run"]["id"]
    settle_by_hand(run)
    check(schema, answer_of(schema, "/api/v1/chats/{chat_id}/messages", "post", 200), ada.send(chat_id).json())
    check(schema, answer_of(schema, "/api/v1/chats/{chat_id}/messages", "get", 200), ada.get(messages, limit=1).json())
    check(schema, answer_of(schema, "/api/v1/runs/{run_id}", "get", 200), ada.get(f"/api/v1/runs/{run}").json())
    cancelled = ada.post(f"/api/v1/runs/{run}/cancel").json()
    check(schema, answer_of(schema, "/api/v1/runs/{run_id}/cancel", "post", 200), cancelled)
    refused = ada.post(f"/api/v1/runs/{run}/retry").json()
    problem = answer_of(schema, "/api/v1/runs/{run_id}/retry", "post", 409, "application/problem+json")
    check(schema, problem, {name: refused[name] for name in ("type", "title", "status", "detail", "code")})
    check(schema, answer_of(schema, "/api/v1/pools", "get", 200), ada.get("/api/v1/pools").json())
    for path in ("/api/v1/me", "/api/v1/usage", "/api/v1/usage/daily"):
        check(schema, answer_of(schema, path, "get", 200), ada.get(path).json())
    assert ada.get("/api/v1/usage/daily").json()["results"]
    stopped = ada.send(chat_id, turn="t2").json()["run"]["id"]
    ada.post(f"/api/v1/runs/{stopped}/cancel")
    for status in (202, 200):
        retried = ada.post(f"/api/v1/runs/{stopped}/retry")
        assert retried.status_code == status
        check(schema, answer_of(schema, "/api/v1/runs/{run_id}/retry", "post", status), retried.json())
    changed = ada.patch(f"/api/v1/chats/{chat_id}", {"title": "Roma"}).json()
    check(schema, answer_of(schema, "/api/v1/chats/{chat_id}", "patch", 200), changed)


def test_every_operation_states_the_codes_it_can_be_refused_with(schema: Schema) -> None:
    stated: dict[str, set[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                if status >= "400":
                    assert list(response["content"]) == ["application/problem+json"], (path, method, status)
                    for code in response["x-codes"]:
                        assert f"(/problems/{code})" in response["description"]
                        assert CODES[code].status == int(status)
                        stated.setdefault(f"{method} {path}", set()).add(code)
    usual = {
        "malformed", "not_authenticated", "invalid_api_key", "invalid_token", "not_acceptable", "throttled",
        "internal_error", "unavailable",
    }  # fmt: skip
    assert stated["get /api/v1/me"] == usual
    assert stated["get /api/v1/chats"] == usual | {"invalid"}
    assert stated["get /api/v1/runs/{run_id}"] == usual | {"not_found"}
    assert stated["delete /api/v1/chats/{chat_id}"] == usual | {"not_found", "permission_denied"}
    body = {"permission_denied", "invalid", "too_large", "unsupported_media_type"}
    assert stated["post /api/v1/chats"] == usual | body | {"unknown_pool"}
    assert stated["post /api/v1/chats/{chat_id}/messages"] == usual | body | {
        "not_found", "unknown_pool", "too_long", "turn_conflict", "chat_busy", "blocked", "template_refused",
        "limit_reached", "maintenance", "pool_full",
    }  # fmt: skip
    assert stated["post /api/v1/runs/{run_id}/retry"] == usual | {
        "permission_denied", "not_found", "unknown_pool", "too_long", "not_retryable", "not_last_turn", "chat_busy",
        "template_refused", "limit_reached", "maintenance", "pool_full",
    }  # fmt: skip


def test_events_are_described_as_a_stream(schema: Schema) -> None:
    assert answer_of(schema, "/api/v1/runs/{run_id}/events", "get", 200, "text/event-stream")


@pytest.mark.django_db
def test_the_schema_is_served_to_everybody() -> None:
    assert Client().get("/api/schema").status_code == 200
