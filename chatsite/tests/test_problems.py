"""What a refused request is told."""

import json
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError
from django.test import Client, override_settings
from django.utils import timezone
from rest_framework.response import Response

from chatsite import problem_kinds, problems
from chatsite.accounts import accounts, keys
from chatsite.tests import urls
from conversations import errors as conversations
from inference import errors as inference

pytestmark = pytest.mark.urls("chatsite.tests.urls")


@pytest.fixture(autouse=True)
def probe_errors_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, kind in urls.ENTRIES.items():
        monkeypatch.setitem(problem_kinds.TABLE, error, kind)


@pytest.fixture
def visitor() -> Client:
    """Gets the site's answer to an unforeseen error, where Django's client would raise it."""
    return Client(raise_request_exception=False)


@pytest.fixture
def user_client(db: None) -> Client:
    user = accounts.open_account(email="ada@example.org", password=None)
    secret = keys.create(user=user, name="", now=timezone.now()).secret
    return Client(headers={"authorization": f"Bearer {secret}"}, raise_request_exception=False)


def assert_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["type"] == f"/problems/{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response.headers["X-Request-ID"]
    return body


def test_an_error_of_the_table_becomes_its_status_with_its_attributes(visitor: Client) -> None:
    response = visitor.get("/api/failing/busy")
    body = assert_problem(response, 409, "busy")
    assert body["detail"] == f"Run {urls.RUN_ID} is under way."
    assert body["run_id"] == str(urls.RUN_ID)
    assert not any("private" in name for name in body)


def test_a_wait_is_told_in_whole_seconds_rounded_up(visitor: Client) -> None:
    response = visitor.get("/api/failing/busy")
    assert response.headers["Retry-After"] == "2"
    assert response.json()["retry_after"] == 2


def test_a_time_to_retry_at_becomes_seconds_to_wait(visitor: Client) -> None:
    response = visitor.get("/api/failing/later")
    body = assert_problem(response, 429, "later")
    assert body["detail"] == "the window is used up"
    assert 80 <= int(response.headers["Retry-After"]) <= 90


def test_a_derived_error_is_answered_as_its_base(visitor: Client) -> None:
    assert_problem(visitor.get("/api/failing/very-busy"), 409, "busy")


@pytest.mark.parametrize("path", ["/api/failing/unforeseen", "/api/plain/unforeseen"])
def test_an_unforeseen_error_is_a_500_that_tells_nothing_but_the_request_id(visitor: Client, path: str) -> None:
    response = visitor.get(path, headers={"x-request-id": "a-request-of-mine"})
    body = assert_problem(response, 500, "internal_error")
    assert body["request_id"] == "a-request-of-mine"
    assert b"secret" not in response.content


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("http404", 404, "not_found"), ("denied", 403, "permission_denied"), ("suspicious", 400, "malformed")],
)
def test_django_errors_are_problems_under_api_whoever_catches_them(
    visitor: Client, name: str, status: int, code: str
) -> None:
    for path in (f"/api/failing/{name}", f"/api/plain/{name}"):
        assert_problem(visitor.get(path), status, code)
        assert b"ecret" not in visitor.get(path).content


@pytest.mark.parametrize(("name", "status"), [("http404", 404), ("denied", 403), ("unforeseen", 500)])
def test_pages_get_html(visitor: Client, name: str, status: int) -> None:
    response = visitor.get(f"/failing/{name}")
    assert response.status_code == status
    assert response.headers["Content-Type"].startswith("text/html")


def test_a_throttled_request_learns_when_to_come_back(visitor: Client) -> None:
    response = visitor.get("/api/failing/throttled")
    assert_problem(response, 429, "throttled")
    assert response.headers["Retry-After"] == "3"


