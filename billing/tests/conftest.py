"""Fixtures of billing's tests: a user, the default plan, and a moment."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.test import Client

from billing.models import Plan


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def free(db: None) -> Plan:
    """A test with real transactions finds the database without the rows that migrations made."""
    return Plan.objects.get_or_create(slug="free", defaults={"name": "Free", "is_default": True})[0]


@pytest.fixture
def team(db: None) -> Plan:
    """A plan that nobody has yet."""
    return Plan.objects.create(
        slug="team",
        long_memory=True,
        name="Team",
        weight=4,
        concurrent_runs=5,
        max_prompt_tokens=8000,
        max_output_tokens=900,
        budget_tokens=50_000,
        refill_per_hour=1_000,
        output_floor=32,
        messages_per_hour=40,
        queue_wait_s=60,
        overflow="refuse",
        unwatched="shorten",
        unwatched_tokens=128,
    )


@pytest.fixture
def ada(db: None) -> AbstractBaseUser:
    return get_user_model().objects.create_user(email="ada@example.org")


@pytest.fixture
def root(db: None) -> Any:
    return get_user_model().objects.create_superuser(email="root@example.org", password="p")


@pytest.fixture
def operator(root: Any) -> Client:
    """Root's browser."""
    client = Client()
    client.force_login(root)
    return client
