"""What a form chooses rows by may be anything; what can be no row's key is refused, not looked for."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from billing.models import Subscription
from chatsite.accounts import accounts
from chatsite.accounts.models import ApiKey, User
from chatsite.administration.choices import can_be_key

pytestmark = pytest.mark.django_db

IMPOSSIBLE = ["9" * 30, "-" + "9" * 30, "\0", "a\0b", "abc", "1.5", "[]"]


@pytest.fixture
def administrator() -> User:
    return accounts.open_account(email="root@example.org", password=None, administrator=True)


@pytest.fixture
def browser(client: Client, administrator: User) -> Client:
    client.force_login(administrator)
    return client


def post(browser: Client, name: str, body: dict[str, Any], *args: Any) -> Any:
    return browser.post(reverse(f"admin:{name}", args=args), body)


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_a_key_that_no_row_can_have_is_told(key: str) -> None:
    assert not can_be_key(Group, key)
    assert not can_be_key(User, key)


def test_a_key_that_a_row_could_have_is_let_through(administrator: User) -> None:
    assert can_be_key(Group, "7")
    assert can_be_key(User, str(administrator.pk))


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_a_group_with_impossible_permissions_is_refused_in_its_form(browser: Client, key: str) -> None:
    response = post(browser, "auth_group_add", {"name": "Some", "permissions": [key]})
    assert response.status_code == 200
    assert response.context["adminform"].form.errors["permissions"]
    assert not Group.objects.exists()


@pytest.mark.parametrize("key", [*IMPOSSIBLE, "00000000-0000-0000-0000-000000000007"])
def test_a_subscription_of_nobody_is_refused_in_its_form(browser: Client, key: str) -> None:
    response = post(
        browser, "billing_subscription_add", {"user": key, "starts_at_0": "2026-03-01", "starts_at_1": "12:00"}
    )
    assert response.status_code == 200
    assert response.context["adminform"].form.errors["user"]
    assert not Subscription.objects.exists()


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_an_action_on_impossible_rows_does_nothing_and_says_so(browser: Client, administrator: User, key: str) -> None:
    own = ApiKey.objects.create(
        user=administrator, prefix="sk-x", sha256="x", created_at=datetime(2026, 3, 1, tzinfo=UTC)
    )
    response = post(browser, "accounts_apikey_changelist", {"action": "revoke", "_selected_action": [str(own.pk), key]})
    assert response.status_code == 302
    assert "no such rows" in browser.get(response.headers["Location"]).content.decode()
    own.refresh_from_db()
    assert own.revoked_at is None