@pytest.mark.parametrize(
    "path", ["/api/nothing", "/api/", "/api", "/api/v1/chats%00", "/api/%ff%fe", "/api/v1/nothing/"]
)
@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete", "options"])
@pytest.mark.parametrize("debug", [False, True])
def test_an_unknown_address_under_api_is_a_problem(visitor: Client, path: str, method: str, debug: bool) -> None:
    with override_settings(DEBUG=debug):
        assert_problem(getattr(visitor, method)(path), 404, "not_found")


@override_settings(ALLOWED_HOSTS=["chat.example.org"])
def test_a_foreign_host_name_is_refused_as_a_problem(visitor: Client) -> None:
    assert_problem(visitor.get("/api/probe", headers={"host": "evil.example"}), 400, "malformed")


def test_without_credentials_the_answer_is_401_with_a_bearer_challenge(db: None, visitor: Client) -> None:
    response = visitor.get("/api/probe")
    assert_problem(response, 401, "not_authenticated")
    assert response.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "malformed"),
        (b'{"count": NaN}', "application/json", 400, "malformed"),
        (b'{"count": \xff}', "application/json", 400, "malformed"),
        (b'\xef\xbb\xbf{"count": 1}', "application/json", 400, "malformed"),
        ('{"count": 1}'.encode("utf-16"), "application/json; charset=utf-16", 400, "malformed"),
        (b"[" * 100_000, "application/json", 400, "malformed"),
        (b'{"count": 1' + b"0" * 10_000 + b"}", "application/json", 400, "malformed"),
        (b" " * 5_000_001, "application/json", 413, "too_large"),
        (b"count=1", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"--x\r\n", "multipart/form-data; boundary=x", 415, "unsupported_media_type"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b"{}", "/", 415, "unsupported_media_type"),
        (b"{}", "\u00ff", 415, "unsupported_media_type"),
        (b"[]", "application/json", 400, "invalid"),
        (b"null", "application/json", 400, "invalid"),
        (b"", "application/json", 400, "invalid"),
        (b'"text"', "application/json", 400, "invalid"),
    ],
)
def test_a_body_that_cannot_be_used_is_the_clients_error(
    user_client: Client, body: bytes, content_type: str, status: int, code: str
) -> None:
    assert_problem(user_client.generic("POST", "/api/probe", body, content_type), status, code)


def test_an_invalid_body_lists_its_reasons_and_states_the_first(user_client: Client) -> None:
    response = user_client.post(
        "/api/probe", {"count": 11, "lines": [{"product": "x"}, {}]}, content_type="application/json"
    )
    body = assert_problem(response, 400, "invalid")
    assert body["detail"] == "count: Ensure this value is less than or equal to 10."
    assert body["errors"]["lines"] == {"1": {"product": ["This field is required."]}}


def test_a_reason_inside_a_list_is_stated_with_its_path(user_client: Client) -> None:
    response = user_client.post(
        "/api/probe", {"count": 1, "lines": [{"product": "x"}, {}]}, content_type="application/json"
    )
    assert response.json()["detail"] == "lines.1.product: This field is required."


def test_a_wrong_method_is_405(user_client: Client) -> None:
    response = user_client.delete("/api/probe")
    assert_problem(response, 405, "method_not_allowed")
    assert "POST" in response.headers["Allow"]


def test_a_client_that_takes_no_json_is_told_so_in_json(user_client: Client) -> None:
    response = user_client.get("/api/probe", headers={"accept": "text/html"})
    assert_problem(response, 406, "not_acceptable")


def test_a_format_parameter_has_no_meaning(user_client: Client) -> None:
    assert user_client.get("/api/probe?format=xml").status_code == 200


def test_a_cookie_with_a_nul_is_no_session(db: None, visitor: Client) -> None:
    visitor.cookies.load('chatsite_session="aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\000"')
    assert_problem(visitor.get("/api/probe"), 401, "not_authenticated")


