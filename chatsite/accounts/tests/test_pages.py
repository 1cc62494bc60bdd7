"""Logging in and out in a browser."""

import pytest
from django.test import Client

from chatsite.accounts.models import User
from chatsite.accounts.tests.conftest import PASSWORD

pytestmark = pytest.mark.django_db


def log_in(client: Client, **fields: str) -> int:
    response = client.post("/login/" + fields.pop("query", ""), fields)
    return response.status_code


def is_logged_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


@pytest.mark.parametrize("spelling", ["ada@example.org", "Ada@Example.org", "  ada@example.org "])
def test_an_address_in_any_case_logs_in(client: Client, ada: User, spelling: str) -> None:
    response = client.post("/login/", {"login": spelling, "password": PASSWORD})
    assert (response.status_code, response.headers["Location"]) == (302, "/")
    assert is_logged_in(client)


@pytest.mark.parametrize(
    ("username", "password"),
    [
        ("ada@example.org", "wrong"),
        ("ada@example.org", PASSWORD.upper()),
        ("ada@example.org", ""),
        ("bob@example.org", PASSWORD),
        ("ada\x00@example.org", PASSWORD),
        ("ada@example.org", "a\x00b"),
        ("", ""),
        ("x" * 10_000, PASSWORD),
    ],
)
def test_anything_else_shows_the_form_again(client: Client, ada: User, username: str, password: str) -> None:
    response = client.post("/login/", {"login": username, "password": password})
    assert response.status_code == 200
    assert not is_logged_in(client)
    assert response.context["form"].errors


def test_a_wrong_password_and_an_unknown_address_look_the_same(client: Client, ada: User) -> None:
    errors = [
        client.post("/login/", {"login": name, "password": "wrong"}).context["form"].errors
        for name in ("ada@example.org", "bob@example.org")
    ]
    assert errors[0] == errors[1]


def test_an_inactive_user_cannot_log_in(client: Client, ada: User) -> None:
    ada.is_active = False
    ada.save()
    response = client.post("/login/", {"login": ada.email, "password": PASSWORD})
    assert response.headers["Location"] == "/inactive/"
    assert b"suspended" in client.get("/inactive/").content
    assert log_in(client, login=ada.email, password="wrong") == 200
    assert not is_logged_in(client)


def test_an_account_without_a_password_cannot_be_logged_in_to(client: Client) -> None:
    user = User.objects.create_user(email="robot@example.org")
    for password in ("", user.password):
        assert log_in(client, login=user.email, password=password) == 200
    assert not is_logged_in(client)


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ("/c/1/?a=b", "/c/1/?a=b"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/\\evil.example", "/"),
        ("\x00", "/"),
    ],
)
def test_after_login_only_this_sites_pages_are_gone_to(client: Client, ada: User, wanted: str, taken: str) -> None:
    response = client.post("/login/", {"login": ada.email, "password": PASSWORD, "next": wanted})
    assert (response.status_code, response.headers["Location"]) == (302, taken)


def test_login_gives_the_browser_a_new_session_it_cannot_read(client: Client, ada: User) -> None:
    client.cookies["chatsite_session"] = "a" * 32
    log_in(client, login=ada.email, password=PASSWORD)
    cookie = client.cookies["chatsite_session"]
    assert cookie.value != "a" * 32
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


def test_someone_logged_in_is_not_asked_again(client: Client, ada: User) -> None:
    client.force_login(ada)
    assert client.get("/login/").status_code == 302


def test_logout_ends_the_session_and_only_a_post_does(client: Client, ada: User) -> None:
    client.force_login(ada)
    assert client.get("/logout/").status_code == 405
    assert is_logged_in(client)
    response = client.post("/logout/")
    assert (response.status_code, response.headers["Location"]) == (302, "/login/")
    assert not is_logged_in(client)


def test_the_form_asks_for_an_e_mail_address_as_browsers_know_it(client: Client) -> None:
    field = str(client.get("/login/").context["form"]["login"])
    assert 'type="email"' in field
    assert 'autocomplete="username"' in field


def test_the_login_page_can_not_be_posted_to_from_elsewhere(ada: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    response = browser.post("/login/", {"login": ada.email, "password": PASSWORD})
    assert response.status_code == 403
