"""Whose request it is: keys and sessions at an API route."""

import re
from datetime import datetime

import pytest
from django.test import Client

from chatsite.accounts import keys
from chatsite.accounts.models import User
from chatsite.accounts.tests.conftest import PASSWORD

pytestmark = [pytest.mark.django_db, pytest.mark.urls("chatsite.tests.urls")]

ORDER = {"count": 1}


@pytest.fixture
def secret(ada: User, now: datetime) -> str:
    return keys.create(user=ada, name="laptop", now=now).secret


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
def test_a_key_as_bearer_token_is_its_user(client: Client, secret: str, scheme: str) -> None:
    response = client.get("/api/probe", headers={"authorization": f"{scheme} {secret}"})
    assert (response.status_code, response.json()) == (200, {"user": "ada@example.org"})


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer sk-" + "a" * 43,
        "Bearer sk-short",
        "Bearer not-a-key",
        "Bearer eyJhbGciOiJIUzI1NiJ9.e30.x",
        "Bearer {secret} {secret}",
        "Bearer x{secret}",
        "Bearer \u00fc\u00ff",
        "Bearer " + "x" * 8_000,
        "{secret}",
        "Basic YWRhOmFkYQ==",
        "Token {secret}",
    ],
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_every_bad_credential_is_401(client: Client, secret: str, header: str, method: str) -> None:
    response = getattr(client, method)(
        "/api/probe", content_type="application/json", headers={"authorization": header.format(secret=secret)}
    )
    assert response.status_code == 401
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["code"] in {"invalid_api_key", "invalid_token", "not_authenticated"}


def test_a_bad_key_is_401_even_beside_a_valid_session(client: Client, ada: User) -> None:
    client.force_login(ada)
    response = client.get("/api/probe", headers={"authorization": "Bearer sk-" + "a" * 43})
    assert (response.status_code, response.json()["code"]) == (401, "invalid_api_key")


def test_a_session_is_its_user(client: Client, ada: User) -> None:
    client.force_login(ada)
    assert client.get("/api/probe").json() == {"user": "ada@example.org"}


def test_the_session_of_an_inactive_user_is_401(client: Client, ada: User) -> None:
    client.force_login(ada)
    ada.is_active = False
    ada.save()
    assert client.get("/api/probe").status_code == 401


def test_a_write_by_session_needs_the_csrf_token(ada: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.get("/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get("/login/").content.decode())
    assert token is not None
    form = {"login": ada.email, "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
    assert browser.post("/login/", form).status_code == 302

    without = browser.post("/api/probe", ORDER, content_type="application/json")
    assert (without.status_code, without.json()["code"]) == (403, "permission_denied")
    assert without.headers["Content-Type"] == "application/problem+json"

    headers = {"x-csrftoken": browser.cookies["csrftoken"].value}
    with_token = browser.post("/api/probe", ORDER, content_type="application/json", headers=headers)
    assert with_token.status_code == 200


def test_a_write_by_key_needs_no_csrf_token(secret: str) -> None:
    client = Client(enforce_csrf_checks=True, headers={"authorization": f"Bearer {secret}"})
    assert client.post("/api/probe", ORDER, content_type="application/json").status_code == 200