@pytest.mark.parametrize("entry", problem_kinds.TABLE.values(), ids=lambda kind: str(kind.code))
def test_every_entry_of_the_table_is_an_error_status_with_a_plain_code(entry: problem_kinds.Kind) -> None:
    assert 400 <= entry.status < 600
    assert entry.code.replace("_", "").isalpha()
    assert entry.code == entry.code.lower()
    assert entry.title


def told(error: Exception) -> Response:
    response = problems.handle(error, {})
    assert response is not None
    return response


def test_every_error_of_the_apps_has_an_entry() -> None:
    public = {
        error
        for module, base in ((conversations, "ConversationsError"), (inference, "InferenceError"))
        for error in vars(module).values()
        if isinstance(error, type) and issubclass(error, Exception) and error.__name__ != base
    }
    # Told like what a serializer finds; makes a request begin again; is told to operators alone.
    untold = {conversations.InvalidRequest, inference.HoldTooSmall, inference.PromptNotRebuilt}
    assert public - set(problem_kinds.TABLE) == untold


def test_a_rule_broken_beyond_the_serializer_is_told_like_one_broken_in_it() -> None:
    response = told(conversations.InvalidRequest(field="content", reason="may not be blank"))
    assert response.status_code == 400
    assert response.data["code"] == "invalid"
    assert response.data["errors"] == {"content": ["may not be blank"]}
    assert response.data["detail"] == "content: may not be blank"


def test_a_busy_chat_names_its_run() -> None:
    response = told(inference.ChatBusy(run_id=urls.RUN_ID))
    assert (response.status_code, response.data["code"]) == (409, "chat_busy")
    assert response.data["run_id"] == str(urls.RUN_ID)


def test_a_message_that_does_not_fit_comes_with_the_numbers() -> None:
    response = told(conversations.TooLong(prompt_tokens=5000, max_prompt_tokens=3584, context_window=4096))
    assert (response.status_code, response.data["code"]) == (400, "too_long")
    assert (response.data["prompt_tokens"], response.data["max_prompt_tokens"]) == (5000, 3584)
    assert "5000" in response.data["detail"]


def test_limits_of_ones_own_and_of_the_service_both_say_when_to_retry() -> None:
    own = told(inference.AdmissionRefused(limit="concurrent_runs", maximum=2, retry_after=7))
    assert (own.status_code, own.data["limit"], own.headers["Retry-After"]) == (429, "concurrent_runs", "7")
    full = told(inference.ServiceUnavailable(reason="the service's memory is away", retry_after=5))
    assert (full.status_code, full.data["code"], full.headers["Retry-After"]) == (503, "unavailable", "5")


@pytest.mark.parametrize("error", [OperationalError("database is locked"), InterfaceError("connection already closed")])
def test_a_database_that_does_not_answer_is_no_fault_of_the_request(error: Exception) -> None:
    response = problems.handle(error, {})
    assert response is not None
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    assert response.data["code"] == "unavailable"


@pytest.mark.parametrize("accept", ["application/yaml", "application/vnd.oai.openapi", "*/*"])
def test_a_refusal_is_json_where_a_view_renders_something_else(client: Client, accept: str) -> None:
    response = client.post("/api/schema", {}, content_type="application/json", headers={"accept": accept})
    assert (response.status_code, response.headers["Content-Type"]) == (405, problems.CONTENT_TYPE)
    assert response.json()["code"] == "method_not_allowed"


def test_a_refusal_can_quote_what_no_utf8_can_be_made_of() -> None:
    response = told(conversations.InvalidRequest(field="a", reason="is \ud800"))
    assert json.loads(response.rendered_content)["errors"] == {"a": ["is \ud800"]}


def test_a_decorators_refusal_below_the_api_is_a_problem_document(client: Client) -> None:
    response = client.post("/api/docs")
    assert (response.status_code, response.headers["Content-Type"]) == (405, problems.CONTENT_TYPE)
    assert response.headers["Allow"] == "GET, HEAD"
    body = response.json()
    assert (body["status"], body["code"], body["type"]) == (405, "method_not_allowed", "/problems/method_not_allowed")
