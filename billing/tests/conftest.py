"""Fixtures of billing's tests: a user, the default plan, and a moment."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser

from billing.models import Plan


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def free(db: None) -> Plan:
    """A test with real transactions finds the database without the rows that migrations made."""
    return Plan.objects.get_or_create(slug="free", defaults={"name": "Free", "is_default": True})[0]


@pytest.fixture
def ada(db: None) -> AbstractBaseUser:
    return get_user_model().objects.create_user(email="ada@example.org")
