"""The admin screens for runs and pools: stopping answers, switching pools, and what is refused."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from billing.models import Plan
from chatsite.audit.models import AuditEntry
from inference import pools, runs
from inference.cell.link import Cell
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db

RUNS = "/admin/inference/run/"
POOLS = "/admin/inference/modelpool/"
# What the form of a new pool sends.
POOL = {
    "slug": "new",
    "name": "New",
    "context_window": "4096",
    "max_output_tokens": "1024",
    "reserve_tokens": "512",
    "high_water": "75",
    "low_water": "40",
    "max_concurrent_runs": "32",
    "queue_wait_s": "300",
    "generation_s": "600",
    "max_epochs": "3",
    "stall_s": "20",
    "temperature": "0.1",
    "top_p": "0.95",
    "prompt_price": "0",
    "cached_price": "0",
    "output_price": "0",
    "system_prompt": "Be good.",
    "engine_options": "{}",
    "mode": "normal",
    "queue_depth": "1000",
    "free_floor": "10",
    "affinity_delay_ms": "2000",
    "fairness_slack": "4096",
    "prompt_weight": "1",
    "output_weight": "2",
    "short_prompt_tokens": "0",
    "weights-TOTAL_FORMS": "0",
    "weights-INITIAL_FORMS": "0",
}


def staff(email: str, *permissions: str) -> Client:
    """A browser of somebody who may do this in the admin; everything without a list."""
    user: Any = get_user_model().objects.create_user(email=email, is_staff=True, is_superuser=not permissions)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert user.user_permissions.count() == len(permissions)
    browser = Client()
    browser.force_login(user)
    return browser


@pytest.fixture
def root(db: None) -> Client:
    return staff("root@example.org")


@pytest.fixture
def streaming(accept: Callable[..., Run], now: Any) -> Run:
    run = accept()
    claimed = runs.claim(run_id=run.id, epoch=1, worker="w", incarnation="i", now=now)
    assert claimed
    return claimed


def acts() -> list[tuple[str, str]]:
    return [(entry.action, entry.object_id) for entry in AuditEntry.objects.order_by("id")]


def another(slug: str = "other", **changes: Any) -> ModelPool:
    return ModelPool.objects.create(slug=slug, name=slug.capitalize(), **changes)


def chosen(action: str, *rows: Any) -> dict[str, Any]:
    return {"action": action, "_selected_action": [str(row.pk) for row in rows]}


def test_stopping_from_the_list_ends_what_waits_and_flags_what_runs(
    root: Client, streaming: Run, accept: Callable[..., Run], cell: Cell
) -> None:
    waiting = accept()
    page = root.post(RUNS, chosen("cancel", waiting, streaming), follow=True).content.decode()
    assert "2 stopped or asked to stop." in page
    assert Run.objects.get(pk=waiting.pk).status == "cancelled"
    flagged = Run.objects.get(pk=streaming.pk)
    assert flagged.status == "streaming"
    assert flagged.cancel_requested_at is not None
    assert sorted(acts()) == sorted(("cancel", str(run.pk)) for run in (waiting, streaming))


def test_stopping_from_the_page_does_the_same_and_comes_back_to_it(root: Client, streaming: Run) -> None:
    page = f"{RUNS}{streaming.pk}/change/"
    assert "Stop this answer" in root.get(page).content.decode()
    response = root.post(f"{RUNS}{streaming.pk}/cancel/")
    assert (response.status_code, response.headers["Location"]) == (302, page)
    assert Run.objects.get(pk=streaming.pk).cancel_requested_at is not None
    assert acts() == [("cancel", str(streaming.pk))]


def test_a_run_that_is_over_is_left_alone(root: Client, streaming: Run, now: Any) -> None:
    ending = runs.Ending(status=Run.Status.DONE, text="Fine.", own_tokens=1, output_tokens=1)
    runs.settle(run_id=streaming.pk, epoch=1, ending=ending, now=now)
    root.post(RUNS, chosen("cancel", streaming))
    assert "had ended before" in root.post(f"{RUNS}{streaming.pk}/cancel/", follow=True).content.decode()
    assert "Stop this answer" not in root.get(f"{RUNS}{streaming.pk}/change/").content.decode()
    assert Run.objects.get(pk=streaming.pk).status == "done"
    assert acts() == []


def test_a_run_that_is_not_there_is_not_found(root: Client) -> None:
    assert root.post(f"{RUNS}{UUID(int=1)}/cancel/").status_code == 404


def test_looking_at_a_link_stops_nothing(root: Client, streaming: Run) -> None:
    assert root.get(f"{RUNS}{streaming.pk}/cancel/").status_code == 403
    assert Run.objects.get(pk=streaming.pk).cancel_requested_at is None


def test_stopping_takes_a_permission_of_its_own(streaming: Run) -> None:
    looker = staff("looker@example.org", "view_run")
    page = looker.get(f"{RUNS}{streaming.pk}/change/").content.decode()
    assert "Stop this answer" not in page
    looker.post(RUNS, chosen("cancel", streaming))
    assert looker.post(f"{RUNS}{streaming.pk}/cancel/").status_code == 403
    assert Run.objects.get(pk=streaming.pk).cancel_requested_at is None
    support = staff("support@example.org", "view_run", "cancel_run")
    support.post(f"{RUNS}{streaming.pk}/cancel/")
    assert Run.objects.get(pk=streaming.pk).cancel_requested_at is not None


def test_a_page_of_a_run_shows_its_attempts_and_no_text(root: Client, streaming: Run) -> None:
    Run.objects.filter(pk=streaming.pk).update(carry_text="A secret answer")
    streaming.attempts.update(text="Another secret")
    page = root.get(f"{RUNS}{streaming.pk}/change/").content.decode()
    assert "w</p>" in page
    assert "secret" not in page
    attempt = streaming.attempts.get()
    assert "secret" not in root.get(f"/admin/inference/attempt/{attempt.pk}/change/").content.decode()


def test_runs_are_found_by_owner_and_id(root: Client, accept: Callable[..., Run], ada: Any) -> None:
    eve: Any = get_user_model().objects.create_user(email="eve@example.org")
    mine, hers = accept(), accept(owner_id=eve.pk)
    for looked_for in ("ada@example.org", str(mine.pk), str(mine.chat_id), str(ada.pk)):
        page = root.get(RUNS, {"q": looked_for}).content.decode()
        assert str(mine.pk) in page
        assert str(hers.pk) not in page


def test_runs_are_told_apart_by_what_they_are_for(root: Client, accept: Callable[..., Run]) -> None:
    answer, title = accept(), accept(kind="title")
    page = root.get(RUNS).content.decode()
    assert [kind in page for kind in ('field-kind">Turn', 'field-kind">Title')] == [True, True]
    page = root.get(RUNS, {"kind__exact": "title"}).content.decode()
    assert [str(run.pk) in page for run in (answer, title)] == [False, True]


def test_the_systems_own_work_is_not_stopped_and_nobody_is_told_that_it_was(
    root: Client, accept: Callable[..., Run]
) -> None:
    summary = accept(kind="summary")
    assert "0 stopped or asked to stop." in root.post(RUNS, chosen("cancel", summary), follow=True).content.decode()
    assert "Stop this answer" not in root.get(f"{RUNS}{summary.pk}/change/").content.decode()
    page = root.post(f"{RUNS}{summary.pk}/cancel/", follow=True).content.decode()
    assert "is not stopped here" in page
    assert Run.objects.get(pk=summary.pk).status == "queued"
    assert acts() == []


def test_pools_are_opened_and_closed_from_the_list(root: Client, pool: ModelPool) -> None:
    other = another(is_open=False)
    assert "1 opened" in root.post(POOLS, chosen("open", pool, other), follow=True).content.decode()
    page = root.post(POOLS, chosen("close", pool), follow=True).content.decode()
    assert "1 closed" in page
    assert "messages that name no pool are refused" in page
    assert {one.slug: one.is_open for one in ModelPool.objects.all()} == {"default": False, "other": True}
    assert acts() == [("open", str(other.pk)), ("close", str(pool.pk))]


def test_switching_takes_the_permission_to_change_pools(pool: ModelPool) -> None:
    looker = staff("looker@example.org", "view_modelpool")
    for action in ("close", "open", "make_default", "mode_normal", "mode_shed_free", "mode_drain"):
        looker.post(POOLS, chosen(action, pool))
    assert ModelPool.objects.get().is_open
    assert ModelPool.objects.get().mode == "normal"
    assert acts() == []
    operator = staff("operator@example.org", "view_modelpool", "change_modelpool")
    operator.post(POOLS, chosen("close", pool))
    assert not ModelPool.objects.get().is_open


def test_a_pools_mode_is_switched_from_the_list_and_the_trail_names_it(root: Client, pool: ModelPool) -> None:
    other = another(mode="drain")
    page = root.post(POOLS, chosen("mode_drain", pool, other), follow=True).content.decode()
    assert "1 switched: nothing new." in page
    root.post(POOLS, chosen("mode_shed_free", pool))
    root.post(POOLS, chosen("mode_normal", pool, other))
    assert set(ModelPool.objects.values_list("mode", flat=True)) == {"normal"}
    assert acts() == [
        ("drain", str(pool.pk)), ("shed_free", str(pool.pk)), ("normal", str(pool.pk)), ("normal", str(other.pk)),
    ]  # fmt: skip
    assert "back to normal" in root.get(f"{POOLS}{pool.pk}/history/").content.decode()


def test_a_plans_weight_in_one_pool_is_set_beside_it(root: Client, pool: ModelPool) -> None:
    plan = Plan.objects.get_or_create(slug="pro", defaults={"name": "Pro"})[0]
    row = {"weights-0-plan": str(plan.pk), "weights-0-weight": "7", "weights-0-id": "", "weights-0-pool": str(pool.pk)}
    form = POOL | {"is_open": "on"} | row
    address = f"{POOLS}{pool.pk}/change/"
    assert root.post(address, form | {"weights-TOTAL_FORMS": "1"}).status_code == 302
    assert list(pool.weights.values_list("plan__slug", "weight")) == [("pro", 7)]
    assert "added pool weight" in AuditEntry.objects.get(object_id=str(pool.pk)).detail
    page = root.post(address, form | {"weights-TOTAL_FORMS": "1", "weights-0-weight": "0"}).content.decode()
    assert "must be at least 1" in page


def test_the_queue_of_a_pool_and_its_overflow_are_set_and_the_trail_says_so(root: Client, pool: ModelPool) -> None:
    small = another("small")
    form = POOL | {"is_open": "on", "mode": "shed_free", "queue_depth": "50", "free_floor": "20"}
    form |= {"overflow_to": str(small.pk), "short_prompt_tokens": "200"}
    assert root.post(f"{POOLS}{pool.pk}/change/", form).status_code == 302
    pool.refresh_from_db()
    assert (pool.mode, pool.queue_depth, pool.free_floor, pool.overflow_to, pool.short_prompt_tokens) == (
        "shed_free", 50, 20, small, 200,
    )  # fmt: skip
    detail = AuditEntry.objects.get(action="change").detail.lower()
    assert all(name in detail for name in ("mode", "queue depth", "overflow to"))


def test_what_a_chat_may_take_of_a_pools_window_is_set_and_the_trail_says_so(root: Client, pool: ModelPool) -> None:
    address = f"{POOLS}{pool.pk}/change/"
    assert "when its oldest turns are summarised" in root.get(address).content.decode()
    form = POOL | {"is_open": "on", "reserve_tokens": "600", "high_water": "80", "low_water": "30"}
    assert root.post(address, form).status_code == 302
    pool.refresh_from_db()
    assert (pool.reserve_tokens, pool.high_water, pool.low_water) == (600, 80, 30)
    detail = AuditEntry.objects.get(action="change").detail.lower()
    assert all(name in detail for name in ("reserve tokens", "high-water mark", "low-water mark"))


def test_a_smaller_model_does_not_lead_back_to_the_larger_one(root: Client, pool: ModelPool) -> None:
    tiny = another("tiny")
    small = another("small", overflow_to=tiny)
    ModelPool.objects.filter(pk=pool.pk).update(overflow_to=small)
    for one, target in ((pool, pool), (tiny, small)):
        form = POOL | {"overflow_to": str(target.pk)}
        assert "leads back to this pool" in root.post(f"{POOLS}{one.pk}/change/", form).content.decode()
    assert root.post(f"{POOLS}{pool.pk}/change/", POOL | {"overflow_to": str(small.pk)}).status_code == 302
    page = root.post(f"{POOLS}add/", POOL | {"short_prompt_tokens": "200"}).content.decode()
    assert "needs an overflow pool" in page


def test_another_pool_becomes_the_default_and_there_is_always_one(root: Client, pool: ModelPool) -> None:
    other = another()
    page = root.post(POOLS, chosen("make_default", pool, other), follow=True).content.decode()
    assert "Choose one pool" in page
    root.post(POOLS, chosen("make_default", other))
    assert ModelPool.objects.get(is_default=True) == other
    assert not pools.make_default(pool_id=other.pk)
    assert not pools.make_default(pool_id=uuid4())
    assert ModelPool.objects.get(is_default=True) == other
    page = root.get(f"{POOLS}{other.pk}/change/").content.decode()
    assert 'name="is_default"' not in page, "the form cannot leave the site without one"


def test_a_pool_with_runs_is_not_deleted_and_the_reason_is_told(root: Client, accept: Callable[..., Run]) -> None:
    other = another()
    accept(pool=other)
    question = root.get(f"{POOLS}{other.pk}/delete/").content.decode()
    assert "Other has answered messages" in question
    assert "close it instead" in question
    root.post(f"{POOLS}{other.pk}/delete/", {"post": "yes"})
    root.post(POOLS, chosen("delete_selected", other) | {"post": "yes"})
    assert ModelPool.objects.filter(pk=other.pk).exists()


def test_the_default_pool_is_not_deleted_and_another_without_runs_is(root: Client, pool: ModelPool) -> None:
    other = another()
    assert "is the default pool" in root.get(f"{POOLS}{pool.pk}/delete/").content.decode()
    root.post(f"{POOLS}{pool.pk}/delete/", {"post": "yes"})
    root.post(f"{POOLS}{other.pk}/delete/", {"post": "yes"})
    assert list(ModelPool.objects.all()) == [pool]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_output_tokens": "4096"}, "leave room for a prompt in the window (4096 tokens)"),
        ({"max_output_tokens": "0"}, "at least 1"),
        ({"reserve_tokens": "-1"}, "greater than or equal to 0"),
        ({"reserve_tokens": "9" * 30}, "less than or equal to"),
        ({"high_water": "101"}, "between 1 and 100"),
        ({"low_water": "0"}, "between 1 and 100"),
        ({"low_water": "75"}, "must be below the high-water mark (75 %)"),
        ({"high_water": ""}, "This field is required"),
        ({"low_water": "half"}, "Enter a whole number"),
        ({"max_concurrent_runs": "0"}, "between 1 and"),
        ({"queue_wait_s": "0"}, "between 1 and 14,400"),
        ({"max_epochs": "21"}, "between 1 and 20"),
        ({"stall_s": "3601"}, "between 1 and 3,600"),
        ({"queue_depth": "0"}, "between 1 and 1,000,000"),
        ({"free_floor": "91"}, "between 0 and 90"),
        ({"affinity_delay_ms": "60001"}, "between 0 and 60,000"),
        ({"output_weight": "0"}, "between 1 and 1,000"),
        ({"mode": "open"}, "not one of the available choices"),
        ({"overflow_to": str(UUID(int=1))}, "not one of the available choices"),
        ({"temperature": "3"}, "between 0 and 2"),
        ({"top_p": "0"}, "above 0, at most 1"),
        ({"engine_options": '{"tensor_paralel_size": 2}'}, "tensor_paralel_size"),
        ({"slug": "default"}, "already exists"),
        ({"prompt_price": "-1"}, "greater than or equal to 0"),
        ({"cached_price": str(10**12 + 1)}, "between 0 and 1,000,000,000,000"),
        ({"plans": str(UUID(int=1))}, "not one of the available choices"),
        ({"plans": "x"}, "is not a valid value"),
    ],
)
def test_a_pool_that_cannot_work_is_refused_with_the_cause(
    root: Client, pool: ModelPool, changes: dict[str, str], told: str
) -> None:
    page = root.post(f"{POOLS}add/", POOL | changes).content.decode()
    assert told in page
    assert "Constraint" not in page
    assert ModelPool.objects.count() == 1
    assert root.post(f"{POOLS}add/", POOL).status_code == 302


def test_a_pools_prices_and_plans_are_set_and_the_trail_says_so(root: Client, pool: ModelPool, settings: Any) -> None:
    settings.CURRENCY = "EUR"
    plan = Plan.objects.get_or_create(slug="pro", defaults={"name": "Pro"})[0]
    address = f"{POOLS}{pool.pk}/change/"
    page = root.get(address).content.decode()
    assert "150000 is 0.15 EUR." in page
    assert f'type="checkbox" name="plans" value="{plan.pk}"' in page
    form = POOL | {"is_open": "on", "prompt_price": "150000", "output_price": "600000", "plans": [str(plan.pk)]}
    assert root.post(address, form).status_code == 302
    pool.refresh_from_db()
    assert (pool.slug, pool.prompt_price, pool.cached_price, pool.output_price) == ("default", 150_000, 0, 600_000)
    assert list(pool.plans.all()) == [plan]
    detail = AuditEntry.objects.get(action="change").detail.lower()
    assert all(name in detail for name in ("prompt price", "output price", "plans"))
    root.post(address, POOL | {"is_open": "on"})
    assert not pool.plans.exists()
