"""The admin's front page: its figures, who sees them, and that it stands without Redis."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Charge, HourOfUse, Prices, Used
from billing.models import UsageEntry
from chatsite.accounts import accounts
from chatsite.accounts.models import User
from chatsite.administration import dashboard
from chatsite.chart import HEIGHT, Chart
from inference import runs, store
from inference.cell import workers
from inference.models import ModelPool, Run
from tests.services import Valkey

pytestmark = pytest.mark.django_db

# Not close to an hour's end: what a test writes now and a moment later belongs to one hour.
NOON = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


@pytest.fixture
def ada() -> User:
    return accounts.open_account(email="ada@example.org", password=None)


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(accounts.open_account(email="root@example.org", password=None, administrator=True))
    return client


@pytest.fixture
def a_run(ada: User) -> Callable[..., UUID]:
    """Accepts a run of Ada's, and takes it as far as it is told."""

    def make(status: str = "queued", *, error_code: str = "") -> UUID:
        run_id, now = uuid7(), timezone.now()
        runs.accept(
            run_id=run_id,
            owner_id=ada.pk,
            chat_id=uuid4(),
            turn=str(run_id),
            pool=ModelPool.objects.get(is_default=True),
            model="m",
            admission_id=uuid4(),
            prompt_ids=[1, 2, 3],
            max_output_tokens=10,
            context={},
            now=now,
        )
        if status != "queued":
            runs.claim(run_id=run_id, epoch=1, worker="w", incarnation="i", now=now)
        if status not in ("queued", "streaming"):
            ending = runs.Ending(
                status=Run.Status(status), text="A secret answer", own_tokens=2, output_tokens=2, error_code=error_code
            )
            runs.settle(run_id=run_id, epoch=1, ending=ending, now=now)
        return run_id

    return make


def charge(user: User | None, at: datetime, *, purpose: str = "turn", output_price: int = 0, **tokens: int) -> None:
    counts: dict[str, Any] = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0, "wasted_tokens": 0}
    counts |= {f"{kind}_tokens": number for kind, number in tokens.items()}
    billing.record(
        Charge(
            user_id=None if user is None else user.pk,
            purpose=purpose,
            prices=Prices(output=output_price),
            run_id=uuid4(),
            epoch=1,
            admission_id=uuid4(),
            pool="default",
            reason="completed",
            at=at,
            **counts,
        )
    )


def page(browser: Client) -> str:
    response = browser.get("/admin/")
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def test_it_shows_what_runs_what_waits_what_failed_and_what_became_of_the_day(
    browser: Client, a_run: Callable[..., UUID]
) -> None:
    streaming, queued = a_run("streaming"), a_run("queued")
    failed = a_run("failed", error_code="engine_error")
    interrupted = a_run("interrupted", error_code="worker_lost")
    done = a_run("done")
    shown = page(browser)
    assert re.search(r"data-running>1<", shown)
    assert re.search(r"data-waiting>1<", shown)
    assert f'data-run="{streaming}"' in shown
    assert f'data-run="{queued}"' not in shown
    assert f'data-failure="{failed}"' in shown
    assert "failed: engine_error" in shown
    assert f'data-failure="{interrupted}"' in shown
    assert str(done) not in shown
    for status in ("streaming", "queued", "failed", "interrupted", "done"):
        assert re.search(rf'data-outcome="{status}">.*?>1</a>', shown), status
    assert "ada@example.org" in shown
    assert "secret" not in shown


def test_without_redis_it_says_so_and_shows_the_rest(browser: Client, a_run: Callable[..., UUID]) -> None:
    streaming = a_run("streaming")
    shown = page(browser)
    assert "data-redis-away" in shown
    assert "unknown" in shown
    assert f'data-run="{streaming}"' in shown


def test_it_shows_what_the_engines_report(browser: Client, valkey: Valkey) -> None:
    assert "data-redis-away" not in page(browser)
    assert re.search(r"data-workers> <strong>none</strong>", page(browser))
    cell = store.connector().cell()
    report = workers.Report(
        engine="scripted", model="m", slots=32, running=3, waiting=0, kv_usage=0.25, output_tokens=9
    )
    cell.call(workers.heartbeat(cell.keys, pool="default", boot_id="b", report=report, held=(), now_ms=store.now_ms()))
    shown = page(browser)
    assert re.search(r"data-workers> 1 <", shown)
    assert "3 of 32" in shown
    assert 'value="0.250"' in shown
    assert "25 %" in shown


def test_a_closed_pool_is_told_from_an_open_one(browser: Client) -> None:
    assert "<strong>closed</strong>" not in page(browser)
    ModelPool.objects.update(is_open=False)
    assert "<strong>closed</strong>" in page(browser)


def test_tokens_are_those_of_the_day_and_the_hours_those_of_the_last_day(ada: User) -> None:
    charge(ada, NOON, prompt=100, cached=40, output=10)
    charge(ada, NOON.replace(hour=0, minute=0), wasted=7)
    charge(ada, NOON - timedelta(hours=13), output=5)
    charge(ada, NOON - timedelta(hours=24), output=1000)
    shown = dashboard.for_staff(may=lambda _: True, now=NOON).tokens
    assert shown
    assert shown.today == Used(prompt=100, cached=40, output=10, wasted=7)
    hours = {bar.begins_at.isoformat(): bar.tokens.computed for bar in shown.chart.bars}
    assert len(hours) == 24
    assert (min(hours), max(hours)) == ("2026-02-28T13:00:00+00:00", "2026-03-01T12:00:00+00:00")
    assert {hour: tokens for hour, tokens in hours.items() if tokens} == {
        "2026-02-28T23:00:00+00:00": 5,
        "2026-03-01T00:00:00+00:00": 7,
        "2026-03-01T12:00:00+00:00": 110,
    }


