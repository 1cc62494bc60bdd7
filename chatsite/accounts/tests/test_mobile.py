"""A mobile client's life: signing up, logging in, refreshing, a second step, logging out; and being refused."""

import json
from typing import Any

import pytest
from allauth.headless.tokens.strategies.jwt import internal as tokens
from allauth.usersessions.models import UserSession
from django.core import mail
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from chatsite.accounts import invitations, keys, suspension
from chatsite.accounts.models import User
from chatsite.accounts.tests.conftest import OTHER_PASSWORD, PASSWORD, log_in
from chatsite.accounts.tests.test_second_factor import code_for, turn_on

pytestmark = [pytest.mark.django_db, pytest.mark.urls("chatsite.tests.urls")]
API = "/api/auth/app/v1/"
ROUTES = [
    "config",
    "auth/signup",
    "auth/login",
    "auth/session",
    "auth/reauthenticate",
    "auth/password/request",
    "auth/password/reset",
    "auth/email/verify",
    "auth/2fa/authenticate",
    "auth/2fa/reauthenticate",
    "auth/sessions",
    "account/password/change",
    "account/authenticators",
    "account/authenticators/totp",
    "account/authenticators/recovery-codes",
    "tokens/refresh",
]


class App:
    """A client without cookies that keeps what it was given, as a mobile app does."""

    def __init__(self) -> None:
        self.access = ""
        self.refresh = ""
        self.session = ""

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        if self.access:
            headers.setdefault("authorization", f"Bearer {self.access}")
        data = "" if body is None else json.dumps(body)
        client = Client(enforce_csrf_checks=True)
        response = client.generic(method, path, data, content_type="application/json", headers=headers)
        assert response.cookies == {}
        if response.headers.get("Content-Type", "").endswith("json"):
            meta = response.json().get("meta") or {}
            self.access = meta.get("access_token", self.access)
            self.refresh = meta.get("refresh_token", self.refresh)
            self.session = meta.get("session_token", self.session)
        return response

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", API + path, body, **headers)

    def log_in(self, email: str = "ada@example.org", password: str = PASSWORD) -> Any:
        return self.post("auth/login", {"email": email, "password": password})

    def renew(self) -> Any:
        response = self.post("tokens/refresh", {"refresh_token": self.refresh}, authorization="")
        if response.status_code == 200:
            self.access = response.json()["data"]["access_token"]
            self.refresh = response.json()["data"]["refresh_token"]
        return response

    def me(self) -> int:
        return int(self.call("GET", "/api/v1/me").status_code)


@pytest.fixture
def app(ada: User) -> App:
    client = App()
    assert client.log_in().status_code == 200
    return client


def test_signing_up_gives_tokens_that_the_api_takes() -> None:
    client = App()
    response = client.post("auth/signup", {"email": "Eve@example.org", "password": PASSWORD, "name": "Eve"})
    assert response.status_code == 200
    assert response.json()["data"]["user"]["email"] == "eve@example.org"
    body = client.call("GET", "/api/v1/me").json()
    assert (body["email"], body["name"], body["plan"]) == ("eve@example.org", "Eve", "free")
    assert body["id"] == str(User.objects.get().pk)


def test_logging_in_gives_tokens_that_the_api_takes(app: App) -> None:
    assert app.me() == 200
    assert app.access.count(".") == app.refresh.count(".") == 2


def test_refreshing_gives_new_tokens_and_uses_the_old_one_up(app: App) -> None:
    before = app.access, app.refresh
    assert app.renew().status_code == 200
    assert app.me() == 200
    assert (app.access, app.refresh) != before
    stale = app.post("tokens/refresh", {"refresh_token": before[1]}, authorization="")
    assert (stale.status_code, stale.json()["code"]) == (401, "invalid_token")


def test_an_access_token_ends_after_its_time(app: App, settings: Settings) -> None:
    user = User.objects.get()
    settings.HEADLESS_JWT_ACCESS_TOKEN_EXPIRES_IN = -1
    session = tokens.lookup_session(UserSession.objects.get().session_key)
    assert session is not None
    app.access = tokens.create_access_token(user, session, {})
    assert app.me() == 401


def test_a_refresh_token_is_no_access_token(app: App) -> None:
    app.access = app.refresh
    assert app.me() == 401


