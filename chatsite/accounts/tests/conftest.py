"""Fixtures of the accounts' tests."""

from datetime import UTC, datetime

import pytest

from chatsite.accounts import accounts
from chatsite.accounts.models import User

PASSWORD = "correct horse battery staple"


@pytest.fixture
def ada(db: None) -> User:
    return accounts.open_account(email="ada@example.org", password=PASSWORD)


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
