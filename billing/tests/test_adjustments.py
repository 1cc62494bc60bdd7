"""Adjustments: what people add to charges or take off them, once each, for good, with a reason."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from billing import adjustments
from billing import api as billing
from billing.contracts import Adjusted
from billing.errors import AccountRebuilt, LedgerIsAppendOnly
from billing.models import Adjustment
from billing.models.ledger import MOST_COST, MOST_TOKENS
from billing.tests.support import record

AUTHOR = UUID(int=9)


@pytest.fixture
def adjust(ada: Any, now: datetime) -> Any:
    """Gives Ada 100 tokens back."""
    given = {"user_id": ada.pk, "tokens": -100, "cost": 0, "reason": "An outage", "now": now}
    return partial(adjustments.adjust, author_id=AUTHOR, author_email="root@example.org", **given)


def test_an_adjustment_says_how_much_why_by_whom_and_when(adjust: Any, ada: Any, now: datetime) -> None:
    made = adjust(cost=-250)
    assert Adjustment.objects.get() == made
    assert (made.user_id, made.tokens, made.cost, made.reason) == (ada.pk, -100, -250, "An outage")
    assert (made.author_id, made.author_email, made.created_at) == (AUTHOR, "root@example.org", now)
    assert str(made) == f"-100 tokens, -250 of cost: {made.pk}"


def test_admissions_in_flight_are_void_after_an_adjustment(adjust: Any, ada: Any) -> None:
    generation = billing.account_generation(user_id=ada.pk)
    adjust()
    with pytest.raises(AccountRebuilt), transaction.atomic():
        billing.lock_account(user_id=ada.pk, generation=generation)


@pytest.mark.parametrize(
    "bad",
    [
        {"tokens": 0, "cost": 0},
        {"reason": ""},
        {"tokens": MOST_TOKENS + 1},
        {"tokens": -MOST_TOKENS - 1},
        {"cost": MOST_COST + 1},
        {"cost": -MOST_COST - 1},
    ],
)
def test_an_adjustment_of_nothing_without_reason_or_beyond_all_bounds_is_not_stored(
    adjust: Any, ada: Any, bad: dict[str, Any]
) -> None:
    generation = billing.account_generation(user_id=ada.pk)
    with pytest.raises(IntegrityError), transaction.atomic():
        adjust(**bad)
    assert not Adjustment.objects.exists()
    assert billing.account_generation(user_id=ada.pk) == generation


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"tokens": 0}, {"tokens"}),
        ({"tokens": MOST_TOKENS + 1}, {"tokens"}),
        ({"cost": -MOST_COST - 1, "tokens": -MOST_TOKENS - 1}, {"tokens", "cost"}),
    ],
)
def test_a_form_is_told_in_words_which_number_is_wrong(changes: dict[str, int], fields: set[str]) -> None:
    with pytest.raises(ValidationError) as refusal:
        Adjustment(**{"tokens": -100, "cost": 0, "reason": "x"} | changes).clean()
    assert set(refusal.value.message_dict) == fields


@pytest.mark.parametrize(
    "given", [{"tokens": MOST_TOKENS, "cost": -MOST_COST}, {"tokens": 0, "cost": 1}, {"tokens": None, "cost": 0}]
)
def test_what_the_bounds_allow_is_fine_and_a_missing_number_is_its_fields_own_matter(given: dict[str, Any]) -> None:
    Adjustment(reason="x", **given).clean()


def test_one_key_adjusts_once(adjust: Any) -> None:
    key = uuid4()
    assert adjust(key=key).pk == key
    with pytest.raises(IntegrityError), transaction.atomic():
        adjust(key=key)
    assert adjust().pk != adjust().pk
    assert Adjustment.objects.count() == 3


def test_an_adjustment_is_never_changed_or_deleted(adjust: Any) -> None:
    made = adjust()
    for attempt in (made.save, made.delete, Adjustment.objects.all().delete):
        with pytest.raises(LedgerIsAppendOnly):
            attempt()
    with pytest.raises(LedgerIsAppendOnly):
        Adjustment.objects.update(tokens=0)
    assert Adjustment.objects.get().tokens == -100


def test_a_deleted_users_adjustments_stay_without_a_name(adjust: Any, ada: Any) -> None:
    adjust()
    ada.delete()
    assert Adjustment.objects.get().user_id is None


def test_what_runs_used_stays_what_it_was_and_the_balance_is_both(adjust: Any, ada: Any, now: datetime) -> None:
    record(ada)
    adjust(cost=5)
    adjust(tokens=7, cost=-2)
    assert billing.used_tokens(user_id=ada.pk) == 15
    assert billing.usage_of(user_ids=[ada.pk], since=now)[ada.pk].charged == 15
    assert billing.adjusted(user_id=ada.pk, since=now) == Adjusted(tokens=-93, cost=3)


def test_adjustments_are_summed_from_a_moment_on_and_of_one_user(adjust: Any, ada: Any, now: datetime) -> None:
    adjust(now=now - timedelta(microseconds=1))
    assert billing.adjusted(user_id=ada.pk, since=now) == Adjusted()
    adjust(now=now)
    assert billing.adjusted(user_id=ada.pk, since=now) == Adjusted(tokens=-100)
    assert billing.adjusted(user_id=uuid4(), since=now) == Adjusted()
