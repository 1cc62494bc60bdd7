"""No number of billing that counts something is negative, whoever writes it: the database refuses."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import IntegrityError, models, transaction

from billing.models import Account, Adjustment, DailyUsage, LimitOverride, Plan, UsageEntry
from billing.tests.support import NOON
from inference.models import ModelPool

# Adjustments alone may take off. The pool's prices are what charges are made of.
SIGNED = {("adjustment", "tokens"), ("adjustment", "cost")}
MADE: dict[type[models.Model], dict[str, Any]] = {
    Account: {"debt_at": NOON},
    Adjustment: {"tokens": -1, "cost": -1, "reason": "x", "created_at": NOON},
    DailyUsage: {"day": NOON.date(), "pool": "default"},
    LimitOverride: {},
    Plan: {"slug": "a", "name": "A", "unwatched": "finish"},
    UsageEntry: {
        "run_id": uuid4(), "epoch": 1, "admission_id": uuid4(), "pool": "p", "reason": "lost", "created_at": NOON,
        "prompt_tokens": 1,
    },
    ModelPool: {"slug": "a", "name": "A"},
}  # fmt: skip


def counts(model: type[models.Model]) -> Iterator[str]:
    for field in model._meta.concrete_fields:
        is_key = field.primary_key or field.is_relation
        if isinstance(field, models.IntegerField) and not is_key and (model._meta.model_name, field.name) not in SIGNED:
            yield field.name


CASES = [(model, name) for model in MADE for name in counts(model) if model is not ModelPool or name.endswith("_price")]


def test_every_table_of_billing_that_counts_is_among_these() -> None:
    counting = {model for model in apps.get_app_config("billing").get_models() if list(counts(model))}
    assert counting <= set(MADE)
    assert len(CASES) > 35


@pytest.mark.parametrize(("model", "name"), CASES, ids=lambda one: getattr(one, "__name__", one))
def test_nothing_that_is_counted_is_negative(ada: Any, model: type[models.Model], name: str) -> None:
    row = MADE[model] | ({"user": ada} if any(field.name == "user" for field in model._meta.fields) else {})
    # Budget and refill go together.
    both = (
        {"budget_tokens", "refill_per_hour"} & set(counts(model))
        if name in ("budget_tokens", "refill_per_hour")
        else ()
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        model._default_manager.create(**row | dict.fromkeys(both, 5) | {name: -1})
    model._default_manager.create(**row | dict.fromkeys(both, 5) | {name: 1})
