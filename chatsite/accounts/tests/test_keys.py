"""Making, recognising and revoking API keys."""

import hashlib
import re
from datetime import datetime, timedelta

import pytest
from pytest_django import DjangoAssertNumQueries

from chatsite.accounts import accounts, keys
from chatsite.accounts.errors import InvalidApiKey
from chatsite.accounts.models import ApiKey, User


def test_a_key_has_the_documented_format(ada: User, now: datetime) -> None:
    secret = keys.create(user=ada, name="laptop", now=now).secret
    assert re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", secret)


def test_only_the_hash_and_the_beginning_are_stored(ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    row = ApiKey.objects.values().get(pk=new.api_key.pk)
    assert row["sha256"] == hashlib.sha256(new.secret.encode()).hexdigest()
    assert row["prefix"] == new.secret[:9]
    assert not any(new.secret in str(value) for value in row.values())
    assert new.secret not in repr(new)


def test_two_keys_differ(ada: User, now: datetime) -> None:
    made = {keys.create(user=ada, name="", now=now).secret for _ in range(20)}
    assert len(made) == 20


def test_a_key_is_recognised_with_its_user(
    ada: User, now: datetime, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    secret = keys.create(user=ada, name="laptop", now=now).secret
    keys.authenticate(secret=secret, now=now)
    with django_assert_num_queries(1):
        assert keys.authenticate(secret=secret, now=now).user == ada


def test_use_is_noted_at_most_once_a_minute(ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)

    def last_used(after: timedelta) -> datetime | None:
        keys.authenticate(secret=new.secret, now=now + after)
        return ApiKey.objects.get(pk=new.api_key.pk).last_used_at

    assert last_used(timedelta(0)) == now
    assert last_used(timedelta(seconds=59)) == now
    assert last_used(timedelta(seconds=60)) == now + timedelta(seconds=60)
    assert last_used(timedelta(seconds=119)) == now + timedelta(seconds=60)


def test_a_late_process_does_not_set_the_last_use_back(ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    keys.authenticate(secret=new.secret, now=now + timedelta(minutes=5))
    keys.authenticate(secret=new.secret, now=now)
    assert ApiKey.objects.get(pk=new.api_key.pk).last_used_at == now + timedelta(minutes=5)


def test_a_revoked_key_is_refused_at_once(ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    assert keys.revoke(api_key=new.api_key, now=now)
    with pytest.raises(InvalidApiKey):
        keys.authenticate(secret=new.secret, now=now)


def test_revoking_twice_keeps_the_first_time(ada: User, now: datetime) -> None:
    new = keys.create(user=ada, name="laptop", now=now)
    assert keys.revoke(api_key=new.api_key, now=now)
    assert not keys.revoke(api_key=new.api_key, now=now + timedelta(hours=1))
    assert ApiKey.objects.get(pk=new.api_key.pk).revoked_at == now


def test_revoking_one_key_leaves_the_others(ada: User, now: datetime) -> None:
    lost = keys.create(user=ada, name="phone", now=now)
    kept = keys.create(user=ada, name="laptop", now=now)
    keys.revoke(api_key=lost.api_key, now=now)
    assert keys.authenticate(secret=kept.secret, now=now) == kept.api_key


def test_the_keys_of_an_inactive_user_are_refused(ada: User, now: datetime) -> None:
    secret = keys.create(user=ada, name="laptop", now=now).secret
    ada.is_active = False
    ada.save()
    with pytest.raises(InvalidApiKey):
        keys.authenticate(secret=secret, now=now)


@pytest.mark.parametrize("secret", ["", "sk-", "sk-" + "a" * 43, "sk-" + "a" * 44, "a" * 46, "sk-" + "ä" * 43])
def test_what_is_no_key_is_refused(db: None, now: datetime, secret: str) -> None:
    with pytest.raises(InvalidApiKey):
        keys.authenticate(secret=secret, now=now)


def test_a_key_does_not_pass_with_something_around_it(ada: User, now: datetime) -> None:
    secret = keys.create(user=ada, name="laptop", now=now).secret
    for changed in (secret + "\n", " " + secret, secret[:-1], secret.upper()):
        with pytest.raises(InvalidApiKey):
            keys.authenticate(secret=changed, now=now)


def test_keys_of_two_users_are_told_apart(ada: User, now: datetime) -> None:
    bob = accounts.open_account(email="bob@example.org", password=None)
    of_ada = keys.create(user=ada, name="", now=now).secret
    of_bob = keys.create(user=bob, name="", now=now).secret
    assert keys.authenticate(secret=of_ada, now=now).user == ada
    assert keys.authenticate(secret=of_bob, now=now).user == bob