def test_logging_out_refuses_both_tokens_at_once(app: App) -> None:
    assert app.call("DELETE", API + "auth/session").status_code == 401
    assert app.me() == 401
    assert app.renew().status_code == 401


def test_logging_out_on_the_page_refuses_the_tokens_at_once(app: App, ada: User) -> None:
    browser = log_in(ada.email)
    browser.post("/account/sessions/end-others/")
    assert app.me() == 401


def test_suspending_refuses_keys_tokens_and_sessions_at_once(app: App, ada: User) -> None:
    key = keys.create(user=ada, name="", now=timezone.now()).secret
    browser = log_in(ada.email)
    suspension.suspend(user=ada, now=timezone.now())
    assert app.me() == 401
    assert app.renew().status_code == 401
    assert browser.get("/account/").status_code == 302
    assert Client(headers={"authorization": f"Bearer {key}"}).get("/api/v1/me").status_code == 401
    assert App().log_in().status_code == 401
    assert suspension.reinstate(user=ada)
    assert App().log_in().status_code == 200
    assert Client(headers={"authorization": f"Bearer {key}"}).get("/api/v1/me").status_code == 200


def test_a_new_password_refuses_the_tokens_of_others_at_once(app: App, ada: User) -> None:
    browser = log_in(ada.email)
    form = {"oldpassword": PASSWORD, "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    browser.post("/account/password/", form)
    assert app.me() == 401


def test_sessions_are_listed_with_browsers_and_can_be_ended(app: App, ada: User) -> None:
    log_in(ada.email)
    listed = app.call("GET", API + "auth/sessions").json()["data"]
    assert [session["is_current"] for session in listed].count(True) == 1
    other = next(session for session in listed if not session["is_current"])
    assert app.call("DELETE", API + "auth/sessions", {"sessions": [other["id"]]}).status_code == 200
    assert UserSession.objects.count() == 1


def test_somebody_elses_session_cannot_be_ended(app: App, bob: User) -> None:
    log_in(bob.email)
    theirs = UserSession.objects.get(user=bob)
    assert app.call("DELETE", API + "auth/sessions", {"sessions": [theirs.pk]}).status_code == 400
    assert UserSession.objects.filter(pk=theirs.pk).exists()


def test_the_second_step_is_asked_for_with_the_session_token(ada: User) -> None:
    secret, _ = turn_on(log_in(ada.email))
    client = App()
    first = client.log_in()
    assert (first.status_code, first.json()["code"]) == (401, "second_factor_required")
    assert client.access == ""
    session = {"x-session-token": client.session}
    assert client.post("auth/2fa/authenticate", {"code": "000000"}, **session).status_code == 400
    assert client.post("auth/2fa/authenticate", {"code": code_for(secret)}, **session).status_code == 200
    assert client.me() == 200


def test_a_forgotten_password_is_reset_by_the_key_in_the_mail(ada: User) -> None:
    client = App()
    assert client.post("auth/password/request", {"email": ada.email}).status_code == 200
    key = str(mail.outbox[-1].body).partition("/password/reset/")[2].partition("/")[0]
    body = {"key": key, "password": OTHER_PASSWORD}
    assert client.post("auth/password/reset", body).status_code == 401, "set, and to log in with"
    assert client.log_in(password=OTHER_PASSWORD).status_code == 200


def test_registration_modes_hold_here_too(settings: Settings) -> None:
    body = {"email": "eve@example.org", "password": PASSWORD}
    settings.REGISTRATION = "closed"
    response = App().post("auth/signup", body)
    assert (response.status_code, response.json()["code"]) == (403, "registration_closed")
    settings.REGISTRATION = "invitation"
    response = App().post("auth/signup", body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert response.json()["errors"][0]["param"] == "invitation"
    assert not User.objects.exists()
    token = invitations.create(created_by=None, now=timezone.now()).token
    assert App().post("auth/signup", {**body, "invitation": token}).status_code == 200


def test_an_address_that_is_taken_is_refused_by_its_field(ada: User) -> None:
    response = App().post("auth/signup", {"email": "ADA@example.org", "password": PASSWORD})
    assert (response.status_code, response.json()["code"]) == (400, "invalid")
    assert response.json()["errors"][0]["param"] == "email"


BODIES = [
    "",
    "{",
    "[]",
    '"text"',
    "null",
    "{}",
    "[" * 100_000,
    '{"email": NaN}',
    '{"email": "\\ud800@example.org", "password": "\\udfff"}',
    '{"email": "a\\u0000@example.org", "password": "\\u0000"}',
    '{"email": 1, "password": []}',
    '{"email": {"a": 1}, "password": {"b": [1]}}',
    '{"email": null, "password": null, "refresh_token": null, "key": null, "code": null}',
    '{"refresh_token": "x.y.z", "key": "x-y", "code": "1", "sessions": [1e400]}',
    '{"refresh_token": ["x"], "key": ["x"], "code": {"a": 1}, "sessions": [[1], {}, null, "x", -1]}',
    f'{{"sessions": [{10**30}], "code": "{"9" * 5000}", "key": "{"z" * 5000}-x"}}',
    f'{{"email": "{"x" * 3000}@example.org", "password": "{"y" * 5000}"}}',
    '{"email": "eve@example.org", "password": "' + PASSWORD + '", "name": "' + "n" * 500 + '"}',
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("signed_in", [False, True])
def test_every_route_refuses_nonsense_with_a_problem(path: str, signed_in: bool, ada: User) -> None:
    access = ""
    if signed_in:
        client = App()
        client.log_in()
        access = client.access
    headers = {"authorization": f"Bearer {access}"} if access else {}
    asked = 0
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        for body in BODIES:
            response = Client().generic(method, API + path, body, content_type="application/json", headers=headers)
            asked += 1
            assert response.status_code < 500, (method, body[:80])
            if response.status_code >= 400:
                assert response.headers["Content-Type"] == "application/problem+json", (method, body[:80])
                problem = response.json()
                assert problem["status"] == response.status_code
                assert problem["code"]
                assert problem["detail"]
    assert asked == 5 * len(BODIES)


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b"\xff\xfe", "application/json", 400, "malformed"),
        (b"email=a@example.org&password=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"{}", "text/plain", 415, "unsupported_media_type"),
        (b" " * 30_000, "application/json", 413, "too_large"),
        (b"[]", "application/json", 400, "malformed"),
        (b'{"email": "a@example.org", "password": "x"}', "application/json; charset=utf-16", 400, "invalid"),
    ],
)
def test_what_cannot_be_read_is_said_so(body: bytes, content_type: str, status: int, code: str) -> None:
    response = Client().generic("POST", API + "auth/login", body, content_type=content_type)
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "QUERY"])
@pytest.mark.parametrize("body", [b"{", b"[]", b'"', b"\xff"])
def test_what_cannot_be_read_is_no_fault_of_ours_with_any_method(method: str, body: bytes) -> None:
    visitor = Client(raise_request_exception=False)
    response = visitor.generic(method, API + "auth/login", body, content_type="application/json")
    assert response.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-" + "a" * 43},
        {"authorization": "Bearer x.y.z"},
        {"authorization": "Bearer \u00fc"},
        {"authorization": "Basic YTpi"},
        {"x-session-token": "a" * 32},
        {"x-session-token": "\x00"},
        {"x-session-token": "../../etc/passwd"},
    ],
    ids=str,
)
def test_bad_credentials_are_refused(headers: dict[str, str]) -> None:
    response = Client().get(API + "auth/session", headers=headers)
    assert response.status_code in (401, 410)
    assert response.json()["code"] in ("not_authenticated", "session_ended")


def test_an_api_key_manages_no_sessions(ada: User) -> None:
    secret = keys.create(user=ada, name="", now=timezone.now()).secret
    response = Client().get(API + "auth/sessions", headers={"authorization": f"Bearer {secret}"})
    assert response.status_code == 401


def test_me_takes_a_key_and_a_session_as_well(ada: User) -> None:
    secret = keys.create(user=ada, name="", now=timezone.now()).secret
    by_key = Client(headers={"authorization": f"Bearer {secret}"}).get("/api/v1/me")
    by_session = log_in(ada.email).get("/api/v1/me")
    assert by_key.json() == by_session.json()
    assert Client().get("/api/v1/me").status_code == 401
    assert by_key.json()["email_verified"] is False
    assert by_key.json()["is_administrator"] is False
