"""The account page: profile, keys, sessions, data."""

import json
import re
from datetime import datetime, timedelta

import pytest
from allauth.usersessions.models import UserSession
from django.test import Client
from django.utils import timezone

from chatsite.accounts import devices, keys
from chatsite.accounts.errors import InvalidApiKey
from chatsite.accounts.models import ApiKey, User
from chatsite.accounts.tests.conftest import is_logged_in, log_in
from chatsite.tests.test_security_headers import inline_code

pytestmark = pytest.mark.django_db

PAGES = [
    "/account/",
    "/account/delete/",
    "/account/email/",
    "/account/password/",
    "/account/confirm/",
    "/account/second-factor/",
]


@pytest.fixture
def browser(ada: User) -> Client:
    return log_in(ada.email)


@pytest.mark.parametrize("path", [*PAGES, "/account/export/"])
def test_only_who_is_logged_in_sees_it(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/login/?next=")


@pytest.mark.parametrize("path", PAGES)
def test_no_page_needs_inline_code(browser: Client, path: str) -> None:
    response = browser.get(path)
    assert response.status_code == 200
    assert inline_code(response.content.decode()) == []
    assert "no-store" in response.headers.get("Cache-Control", "no-store")


def test_every_input_has_an_id_of_its_own_that_a_label_names(browser: Client) -> None:
    page = browser.get("/account/").content.decode()
    ids = re.findall(r' id="([^"]+)"', page)
    assert sorted(set(ids)) == sorted(ids)
    assert set(re.findall(r'<label for="([^"]+)"', page)) <= set(ids)


@pytest.mark.parametrize("path", ["/login/", "/signup/", "/password/reset/", "/password/reset/sent/", "/inactive/"])
def test_no_page_of_strangers_needs_inline_code(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert inline_code(response.content.decode()) == []


def test_the_name_can_be_changed(browser: Client, ada: User) -> None:
    browser.post("/account/profile/", {"name": "Ada <b>Lovelace</b>"})
    ada.refresh_from_db()
    assert ada.name == "Ada <b>Lovelace</b>"
    assert b"<b>" not in browser.get("/account/").content


@pytest.mark.parametrize("name", ["x" * 151, "nul\x00"])
def test_a_name_that_cannot_be_stored_is_refused_in_the_form(browser: Client, ada: User, name: str) -> None:
    assert browser.post("/account/profile/", {"name": name}).status_code == 200
    ada.refresh_from_db()
    assert ada.name == ""


def test_nothing_but_the_name_can_be_changed_there(browser: Client, ada: User) -> None:
    browser.post("/account/profile/", {"name": "Ada", "is_superuser": "on", "email": "root@example.org"})
    ada.refresh_from_db()
    assert (ada.is_superuser, ada.email) == (False, "ada@example.org")


def test_a_key_is_shown_once_and_listed_by_its_beginning(browser: Client, ada: User) -> None:
    page = browser.post("/account/keys/", {"name": "laptop"}).content.decode()
    found = re.search(r"data-new-key>(sk-[^<]+)<", page)
    assert found is not None
    assert keys.authenticate(secret=found[1], now=timezone.now()).user == ada
    listed = browser.get("/account/").content.decode()
    assert found[1] not in listed
    assert found[1][:9] in listed
    assert "laptop" in listed


def test_a_key_needs_a_name(browser: Client) -> None:
    assert browser.post("/account/keys/", {"name": " "}).status_code == 200
    assert not ApiKey.objects.exists()


def test_a_revoked_key_is_refused_at_once_and_listed_no_more(browser: Client, ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    assert browser.post(f"/account/keys/{new.api_key.pk}/revoke/").status_code == 302
    with pytest.raises(InvalidApiKey):
        keys.authenticate(secret=new.secret, now=now)
    browser.get("/account/")
    assert new.api_key.prefix not in browser.get("/account/").content.decode()


def test_somebody_elses_key_and_session_are_not_there(browser: Client, bob: User, now: datetime) -> None:
    theirs = keys.create(user=bob, name="", now=now)
    their_browser = log_in(bob.email)
    session = UserSession.objects.get(user=bob)
    assert browser.post(f"/account/keys/{theirs.api_key.pk}/revoke/").status_code == 404
    assert browser.post(f"/account/sessions/{session.pk}/end/").status_code == 404
    assert keys.authenticate(secret=theirs.secret, now=now).user == bob
    assert is_logged_in(their_browser)


def test_ids_that_are_none_are_not_there(browser: Client) -> None:
    for path in ("keys/1/revoke/", "sessions/x/end/", f"sessions/{10**30}/end/", "sessions/0/end/"):
        assert browser.post(f"/account/{path}").status_code == 404


def test_another_session_can_be_logged_out_at_once(browser: Client, ada: User) -> None:
    elsewhere = log_in(ada.email)
    session = UserSession.objects.exclude(session_key=browser.session.session_key).get()
    assert browser.post(f"/account/sessions/{session.pk}/end/").status_code == 302
    assert not is_logged_in(elsewhere)
    assert is_logged_in(browser)


def test_all_others_can_be_logged_out(browser: Client, ada: User) -> None:
    elsewhere = [log_in(ada.email), log_in(ada.email)]
    browser.post("/account/sessions/end-others/")
    assert not any(is_logged_in(other) for other in elsewhere)
    assert is_logged_in(browser)


def test_the_session_of_the_page_is_marked_and_has_no_button(browser: Client, ada: User) -> None:
    log_in(ada.email)
    page = browser.get("/account/").content.decode()
    assert page.count("data-session") == 2
    assert page.count("data-current") == 1
    assert len(re.findall(r"/account/sessions/\d+/end/", page)) == 1


def test_use_of_a_session_is_noted_at_most_once_a_minute(browser: Client) -> None:
    long_ago = timezone.now() - timedelta(days=1)
    UserSession.objects.update(last_seen_at=long_ago)
    browser.get("/account/")
    assert UserSession.objects.get().last_seen_at == long_ago, "logging in noted it a moment ago"
    from django.core.cache import cache

    cache.clear()
    browser.get("/account/")
    assert UserSession.objects.get().last_seen_at > long_ago


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36 Edg/140.0",
            "Edge on Windows",
        ),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Version/19.0 Mobile Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (Linux; Android 16) Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.10.1", "curl"),
        ("ChatApp/3 (build 7)", "ChatApp"),
        ("", "Unknown client"),
    ],
)
def test_a_client_is_called_what_it_calls_itself(user_agent: str, name: str) -> None:
    assert devices.describe(user_agent) == name


def test_the_export_is_one_json_file_without_secrets(browser: Client, ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    response = browser.get("/account/export/")
    assert response.headers["Content-Disposition"].startswith("attachment")
    body = response.getvalue().decode()
    exported = json.loads(body)
    assert exported["format"] == "chatsite-export/1"
    assert exported["profile"]["email"] == "ada@example.org"
    assert exported["profile"]["api_keys"][0]["prefix"] == new.api_key.prefix
    assert (exported["chats"], exported["usage"]) == ([], [])
    assert new.api_key.sha256 not in body
    assert ada.password not in body


@pytest.mark.parametrize(
    "path",
    [
        "profile/",
        "keys/",
        "sessions/end-others/",
        "sessions/1/end/",
        f"keys/{'0' * 8}-0000-7000-8000-{'0' * 12}/revoke/",
    ],
)
def test_nothing_changes_by_a_link_or_from_elsewhere(ada: User, path: str) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(ada)
    assert browser.get(f"/account/{path}").status_code == 405
    assert browser.post(f"/account/{path}").status_code == 403
