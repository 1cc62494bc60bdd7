"""Users as stored."""

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from chatsite.accounts import accounts
from chatsite.accounts.errors import EmailTaken
from chatsite.accounts.models import User

pytestmark = pytest.mark.django_db


def test_ids_are_uuids_of_version_7_in_order_of_creation() -> None:
    first = accounts.open_account(email="a@example.org", password=None)
    second = accounts.open_account(email="b@example.org", password=None)
    assert first.pk.version == second.pk.version == 7
    assert first.pk < second.pk


def test_an_address_is_stored_in_one_spelling() -> None:
    assert accounts.open_account(email=" Ada.L@Example.ORG ", password=None).email == "ada.l@example.org"


@pytest.mark.parametrize("spelling", ["ada@example.org", "ADA@EXAMPLE.ORG", " Ada@Example.org "])
def test_an_account_is_found_by_its_address_in_any_case(spelling: str) -> None:
    ada = accounts.open_account(email="Ada@example.org", password=None)
    assert accounts.find(email=spelling) == ada
    assert accounts.find(email="someone.else@example.org") is None


def test_an_address_opens_one_account_whatever_its_case() -> None:
    accounts.open_account(email="ada@example.org", password=None)
    with pytest.raises(EmailTaken) as refusal:
        accounts.open_account(email="ADA@example.org", password="another")
    assert refusal.value.email == "ada@example.org"
    assert User.objects.count() == 1


def test_the_database_itself_refuses_a_second_spelling() -> None:
    User.objects.bulk_create([User(email="ada@example.org")])
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.bulk_create([User(email="Ada@Example.org")])


@pytest.mark.parametrize("email", ["", "ada", "ada@", "@example.org", "ada@exa mple.org", "ada\x00@example.org"])
def test_what_is_no_address_opens_no_account(email: str) -> None:
    with pytest.raises(ValidationError):
        accounts.open_account(email=email, password=None)
    assert not User.objects.exists()


def test_an_account_without_a_password_lets_nobody_log_in() -> None:
    user = accounts.open_account(email="ada@example.org", password=None)
    assert not user.has_usable_password()
    assert not user.is_staff
    assert not user.is_superuser


def test_an_administrator_may_do_everything() -> None:
    user = accounts.open_account(email="root@example.org", password="secret", administrator=True)
    assert user.is_staff
    assert user.has_perm("accounts.delete_user")
    assert user.check_password("secret")


def test_djangos_own_way_to_an_administrator_works_too() -> None:
    user = User.objects.create_superuser(email="Root@example.org", password="secret")
    assert (user.email, user.is_staff, user.is_superuser) == ("root@example.org", True, True)


def test_a_user_is_called_by_name_or_else_by_address() -> None:
    assert User(email="ada@example.org", name="Ada").get_short_name() == "Ada"
    assert User(email="ada@example.org").get_short_name() == "ada"
    assert User(email="ada@example.org").get_full_name() == str(User(email="ada@example.org"))
