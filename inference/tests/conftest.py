"""Fixtures of inference's tests: this process's connection to Redis, the default pool and plan, and a user."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import transaction
from uuid_utils.compat import uuid7

from billing.models import Plan
from inference import runs, store
from inference.cell.link import Cell
from inference.models import ModelPool, Run
from inference.tests.gate import Gate
from tests.services import Valkey


@pytest.fixture
def cell(valkey: Valkey) -> Cell:
    return store.connector().cell()


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def ada(db: None) -> AbstractBaseUser:
    return get_user_model().objects.create_user(email="ada@example.org")


@pytest.fixture
def pool(db: None) -> ModelPool:
    """A test with real transactions finds the database without the rows that migrations made."""
    Plan.objects.get_or_create(slug="free", defaults={"name": "Free", "is_default": True})
    return ModelPool.objects.get_or_create(slug="default", defaults={"name": "Default", "is_default": True})[0]


@pytest.fixture
def gate(valkey: Valkey, ada: Any, pool: ModelPool, now: datetime) -> Gate:
    return Gate(user_id=ada.pk, pool=pool, now=now)


@pytest.fixture
def accept(ada: Any, pool: ModelPool, now: datetime) -> Callable[..., Run]:
    """Accepts a run of Ada's: a prompt of three tokens, an answer of up to 100."""

    def accept_one(**changes: Any) -> Run:
        given: dict[str, Any] = {
            "run_id": uuid7(),
            "owner_id": ada.pk,
            "chat_id": uuid4(),
            "turn": "t1",
            "pool": pool,
            "model": "m",
            "admission_id": uuid4(),
            "prompt_ids": [1, 2, 3],
            "max_output_tokens": 100,
            "context": {"trimmed": False},
            "now": now,
        }
        with transaction.atomic():
            return runs.accept(**given | changes)

    return accept_one