def test_the_systems_own_work_of_the_day_is_told_by_purpose_and_is_a_part_of_its_tokens(ada: User) -> None:
    charge(ada, NOON, prompt=100, output=10)
    charge(None, NOON, purpose="summary", prompt=50, cached=20, output=5, output_price=2_000_000)
    charge(None, NOON, purpose="summary", prompt=50, output=5, output_price=2_000_000)
    charge(None, NOON, purpose="title", prompt=7, output=3)
    charge(None, NOON - timedelta(hours=13), purpose="title", output=1000)
    shown = dashboard.for_staff(may=lambda _: True, now=NOON).tokens
    assert shown
    assert shown.today == Used(prompt=207, cached=20, output=23, cost=20)
    assert [(work.purpose, work.used) for work in shown.own] == [
        ("summary", Used(prompt=100, cached=20, output=10, cost=20)),
        ("title", Used(prompt=7, output=3)),
    ]
    assert shown.own[0].cost.startswith("0.00002 ")


def test_the_systems_own_work_is_shown_with_the_tokens_alone(client: Client, browser: Client, ada: User) -> None:
    assert "None today." in page(browser)
    charge(None, timezone.now(), purpose="summary", prompt=1234, output=56)
    [row] = re.findall(r'<tr data-own="summary">.*?</tr>', page(browser))
    said = re.sub("<[^>]*>", " ", row).split()
    assert said[:4] == ["Summary", "1,234", "0", "56"]
    assert 'href="/admin/billing/usageentry/?purpose__exact=summary"' in row
    User.objects.filter(pk=ada.pk).update(is_staff=True)
    ada.user_permissions.add(Permission.objects.get(codename="view_run"))
    client.force_login(ada)
    assert "data-own" not in page(client)


def test_the_highest_bar_fills_the_chart_and_its_parts_add_up() -> None:
    hours = [
        HourOfUse(begins_at=NOON, tokens=Used(prompt=60, cached=20, output=30, wasted=10)),
        HourOfUse(begins_at=NOON, tokens=Used(output=50)),
        HourOfUse(begins_at=NOON, tokens=Used()),
    ]
    full, half, empty = Chart.of(hours).bars
    assert [segment.kind for segment in full.segments] == ["output", "uncached", "cached", "wasted"]
    assert sum(segment.height for segment in full.segments) == pytest.approx(HEIGHT)
    assert min(segment.y for segment in full.segments) == pytest.approx(0)
    # Each part stands on the one below it.
    for below, above in zip(full.segments, full.segments[1:], strict=False):
        assert above.y + above.height == pytest.approx(below.y, abs=0.02)
    assert half.segments[0].height == pytest.approx(HEIGHT / 2)
    assert empty.segments == ()


def test_a_day_without_tokens_has_a_chart_too() -> None:
    chart = Chart.of([HourOfUse(begins_at=NOON, tokens=Used())])
    assert chart.top == 0
    assert chart.bars[0].segments == ()


def test_the_page_keeps_to_the_content_security_policy(browser: Client, ada: User) -> None:
    charge(ada, timezone.now(), prompt=100, output=10)
    shown = page(browser)
    assert "<rect" in shown
    assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=", shown)


@pytest.mark.parametrize(
    ("permission", "panel"),
    [("view_run", "panel-pools"), ("view_usageentry", "panel-tokens"), ("view_auditentry", "panel-acts")],
)
def test_each_panel_is_for_those_who_may_see_its_list(client: Client, ada: User, permission: str, panel: str) -> None:
    User.objects.filter(pk=ada.pk).update(is_staff=True)
    client.force_login(ada)
    panels = ("panel-pools", "panel-failures", "panel-tokens", "panel-acts")
    assert [one for one in panels if one in page(client)] == []
    ada.user_permissions.add(Permission.objects.get(codename=permission))
    assert panel in page(client)


def test_its_number_of_queries_is_fixed_and_each_is_answered_by_an_index(
    browser: Client, a_run: Callable[..., UUID], ada: User
) -> None:
    page(browser)
    with CaptureQueriesContext(connection) as few:
        page(browser)
    for status in ("streaming", "failed", "interrupted", "done"):
        for _ in range(3):
            a_run(status)
    charge(ada, timezone.now(), output=1)
    for purpose in ("summary", "title"):
        charge(None, timezone.now(), purpose=purpose, output=1)
    with CaptureQueriesContext(connection) as many:
        page(browser)
    # Owners' addresses, once there are any.
    assert len(many) <= len(few) + 1
    assert len(many) <= 15
    if connection.vendor == "sqlite":
        large = [one["sql"] for one in many if "inference_run" in one["sql"] or "billing_usageentry" in one["sql"]]
        assert len(large) >= 7
        with connection.cursor() as cursor:
            for sql in large:
                cursor.execute("EXPLAIN QUERY PLAN " + sql.replace("%", "%%"))
                plan = [row[3] for row in cursor.fetchall()]
                assert [step for step in plan if step.startswith("SCAN inference_run")] == [], sql
                assert [step for step in plan if step.startswith("SCAN billing_usageentry")] == [], sql


def test_every_link_of_it_leads_somewhere(browser: Client, a_run: Callable[..., Any], ada: User) -> None:
    a_run("streaming")
    a_run("failed")
    charge(ada, timezone.now(), output=1)
    browser.post("/admin/accounts/user/", {"action": "reinstate", "_selected_action": str(ada.pk), "confirmed": "yes"})
    links = set(re.findall(r'href="(/admin/[^"#]*)"', page(browser)))
    assert len(links) > 20
    assert {link: status for link in links if (status := browser.get(link).status_code) not in (200, 302)} == {}
    assert UsageEntry.objects.exists()
