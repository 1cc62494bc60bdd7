"""Opening an account on the page, in every registration mode."""

import threading
from datetime import timedelta

import pytest
from django.core import mail
from django.db import connections
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from chatsite.accounts import accounts, invitations
from chatsite.accounts.errors import EmailTaken
from chatsite.accounts.models import Invitation, Registration, User
from chatsite.accounts.tests.conftest import OTHER_PASSWORD, PASSWORD, is_logged_in, link_in_mail

pytestmark = pytest.mark.django_db


def sign_up(client: Client, email: str = "eve@example.org", password: str = PASSWORD, **fields: str) -> int:
    return client.post("/signup/", {"email": email, "password1": password, **fields}).status_code


def test_signing_up_opens_an_account_and_logs_in(client: Client) -> None:
    assert sign_up(client, "Eve@Example.org", name="Eve") == 302
    user = User.objects.get()
    assert (user.email, user.name) == ("eve@example.org", "Eve")
    assert user.check_password(PASSWORD)
    assert not user.is_staff
    assert is_logged_in(client)


def test_it_leads_on_to_the_page_that_was_asked_for(client: Client) -> None:
    form = {"email": "eve@example.org", "password1": PASSWORD, "next": "/c/1/"}
    assert client.post("/signup/", form).headers["Location"] == "/c/1/"


def test_the_address_can_be_confirmed_and_need_not_be(client: Client) -> None:
    sign_up(client)
    assert mail.outbox[-1].to == ["eve@example.org"]
    assert b"(not confirmed)" in client.get("/account/").content
    link = link_in_mail()
    assert b"eve@example.org" in client.get(link).content
    assert client.post(link).status_code == 302
    assert b"(confirmed)" in client.get("/account/").content


@pytest.mark.parametrize(
    ("email", "password"),
    [
        ("ada@example.org", OTHER_PASSWORD),
        ("ADA@example.org", OTHER_PASSWORD),
        ("", PASSWORD),
        ("eve", PASSWORD),
        ("e\x00ve@example.org", PASSWORD),
        ("x" * 250 + "@example.org", PASSWORD),
        ("eve@example.org", ""),
        ("eve@example.org", "password"),
        ("eve@example.org", "12345678901"),
        ("eve@example.org", "eve@example.org"),
        ("eve@example.org", "short"),
        ("eve@example.org", "nul\x00inside it"),
    ],
)
def test_anything_wrong_shows_the_form_again(client: Client, ada: User, email: str, password: str) -> None:
    assert sign_up(client, email, password) == 200
    assert User.objects.count() == 1
    assert not is_logged_in(client)


def test_an_address_taken_a_moment_before_is_told_in_the_form(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(**_: object) -> User:
        raise EmailTaken(email="eve@example.org")

    monkeypatch.setattr(accounts, "sign_up", too_late)
    response = client.post("/signup/", {"email": "eve@example.org", "password1": PASSWORD})
    assert response.status_code == 200
    assert "is an account with this e-mail" in response.context["form"].errors["email"][0]


def test_closed_registration_opens_no_account(client: Client, settings: Settings) -> None:
    settings.REGISTRATION = "closed"
    assert b"No new accounts" in client.get("/signup/").content
    sign_up(client)
    assert not User.objects.exists()


def test_what_administrators_choose_wins_over_the_setting(client: Client, settings: Settings) -> None:
    settings.REGISTRATION = "open"
    Registration.objects.create(mode="closed")
    sign_up(client)
    assert not User.objects.exists()
    Registration.objects.update(mode="")
    assert sign_up(client) == 302


def test_an_invitation_opens_one_account(client: Client, settings: Settings) -> None:
    settings.REGISTRATION = "invitation"
    new = invitations.create(created_by=None, now=timezone.now())
    page = client.get("/signup/", {"invitation": new.token})
    assert new.token in page.content.decode()
    assert sign_up(client, invitation=new.token) == 302
    invitation = Invitation.objects.get()
    assert invitation.used_by == User.objects.get()
    assert new.token not in str(Invitation.objects.values())

    again = Client()
    response = again.post("/signup/", {"email": "mallory@example.org", "password1": PASSWORD, "invitation": new.token})
    assert b"valid invitation is needed" in response.content
    assert User.objects.count() == 1


@pytest.mark.parametrize("case", ["none", "unknown", "malformed", "expired", "for another address", "NUL"])
def test_without_a_valid_invitation_there_is_no_account(client: Client, settings: Settings, case: str) -> None:
    settings.REGISTRATION = "invitation"
    now = timezone.now()
    expired = invitations.create(created_by=None, now=now - timedelta(days=8)).token
    others = invitations.create(created_by=None, now=now, email="Somebody.Else@example.org").token
    tokens = {
        "none": "",
        "unknown": "a" * 43,
        "malformed": "ü",
        "expired": expired,
        "for another address": others,
        "NUL": "\x00",
    }
    sign_up(client, invitation=tokens[case])
    assert not User.objects.exists()
    assert not Invitation.objects.filter(used_at__isnull=False).exists()


def test_an_invitation_for_an_address_works_for_that_one_in_any_case(client: Client, settings: Settings) -> None:
    settings.REGISTRATION = "invitation"
    token = invitations.create(created_by=None, now=timezone.now(), email="Eve@example.org").token
    assert sign_up(client, "EVE@example.org", invitation=token) == 302


@pytest.mark.django_db(transaction=True)
def test_two_that_race_for_one_invitation_get_one_account(settings: Settings) -> None:
    settings.REGISTRATION = "invitation"
    token = invitations.create(created_by=None, now=timezone.now()).token
    barrier = threading.Barrier(4)

    def race(number: int) -> None:
        try:
            barrier.wait()
            sign_up(Client(), f"racer-{number}@example.org", invitation=token)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert User.objects.count() == 1
