"""The first account of an empty instance."""

import threading
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from pytest_django import Settings

from chatsite.accounts import accounts
from chatsite.accounts.models import FirstAdministrator, User
from chatsite.accounts.tests.conftest import PASSWORD

LOCAL = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "127.0.0.1:8000"}


@pytest.fixture(autouse=True)
def _bound_to_loopback(settings: Settings) -> None:
    settings.FIRST_ACCOUNT_IS_ADMINISTRATOR = True


def sign_up(email: str, **environment: Any) -> User:
    form = {"email": email, "password1": PASSWORD}
    response = Client().post("/signup/", form, **(LOCAL | environment))
    assert response.status_code == 302, response.content.decode()
    return User.objects.get(email=email)


@pytest.mark.django_db
def test_the_first_account_becomes_administrator_and_the_second_does_not() -> None:
    assert sign_up("first@example.org").is_superuser
    second = sign_up("second@example.org")
    assert not second.is_superuser
    assert not second.is_staff
    assert FirstAdministrator.objects.get().user == User.objects.get(email="first@example.org")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("attempt", range(3))
def test_two_first_sign_ups_that_race_make_one_administrator(attempt: int) -> None:
    barrier = threading.Barrier(6)
    failures: list[BaseException] = []

    def race(number: int) -> None:
        try:
            barrier.wait()
            sign_up(f"racer-{number}@example.org")
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert User.objects.count() == 6
    assert User.objects.filter(is_superuser=True).count() == 1
    assert User.objects.filter(is_staff=True).count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "environment",
    [
        {"REMOTE_ADDR": "192.168.1.7"},
        {"HTTP_X_FORWARDED_FOR": "127.0.0.1"},
        {"HTTP_FORWARDED": "for=127.0.0.1"},
        {"HTTP_X_REAL_IP": "127.0.0.1"},
        {"HTTP_HOST": "chat.example"},
    ],
    ids=str,
)
def test_a_request_from_elsewhere_or_through_a_proxy_makes_none(
    settings: Settings, environment: dict[str, str]
) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert not sign_up("first@example.org", **environment).is_superuser


@pytest.mark.django_db
def test_a_server_bound_to_more_than_loopback_makes_none(settings: Settings) -> None:
    settings.FIRST_ACCOUNT_IS_ADMINISTRATOR = False
    assert not sign_up("first@example.org").is_superuser


@pytest.mark.django_db
def test_it_happens_once_even_when_the_instance_is_empty_again() -> None:
    sign_up("first@example.org").delete()
    assert not sign_up("second@example.org").is_superuser


@pytest.mark.django_db
def test_an_instance_that_has_a_user_is_not_empty() -> None:
    accounts.open_account(email="robot@example.org", password=None)
    assert not sign_up("first@example.org").is_superuser


@pytest.mark.django_db
def test_a_mobile_client_can_be_first_as_well() -> None:
    body = {"email": "first@example.org", "password": PASSWORD}
    Client().post("/api/auth/app/v1/auth/signup", body, content_type="application/json", **LOCAL)  # type: ignore[arg-type]
    assert User.objects.get().is_superuser
