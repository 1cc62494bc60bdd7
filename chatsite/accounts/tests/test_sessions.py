"""Session keys that are none."""

import pytest

from chatsite.accounts.sessions import SessionStore


@pytest.mark.parametrize("key", ["a" * 31 + "\x00", "A" * 32, "a" * 33, "short", "a" * 32 + "\n", "", None])
def test_what_does_not_look_like_a_key_reaches_no_database(key: str | None) -> None:
    assert SessionStore(key).session_key is None


@pytest.mark.django_db
def test_a_stored_session_is_found_by_its_key() -> None:
    stored = SessionStore()
    stored["colour"] = "green"
    stored.create()
    stored.save()
    assert SessionStore(stored.session_key)["colour"] == "green"
