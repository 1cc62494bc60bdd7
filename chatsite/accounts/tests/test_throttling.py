"""What happens to those who try too often."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from chatsite.accounts import keys
from chatsite.accounts.models import User
from chatsite.accounts.tests.conftest import PASSWORD, is_logged_in
from chatsite.settings.accounts import ACCOUNT_RATE_LIMITS

pytestmark = [pytest.mark.django_db, pytest.mark.urls("chatsite.tests.urls")]
API = "/api/auth/app/v1/auth"


@pytest.fixture(autouse=True)
def _real_limits(settings: Settings) -> None:
    settings.ACCOUNT_RATE_LIMITS = dict(ACCOUNT_RATE_LIMITS)


def log_in(address: str = "192.0.2.1", email: str = "ada@example.org", password: str = "wrong", **more: Any) -> int:
    response = Client(REMOTE_ADDR=address, **more).post("/login/", {"login": email, "password": password})
    if response.status_code == 429:
        assert int(response.headers["Retry-After"]) > 0
        assert b"oo many" in response.content
    return response.status_code


def test_an_account_whose_password_is_guessed_is_closed_to_everybody_for_a_while(ada: User) -> None:
    statuses = [log_in(address=f"192.0.2.{number}") for number in range(6)]
    assert statuses == [200] * 5 + [429]
    assert log_in(address="192.0.2.99", password=PASSWORD) == 429
    assert log_in(email="bob@example.org") == 200


def test_the_host_header_is_no_way_around_it(ada: User, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert [log_in(HTTP_HOST=f"{n}.example") for n in range(6)][-1] == 429


def test_an_address_that_tries_many_accounts_is_stopped() -> None:
    statuses = [log_in(email=f"user-{number}@example.org") for number in range(21)]
    assert statuses == [200] * 20 + [429]
    assert log_in(address="198.51.100.1", email="user-99@example.org") == 200


def test_logging_in_rightly_does_not_count(ada: User) -> None:
    assert {log_in(password=PASSWORD) for _ in range(12)} == {302}


def test_x_forwarded_for_is_believed_only_behind_a_proxy_of_ours(settings: Settings) -> None:
    def attempt(number: int, header: str) -> int:
        return log_in(email=f"user-{number}@example.org", HTTP_X_FORWARDED_FOR=header)

    assert [attempt(n, f"203.0.113.{n}") for n in range(21)][-1] == 429
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = 1
    assert attempt(0, "203.0.113.7") == 200, "the proxy's word counts, not its own address"
    last = [attempt(n, f"198.51.100.{n}, 203.0.113.8") for n in range(21)][-1]
    assert last == 429, "what the client put before the proxy's word does not"


def test_an_ipv6_network_counts_as_one_address() -> None:
    statuses = [log_in(address=f"2001:db8:1:2::{n:x}", email=f"user-{n}@example.org") for n in range(21)]
    assert statuses[-1] == 429


def test_signing_up_is_limited_by_address() -> None:
    def sign_up(number: int) -> int:
        form = {"email": f"eve-{number}@example.org", "password1": "short"}
        return Client(REMOTE_ADDR="192.0.2.1").post("/signup/", form).status_code

    assert [sign_up(number) for number in range(11)] == [200] * 10 + [429]


def test_asking_for_links_is_limited_by_account_and_address(ada: User) -> None:
    def ask(number: int, email: str) -> int:
        return Client(REMOTE_ADDR=f"192.0.2.{number}").post("/password/reset/", {"email": email}).status_code

    assert [ask(number, ada.email) for number in range(6)] == [302] * 5 + [429]
    assert [ask(200, f"user-{number}@example.org") for number in range(11)] == [302] * 10 + [429]


def test_mobile_clients_are_told_in_their_own_words(ada: User) -> None:
    body = {"email": ada.email, "password": "wrong"}
    for _ in range(5):
        assert Client().post(f"{API}/login", body, content_type="application/json").status_code == 400
    response = Client().post(f"{API}/login", body, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (429, "throttled")
    assert response.headers["Content-Type"] == "application/problem+json"
    assert int(response.headers["Retry-After"]) > 0
    sign_ups = [
        Client().post(f"{API}/signup", {"email": f"e{n}@example.org"}, content_type="application/json")
        for n in range(11)
    ]
    assert sign_ups[-1].status_code == 429
    assert sign_ups[-1].json()["code"] == "throttled"


def test_an_account_has_so_many_api_requests_a_minute(ada: User, bob: User, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE = 3
    now = timezone.now()
    secrets = [keys.create(user=ada, name="", now=now).secret for _ in range(2)]
    others = keys.create(user=bob, name="", now=now).secret

    def get(secret: str) -> int:
        response = Client(headers={"authorization": f"Bearer {secret}"}).get("/api/probe")
        if response.status_code == 429:
            assert response.json()["code"] == "throttled"
            assert 1 <= int(response.headers["Retry-After"]) <= 60
        return response.status_code

    # A minute may end in between: of seven, at most six can be within limits.
    statuses = [get(secrets[number % 2]) for number in range(7)]
    assert statuses[:3] == [200] * 3
    assert 429 in statuses
    assert get(others) == 200


def test_an_address_has_so_many_with_all_its_accounts(ada: User, bob: User, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS = 2
    secrets = [keys.create(user=user, name="", now=timezone.now()).secret for user in (ada, bob)]
    statuses = [
        Client(headers={"authorization": f"Bearer {secrets[n % 2]}"}).get("/api/probe").status_code for n in range(5)
    ]
    assert 429 in statuses


def test_who_guesses_keys_is_stopped_and_who_has_one_is_not(ada: User, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS = 1_000
    good = keys.create(user=ada, name="", now=timezone.now()).secret

    def get(token: str) -> int:
        return Client(headers={"authorization": f"Bearer {token}"}).get("/api/probe").status_code

    statuses = [get("sk-" + "a" * 43 if n % 2 else "neither") for n in range(122)]
    assert set(statuses) == {401, 429}
    assert get(good) == 200


def test_wrong_codes_of_the_second_step_are_limited(ada: User) -> None:
    from chatsite.accounts.tests.test_second_factor import turn_on

    browser = Client()
    browser.post("/login/", {"login": ada.email, "password": PASSWORD})
    turn_on(browser)
    thief = Client()
    thief.post("/login/", {"login": ada.email, "password": PASSWORD})
    statuses = [thief.post("/login/code/", {"code": f"{n:06}"}).status_code for n in range(6)]
    assert statuses == [200] * 5 + [429]
    assert not is_logged_in(thief)
