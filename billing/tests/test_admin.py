"""What the admin site lets be done to plans, accounts and the ledger."""

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from billing import api
from billing.models import Account, Plan, Subscription, UsageEntry
from billing.tests.support import record

pytestmark = pytest.mark.django_db


@pytest.fixture
def entry(root: Any) -> UsageEntry:
    record(root, prompt_tokens=7, cached_tokens=0, at=timezone.now())
    return UsageEntry.objects.get()


def test_plans_subscriptions_accounts_and_the_ledger_are_listed(
    operator: Client, root: Any, free: Plan, entry: UsageEntry
) -> None:
    api.account_generation(user_id=root.pk)
    Subscription.objects.create(user=root, plan=free, starts_at=timezone.now())
    for model, count in (("plan", Plan.objects.count()), ("subscription", 1), ("account", 1), ("usageentry", 1)):
        response = operator.get(f"/admin/billing/{model}/")
        assert response.status_code == 200, model
        assert response.context["cl"].result_count == count, model


def test_nobody_adds_changes_or_deletes_a_row_of_the_ledger(operator: Client, entry: UsageEntry) -> None:
    address = f"/admin/billing/usageentry/{entry.pk}"
    assert operator.get("/admin/billing/usageentry/add/").status_code == 403
    assert operator.post(f"{address}/change/", {"output_tokens": "0"}).status_code == 403
    assert operator.post(f"{address}/delete/", {"post": "yes"}).status_code == 403
    operator.post(
        "/admin/billing/usageentry/", {"action": "delete_selected", "_selected_action": entry.pk, "post": "1"}
    )
    assert UsageEntry.objects.get().output_tokens == 5


def test_accounts_come_from_use_alone(operator: Client, root: Any) -> None:
    assert operator.get("/admin/billing/account/add/").status_code == 403
    api.account_generation(user_id=root.pk)
    address = f"/admin/billing/account/{Account.objects.get().pk}/change/"
    form = {"quota_gen": "9", "debt_tokens": "0", "debt_at_0": "", "debt_at_1": ""}
    assert operator.post(address, form).status_code == 403
    assert Account.objects.get().quota_gen != 9


def test_an_account_is_not_deleted(operator: Client, root: Any) -> None:
    api.account_generation(user_id=root.pk)
    address = "/admin/billing/account/"
    assert operator.post(f"{address}{root.pk}/delete/", {"post": "yes"}).status_code == 403
    operator.post(address, {"action": "delete_selected", "_selected_action": root.pk, "post": "yes"})
    assert Account.objects.filter(user=root).exists()


def default_plans() -> list[str]:
    return list(Plan.objects.filter(is_default=True).values_list("slug", flat=True))


def test_there_is_always_one_default_plan(operator: Client, free: Plan, team: Plan) -> None:
    before = default_plans()
    assert len(before) == 1
    default = Plan.objects.get(is_default=True)
    form = {
        "slug": default.slug, "name": "Renamed", "weight": "1", "concurrent_runs": "2", "output_floor": "64",
        "overflow": "smaller", "unwatched": "finish",
    }  # fmt: skip
    assert operator.post(f"/admin/billing/plan/{default.pk}/change/", form).status_code == 302
    assert Plan.objects.get(pk=default.pk).name == "Renamed"
    assert default_plans() == before
    operator.post("/admin/billing/plan/", {"action": "make_default", "_selected_action": [default.pk, team.pk]})
    assert default_plans() == before
    operator.post("/admin/billing/plan/", {"action": "make_default", "_selected_action": [team.pk]})
    assert default_plans() == ["team"]
    operator.post("/admin/billing/plan/", {"action": "make_default", "_selected_action": [team.pk]})
    assert default_plans() == ["team"]


def test_a_plan_that_somebody_has_is_kept_and_the_reason_told(
    operator: Client, root: Any, free: Plan, team: Plan
) -> None:
    Subscription.objects.create(user=root, plan=team, starts_at=timezone.now())
    default = Plan.objects.get(is_default=True)
    for plan, reason in ((default, "is the default plan"), (team, "has subscriptions")):
        address = f"/admin/billing/plan/{plan.pk}/delete/"
        assert reason in operator.get(address).content.decode()
        operator.post(address, {"post": "yes"})
        operator.post("/admin/billing/plan/", {"action": "delete_selected", "_selected_action": plan.pk, "post": "yes"})
        assert Plan.objects.filter(pk=plan.pk).exists()
    Subscription.objects.all().delete()
    operator.post(f"/admin/billing/plan/{team.pk}/delete/", {"post": "yes"})
    assert not Plan.objects.filter(pk=team.pk).exists()
