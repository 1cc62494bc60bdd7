"""Logging in with a code from an authenticator app, or a recovery code."""

import re
import time

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core.cache import cache
from django.test import Client
from pytest_django import Settings

from chatsite.accounts.models import User
from chatsite.accounts.second_factor import MfaAdapter
from chatsite.accounts.tests.conftest import PASSWORD, is_logged_in, log_in

pytestmark = pytest.mark.django_db


def code_for(secret: str) -> str:
    """What an authenticator app shows now, as a code that was not used yet."""
    cache.clear()
    return str(format_hotp_value(hotp_value(secret, int(time.time()) // 30)))


def turn_on(browser: Client) -> tuple[str, list[str]]:
    """The secret and the recovery codes, as the pages show them."""
    asked = browser.get("/account/second-factor/on/", follow=True)
    assert asked.request["PATH_INFO"] == "/account/confirm/", "who it is must be proved anew"
    form = {"password": PASSWORD, "next": "/account/second-factor/on/"}
    page = browser.post("/account/confirm/", form, follow=True)
    found = re.search(r"data-totp-secret>([A-Z2-7]+)<", page.content.decode())
    assert found is not None
    codes_page = browser.post("/account/second-factor/on/", {"code": code_for(found[1])}, follow=True)
    return found[1], re.findall(r"<code>(\d+)</code>", codes_page.content.decode())


@pytest.fixture
def secret_and_codes(ada: User) -> tuple[str, list[str]]:
    return turn_on(log_in(ada.email))


def first_step() -> Client:
    browser = Client()
    response = browser.post("/login/", {"login": "ada@example.org", "password": PASSWORD})
    assert response.headers["Location"] == "/login/code/"
    return browser


def test_the_password_alone_lets_nobody_in(secret_and_codes: tuple[str, list[str]]) -> None:
    assert not is_logged_in(first_step())


def test_a_code_of_the_app_is_the_second_step(secret_and_codes: tuple[str, list[str]]) -> None:
    browser = first_step()
    assert browser.post("/login/code/", {"code": "000000"}).status_code == 200
    assert not is_logged_in(browser)
    assert browser.post("/login/code/", {"code": code_for(secret_and_codes[0])}).headers["Location"] == "/"
    assert is_logged_in(browser)


def test_a_code_works_once(secret_and_codes: tuple[str, list[str]]) -> None:
    code = code_for(secret_and_codes[0])
    first_step().post("/login/code/", {"code": code})
    other = first_step()
    assert other.post("/login/code/", {"code": code}).status_code == 200
    assert not is_logged_in(other)


def test_a_recovery_code_is_as_good_once(secret_and_codes: tuple[str, list[str]]) -> None:
    codes = secret_and_codes[1]
    assert len(codes) == len(set(codes)) == 10
    browser = first_step()
    browser.post("/login/code/", {"code": codes[0]})
    assert is_logged_in(browser)
    again = first_step()
    again.post("/login/code/", {"code": codes[0]})
    assert not is_logged_in(again)


def test_recovery_codes_are_shown_once(ada: User) -> None:
    browser = log_in(ada.email)
    _, codes = turn_on(browser)
    page = browser.get("/account/second-factor/codes/").content.decode()
    assert not any(code in page for code in codes)


def test_the_first_step_can_be_given_up(secret_and_codes: tuple[str, list[str]]) -> None:
    browser = first_step()
    browser.post("/logout/")
    assert browser.get("/login/").status_code == 200


def test_it_can_be_turned_off_again(ada: User) -> None:
    browser = log_in(ada.email)
    turn_on(browser)
    assert browser.post("/account/second-factor/off/").status_code == 302
    assert is_logged_in(log_in(ada.email))


def test_the_admin_is_no_way_around_it(ada: User, secret_and_codes: tuple[str, list[str]]) -> None:
    User.objects.update(is_staff=True, is_superuser=True)
    browser = Client()
    form = {"username": ada.email, "password": PASSWORD, "next": "/admin/"}
    response = browser.post("/admin/login/", form)
    assert response.headers["Location"].startswith("/login/?next=")
    assert browser.get("/admin/").status_code == 302


def test_the_database_holds_no_secret(secret_and_codes: tuple[str, list[str]]) -> None:
    secret, codes = secret_and_codes
    stored = str(list(Authenticator.objects.values()))
    assert secret not in stored
    assert not any(code in stored for code in codes)


def test_a_key_that_was_replaced_still_reads(settings: Settings) -> None:
    stored = MfaAdapter().encrypt("a secret")
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key of the site, as long as such keys should be, say fifty characters"
    assert MfaAdapter().decrypt(stored) == "a secret"


def test_what_cannot_be_read_fits_no_code(settings: Settings) -> None:
    stored = MfaAdapter().encrypt("a secret")
    settings.SECRET_KEY = "another key of the site, as long as such keys should be, say fifty characters"
    unreadable = MfaAdapter().decrypt(stored)
    assert unreadable not in ("", "a secret")
    assert unreadable != MfaAdapter().decrypt(stored)
