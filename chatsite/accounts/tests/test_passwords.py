"""Forgotten and changed passwords, and changed addresses."""

import smtplib

import pytest
from django.core import mail, signing
from django.test import Client
from django.utils import timezone

from chatsite.accounts import accounts, keys
from chatsite.accounts.models import User
from chatsite.accounts.tests.conftest import OTHER_PASSWORD, PASSWORD, is_logged_in, link_in_mail, log_in

pytestmark = pytest.mark.django_db


def ask_for_link(email: str) -> None:
    response = Client().post("/password/reset/", {"email": email})
    assert response.headers["Location"] == "/password/reset/sent/"


def test_the_link_in_the_mail_sets_a_new_password(client: Client, ada: User) -> None:
    ask_for_link("ADA@example.org")
    page = client.get(link_in_mail(), follow=True)
    assert "key" not in page.request["PATH_INFO"], "the secret stays out of the address of the page"
    form = {"password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    assert client.post(page.request["PATH_INFO"], form).headers["Location"] == "/password/reset/done/"
    assert is_logged_in(log_in(ada.email, OTHER_PASSWORD))


def test_a_new_password_logs_everybody_else_out(client: Client, ada: User) -> None:
    elsewhere = log_in(ada.email)
    ask_for_link(ada.email)
    page = client.get(link_in_mail(), follow=True)
    client.post(page.request["PATH_INFO"], {"password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD})
    assert not is_logged_in(elsewhere)
    assert not is_logged_in(client)


def test_the_link_works_once(client: Client, ada: User) -> None:
    ask_for_link(ada.email)
    link = link_in_mail()
    page = client.get(link, follow=True)
    client.post(page.request["PATH_INFO"], {"password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD})
    assert b"does not work" in Client().get(link, follow=True).content


@pytest.mark.parametrize("link", ["/password/reset/abc-def-0123/", "/password/reset/1-set-password/"])
def test_a_made_up_link_does_not_work(client: Client, ada: User, link: str) -> None:
    response = client.get(link)
    assert response.status_code == 200
    assert b"does not work" in response.content


def test_an_unknown_address_gets_the_same_page_and_no_link() -> None:
    ask_for_link("nobody@example.org")
    assert "/password/reset/" not in str(mail.outbox[-1].body)


def test_a_suspended_user_gets_no_link(ada: User) -> None:
    User.objects.update(is_active=False)
    ask_for_link(ada.email)
    assert "/password/reset/" not in str(mail.outbox[-1].body)


def test_when_mail_cannot_be_sent_the_page_says_so(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, *_: object, **__: object) -> int:
        raise smtplib.SMTPServerDisconnected("gone")

    monkeypatch.setattr("django.core.mail.message.EmailMessage.send", refuse)
    response = Client().post("/password/reset/", {"email": ada.email})
    assert response.status_code == 503
    assert "Retry-After" in response.headers


def test_when_mail_cannot_be_sent_signing_up_works(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, *_: object, **__: object) -> int:
        raise ConnectionRefusedError

    monkeypatch.setattr("django.core.mail.message.EmailMessage.send", refuse)
    client.post("/signup/", {"email": "eve@example.org", "password1": PASSWORD})
    assert is_logged_in(client)


def test_changing_the_password_keeps_this_session_and_ends_the_others(ada: User) -> None:
    here, elsewhere = log_in(ada.email), log_in(ada.email)
    form = {"oldpassword": PASSWORD, "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    assert here.post("/account/password/", form).headers["Location"] == "/account/"
    assert is_logged_in(here)
    assert not is_logged_in(elsewhere)
    assert "change" in str(mail.outbox[-1].body)


def test_changing_the_password_needs_the_present_one(ada: User) -> None:
    browser = log_in(ada.email)
    form = {"oldpassword": "wrong", "password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD}
    assert browser.post("/account/password/", form).status_code == 200
    ada.refresh_from_db()
    assert ada.check_password(PASSWORD)


def test_an_account_made_for_a_key_can_set_its_first_password_by_mail(client: Client) -> None:
    user = accounts.open_account(email="robot@example.org", password=None)
    secret = keys.create(user=user, name="", now=timezone.now()).secret
    ask_for_link(user.email)
    page = client.get(link_in_mail(), follow=True)
    client.post(page.request["PATH_INFO"], {"password1": OTHER_PASSWORD, "password2": OTHER_PASSWORD})
    assert is_logged_in(log_in(user.email, OTHER_PASSWORD))
    assert keys.authenticate(secret=secret, now=timezone.now()).user == user


def test_a_new_address_counts_once_it_is_confirmed(ada: User) -> None:
    browser = log_in(ada.email)
    browser.post("/account/email/", {"email": "New@example.org"})
    ada.refresh_from_db()
    assert ada.email == "ada@example.org"
    assert mail.outbox[-1].to == ["New@example.org"]
    link = link_in_mail()
    assert b"new@example.org" in Client().get(link).content
    browser.post(link)
    ada.refresh_from_db()
    assert ada.email == "new@example.org"
    assert is_logged_in(browser)
    assert is_logged_in(log_in("new@example.org"))
    assert Client().post("/login/", {"login": "ada@example.org", "password": PASSWORD}).status_code == 200
    assert b"does not work" in browser.get(link).content, "the link works once"


def test_an_address_that_somebody_else_has_cannot_be_confirmed(ada: User, bob: User) -> None:
    browser = log_in(ada.email)
    browser.post("/account/email/", {"email": bob.email})
    assert b"another account" in browser.post(link_in_mail()).content
    ada.refresh_from_db()
    assert ada.email == "ada@example.org"


def test_a_made_up_link_changes_no_address(client: Client, ada: User) -> None:
    for token in ("x", "a:b:c", signing.dumps([str(ada.pk), ada.email, "new@example.org"], salt="another")):
        assert b"does not work" in client.post(f"/email/change/{token}/").content
    ada.refresh_from_db()
    assert ada.email == "ada@example.org"


def test_the_present_address_can_be_confirmed_later(ada: User) -> None:
    browser = log_in(ada.email)
    browser.post("/account/email/confirm/")
    assert browser.post(link_in_mail()).status_code == 302
    assert b"(confirmed)" in browser.get("/account/").content


def test_an_address_changed_by_an_administrator_lets_nobody_in_by_the_old_one(client: Client, ada: User) -> None:
    log_in(ada.email)
    client.force_login(accounts.open_account(email="root@example.org", password=PASSWORD, administrator=True))
    form = {"email": "new@example.org", "name": "", "is_active": "on"}
    assert client.post(f"/admin/accounts/user/{ada.pk}/change/", form).status_code == 302
    assert Client().post("/login/", {"login": "ada@example.org", "password": PASSWORD}).status_code == 200
    assert is_logged_in(log_in("new@example.org"))
