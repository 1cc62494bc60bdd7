"""The admin screens for users and keys."""

from datetime import datetime

import pytest
from django.test import Client

from chatsite.accounts import accounts, keys
from chatsite.accounts.errors import InvalidApiKey
from chatsite.accounts.models import ApiKey, User
from chatsite.accounts.tests.conftest import PASSWORD


@pytest.fixture
def admin_site(client: Client, db: None) -> Client:
    client.force_login(accounts.open_account(email="root@example.org", password=PASSWORD, administrator=True))
    return client


def test_a_user_is_added_with_a_normalised_address(admin_site: Client) -> None:
    form = {
        "email": "New@Example.org",
        "usable_password": "true",
        "password1": PASSWORD,
        "password2": PASSWORD,
    }
    assert admin_site.post("/admin/accounts/user/add/", form).status_code == 302
    user = User.objects.get(email="new@example.org")
    assert user.check_password(PASSWORD)
    assert not user.is_staff


def test_an_address_that_differs_in_case_only_is_refused_in_the_form(admin_site: Client, ada: User) -> None:
    form = {
        "email": "ADA@example.org",
        "usable_password": "true",
        "password1": PASSWORD,
        "password2": PASSWORD,
    }
    response = admin_site.post("/admin/accounts/user/add/", form)
    assert response.status_code == 200
    assert b"already exists" in response.content
    assert User.objects.filter(email__iexact="ada@example.org").count() == 1


def test_keys_are_listed_without_secrets_and_searched_by_owner(admin_site: Client, ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    page = admin_site.get("/admin/accounts/apikey/", {"q": "ada@"}).content.decode()
    assert new.api_key.prefix in page
    assert new.secret not in page
    assert new.api_key.sha256 not in page
    detail = admin_site.get(f"/admin/accounts/apikey/{new.api_key.pk}/change/").content.decode()
    assert new.api_key.sha256 not in detail


def test_keys_can_be_revoked_there_and_not_made(admin_site: Client, ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    assert admin_site.get("/admin/accounts/apikey/add/").status_code == 403
    form = {"action": "revoke", "_selected_action": [str(new.api_key.pk)]}
    assert admin_site.post("/admin/accounts/apikey/", form).status_code == 302
    assert ApiKey.objects.get().revoked_at is not None
    with pytest.raises(InvalidApiKey):
        keys.authenticate(secret=new.secret, now=now)


def test_a_user_who_is_no_staff_sees_no_admin_page(client: Client, ada: User) -> None:
    client.force_login(ada)
    assert client.get("/admin/accounts/user/").status_code == 302
