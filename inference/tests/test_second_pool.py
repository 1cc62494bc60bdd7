"""The second pool of `TWO_POOLS`: made once, and what operators set of it stays."""

import pytest

from inference import api, pools
from inference.models import ModelPool

pytestmark = pytest.mark.django_db


def test_it_is_made_and_takes_what_the_default_one_has_no_room_for() -> None:
    assert api.ensure_small_pool(model="/models/tiny") == "small"
    small = ModelPool.objects.get(slug="small")
    small.clean()
    assert (small.name, small.model, small.is_open, small.is_default) == ("Small", "/models/tiny", True, False)
    assert ModelPool.objects.get(is_default=True).overflow_to == small


def test_what_an_operator_has_set_stays() -> None:
    pools.ensure_small(model="/models/tiny")
    other = ModelPool.objects.create(slug="other", name="Other")
    ModelPool.objects.filter(slug="small").update(name="Tiny", model="org/better", is_open=False)
    ModelPool.objects.filter(is_default=True).update(overflow_to=other)
    pools.ensure_small(model="/models/tiny")
    small = ModelPool.objects.get(slug="small")
    assert (small.name, small.model, small.is_open) == ("Tiny", "org/better", False)
    assert ModelPool.objects.get(is_default=True).overflow_to == other


def test_a_default_pool_that_is_the_small_one_does_not_overflow_to_itself() -> None:
    pools.ensure_small(model="/models/tiny")
    ModelPool.objects.update(overflow_to=None)
    assert pools.make_default(pool_id=ModelPool.objects.get(slug="small").pk)
    pools.ensure_small(model="/models/tiny")
    assert not ModelPool.objects.filter(overflow_to__isnull=False).exists()
