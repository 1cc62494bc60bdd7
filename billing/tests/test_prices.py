"""What a charge costs: the prices of its moment, rounded once, and amounts as people read them."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from billing import api as billing
from billing import money
from billing.contracts import Prices, Used
from billing.models import UsageEntry
from billing.tests.support import charge, record

PRICES = Prices(prompt=3_000_000, cached=300_000, output=15_000_000)


def test_a_row_keeps_the_prices_of_its_moment_and_what_it_cost(ada: Any) -> None:
    record(ada, prices=PRICES)
    row = UsageEntry.objects.get()
    assert (row.prompt_price, row.cached_price, row.output_price) == (3_000_000, 300_000, 15_000_000)
    # 6 uncached at 3, 4 cached at 0.3, 5 output at 15 a million.
    assert row.cost == 6 * 3 + 1 + 5 * 15


@pytest.mark.parametrize(
    ("tokens", "price", "cost"),
    [(1, 499_999, 0), (1, 500_000, 1), (3, 500_000, 2), (1, 1_499_999, 1), (1, 0, 0), (10, 1, 0)],
)
def test_a_cost_is_rounded_half_up(ada: Any, tokens: int, price: int, cost: int) -> None:
    one = charge(ada, prompt_tokens=tokens, cached_tokens=0, output_tokens=0, prices=Prices(prompt=price))
    assert one.cost == cost


def test_a_cost_is_rounded_once_and_not_for_each_kind_of_tokens(ada: Any) -> None:
    third = Prices(prompt=400_000, cached=400_000, output=400_000)
    assert charge(ada, prompt_tokens=2, cached_tokens=1, output_tokens=1, prices=third).cost == 1


def test_cached_tokens_cost_the_cached_price_alone(ada: Any) -> None:
    assert charge(ada, prompt_tokens=10, cached_tokens=10, output_tokens=0, prices=PRICES).cost == 3


def test_what_was_wasted_costs_nothing(ada: Any) -> None:
    lost = charge(ada, prompt_tokens=0, cached_tokens=0, output_tokens=0, wasted_tokens=10_000, prices=PRICES)
    assert lost.cost == 0


def test_a_free_pool_costs_nothing(ada: Any) -> None:
    record(ada)
    assert UsageEntry.objects.get().cost == 0


@pytest.mark.parametrize("kind", ["prompt", "cached", "output"])
def test_a_charge_at_a_negative_price_is_not_stored(ada: Any, kind: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        record(ada, prices=Prices(**{kind: -1}))
    assert not UsageEntry.objects.exists()


def test_charges_are_read_as_they_were_recorded_prices_and_all(ada: Any) -> None:
    first, second = record(ada, prices=PRICES), record(ada)
    assert billing.charges_of(user_id=ada.pk) == [first, second]
    assert [one.cost for one in billing.charges_of(user_id=ada.pk)] == [94, 0]


def test_sums_say_what_was_used_and_what_it_cost(ada: Any, now: datetime) -> None:
    record(ada, prices=PRICES)
    record(ada, prices=Prices(output=2_000_000))
    costs = [
        billing.usage_of(user_ids=[ada.pk], since=now)[ada.pk].cost,
        billing.usage_since(user_id=ada.pk, starts=[now])[0].cost,
        billing.daily_usage(user_id=ada.pk, since=now - timedelta(days=1))[0].used.cost,
        billing.hourly_usage(since=now)[0].tokens.cost,
    ]
    assert costs == [104] * 4
    assert {type(cost) for cost in costs} == {int}


@pytest.mark.parametrize(
    ("millionths", "shown", "decimal"),
    [
        (0, "0.00 EUR", "0.000000"),
        (150, "0.00015 EUR", "0.000150"),
        (1, "0.000001 EUR", "0.000001"),
        (1_500_000, "1.50 EUR", "1.500000"),
        (-1_250_000_000, "-1,250.00 EUR", "-1250.000000"),
        (10**15 + 1, "1,000,000,000.000001 EUR", "1000000000.000001"),
    ],
)
def test_amounts_are_written_to_the_last_digit(settings: Any, millionths: int, shown: str, decimal: str) -> None:
    settings.CURRENCY = "EUR"
    assert money.amount(millionths) == shown
    assert money.decimal(millionths) == decimal


def test_sums_add_up_kind_by_kind() -> None:
    used = Used(prompt=10, cached=4, output=5, wasted=3, cost=7, runs=1)
    assert (used.charged, used.uncached, used.computed) == (15, 6, 18)
    assert used + used == Used(prompt=20, cached=8, output=10, wasted=6, cost=14, runs=2)
    assert used + Used() == used
