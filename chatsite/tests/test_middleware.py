"""Request ids and static files."""

import re

import pytest
import structlog
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from chatsite.middleware import RequestIds

UUID_SHAPE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_an_answer_carries_a_new_request_id(client: Client) -> None:
    first = client.get("/healthz").headers["X-Request-ID"]
    second = client.get("/healthz").headers["X-Request-ID"]
    assert UUID_SHAPE.fullmatch(first)
    assert first != second


def test_a_sane_request_id_of_the_client_is_kept(client: Client) -> None:
    assert client.get("/healthz", headers={"x-request-id": "proxy-1234.5_6"}).headers["X-Request-ID"] == (
        "proxy-1234.5_6"
    )


@pytest.mark.parametrize("offered", ["short", "x" * 65, "with space in it", "new\nline-forged", "ümlaut-umlaut", ""])
def test_any_other_request_id_is_replaced(client: Client, offered: str) -> None:
    answered = client.get("/healthz", headers={"x-request-id": offered}).headers["X-Request-ID"]
    assert UUID_SHAPE.fullmatch(answered)


def test_log_lines_of_a_request_carry_its_id_and_later_ones_do_not(rf: RequestFactory) -> None:
    seen = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(structlog.contextvars.get_contextvars().get("request_id"))
        return HttpResponse()

    RequestIds(view)(rf.get("/", headers={"x-request-id": "request-12"}))
    assert seen == ["request-12"]
    assert "request_id" not in structlog.contextvars.get_contextvars()


def test_static_files_are_served_with_their_type(client: Client) -> None:
    response = client.get("/static/admin/css/base.css")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/css")
    assert b"{" in response.content
    assert not response.streaming


def test_a_static_file_that_the_browser_has_is_not_sent_again(client: Client) -> None:
    first = client.get("/static/admin/css/base.css")
    again = client.get("/static/admin/css/base.css", headers={"if-modified-since": first.headers["Last-Modified"]})
    assert again.status_code == 304
    assert again.content == b""


@pytest.mark.parametrize("path", ["%00", "../manage.py", "%2e%2e/manage.py", "no/such.css", ""])
def test_what_is_no_static_file_is_not_found(client: Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code == 404


def test_a_request_is_logged_by_its_route_and_never_by_its_address(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        client.get("/api/v1/runs/0190a000-0000-7000-8000-000000000000?secret=1")
        client.get("/healthz")
    [line] = [record.getMessage() for record in caplog.records if "api/v1/runs" in record.getMessage()]
    assert "api/v1/runs/<uuid:run_id>" in line
    assert "401" in line
    assert "0190a000" not in caplog.text
    assert "secret" not in caplog.text
    assert "healthz" not in caplog.text


def test_a_refusal_states_the_id_that_its_log_line_carries(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        response = client.get("/api/v1/me", headers={"x-request-id": "call-4711"})
    assert (response.status_code, response.json()["request_id"]) == (401, "call-4711")
    assert response.headers["X-Request-ID"] == "call-4711"
    [line] = [record.getMessage() for record in caplog.records if "api/v1/me" in record.getMessage()]
    assert "call-4711" in line
