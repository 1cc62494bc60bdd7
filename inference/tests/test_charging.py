"""What attempts cost: the prices that their pool has when they are settled."""

from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import IntegrityError, transaction

from billing.models import UsageEntry
from inference import runs
from inference.models import MAX_PRICE, Attempt, ModelPool, Run

Accept = Callable[..., Run]


def claimed(accept: Accept, now: datetime) -> Run:
    run = accept()
    mine = runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="i", now=now)
    assert mine
    return mine


def priced(pool: ModelPool, *, prompt: int, cached: int, output: int) -> None:
    ModelPool.objects.filter(pk=pool.pk).update(prompt_price=prompt, cached_price=cached, output_price=output)


def test_a_run_costs_what_the_pool_asks_when_it_ends(accept: Accept, pool: ModelPool, now: datetime) -> None:
    priced(pool, prompt=1, cached=1, output=1)
    run = claimed(accept, now)
    priced(pool, prompt=4_000_000, cached=1_000_000, output=10_000_000)
    ending = runs.Ending(status=Run.Status.DONE, text="Hi", own_tokens=2, output_tokens=2, cached_tokens=1)
    runs.settle(run_id=run.id, epoch=1, ending=ending, now=now)
    priced(pool, prompt=0, cached=0, output=0)
    row = UsageEntry.objects.get()
    assert (row.prompt_price, row.cached_price, row.output_price) == (4_000_000, 1_000_000, 10_000_000)
    assert row.cost == 2 * 4 + 1 + 2 * 10


def test_a_lost_attempt_costs_its_published_tokens_and_the_prompt_is_paid_by_the_last(
    accept: Accept, pool: ModelPool, now: datetime
) -> None:
    priced(pool, prompt=4_000_000, cached=0, output=10_000_000)
    run = claimed(accept, now)
    shown = runs.Published(ids=[7, 8], text="Hi")
    runs.take_over(
        run_id=run.id, epoch=1, incarnation="i", published=shown, cause=Attempt.Outcome.LOST, now=now
    )  # fmt: skip
    runs.cancel_queued(run_id=run.id, now=now)
    costs = dict(UsageEntry.objects.values_list("epoch", "cost"))
    assert costs == {1: 2 * 10, 2: 3 * 4}


def test_what_broke_before_it_showed_anything_costs_nothing(accept: Accept, pool: ModelPool, now: datetime) -> None:
    priced(pool, prompt=4_000_000, cached=4_000_000, output=4_000_000)
    run = claimed(accept, now)
    ending = runs.Ending(status=Run.Status.FAILED, text="", own_tokens=0, output_tokens=0, error_code="engine_error")
    runs.settle(run_id=run.id, epoch=1, ending=ending, now=now)
    row = UsageEntry.objects.get()
    assert (row.wasted_tokens, row.cost) == (3, 0)


@pytest.mark.parametrize("kind", ["prompt", "cached", "output"])
def test_no_pool_gives_money_or_asks_for_more_than_can_be_counted(pool: ModelPool, kind: str) -> None:
    column = f"{kind}_price"
    for price in (-1, MAX_PRICE + 1):
        with pytest.raises(IntegrityError), transaction.atomic():
            ModelPool.objects.filter(pk=pool.pk).update(**{column: price})


def test_the_largest_run_at_the_highest_price_can_be_stored(accept: Accept, pool: ModelPool, now: datetime) -> None:
    priced(pool, prompt=MAX_PRICE, cached=MAX_PRICE, output=MAX_PRICE)
    run = claimed(accept, now)
    most = 2**31 - 1
    Run.objects.filter(pk=run.pk).update(prompt_tokens=most)
    ending = runs.Ending(status=Run.Status.DONE, text="Hi", own_tokens=most, output_tokens=most)
    assert runs.settle(run_id=run.id, epoch=1, ending=ending, now=now)
    assert UsageEntry.objects.get().cost == 2 * most * 1_000_000
