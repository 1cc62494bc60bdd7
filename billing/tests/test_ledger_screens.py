"""The admin's lists of the ledger and of adjustments: filters, the form that adjusts, and files of what is found."""

import asyncio
import csv
import io
from collections.abc import Mapping
from datetime import date, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing import api as billing
from billing.contracts import Prices
from billing.models import Adjustment, UsageEntry
from billing.screens import csv_export, filters
from billing.tests.support import NOON, record
from chatsite.audit.models import AuditEntry
from chatsite.handler import Handler
from inference.tests.threads import at_once

pytestmark = pytest.mark.django_db

LEDGER = "/admin/billing/usageentry/"
ADJUSTMENTS = "/admin/billing/adjustment/"
DAY = timedelta(days=1)
MIDNIGHT = NOON.replace(hour=0)


def staff(*permissions: str) -> Client:
    user: Any = get_user_model().objects.create_user(email="staff@example.org", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser = Client()
    browser.force_login(user)
    return browser


def listed(browser: Client, **query: str) -> list[UUID]:
    """The runs of the rows that a list shows, as it sorts them."""
    response = browser.get(LEDGER, query)
    assert response.status_code == 200
    return [row.run_id for row in response.context["cl"].result_list]


def exported(browser: Client, screen: str = LEDGER, **query: str) -> list[dict[str, str]]:
    response: Any = browser.get(f"{screen}export/", query)
    assert response.status_code == 200, response
    return list(csv.DictReader(io.StringIO(b"".join(response).decode())))


def test_rows_are_filtered_by_pool_reason_and_both(operator: Client, ada: Any) -> None:
    one = record(ada, pool="large", reason="failed").run_id
    two = record(ada, pool="large").run_id
    three = record(ada, reason="failed").run_id
    assert set(listed(operator, pool="large")) == {one, two}
    assert set(listed(operator, reason__exact="failed")) == {one, three}
    assert listed(operator, pool="large", reason__exact="failed") == [one]


def test_the_pools_to_choose_from_are_those_that_rows_name(
    operator: Client, ada: Any, django_assert_num_queries: Any
) -> None:
    for pool in ("large", "a-pool-that-is-gone", "large", "default", "large"):
        record(ada, pool=pool)
    page = operator.get(LEDGER)
    [spec] = [spec for spec in page.context["cl"].filter_specs if spec.title == "pool"]
    assert [slug for slug, _ in spec.lookup_choices] == ["a-pool-that-is-gone", "default", "large"]
    response = operator.get(LEDGER, {"pool": "no-such-pool"})
    assert (response.status_code, response.headers["Location"]) == (302, f"{LEDGER}?e=1")


def test_days_are_those_of_utc_and_both_are_included(operator: Client, ada: Any) -> None:
    moment = timedelta(microseconds=1)
    before, first, last, after = (
        record(ada, at=at).run_id
        for at in (MIDNIGHT - moment, MIDNIGHT, MIDNIGHT + 2 * DAY - moment, MIDNIGHT + 2 * DAY)
    )
    assert listed(operator, **{"from": "2026-03-01", "to": "2026-03-02"}) == [last, first]
    assert listed(operator, **{"from": "2026-03-02"}) == [after, last]
    assert listed(operator, to="2026-03-01") == [first, before]
    assert listed(operator, **{"from": "", "to": "9999-12-31"}) == [after, last, first, before]


@pytest.mark.parametrize("text", ["yesterday", "2026-02-30", "9" * 30, "-1"])
def test_a_day_that_is_none_is_no_question(operator: Client, text: str) -> None:
    for name in ("from", "to"):
        response = operator.get(LEDGER, {name: text})
        assert (response.status_code, response.headers["Location"]) == (302, f"{LEDGER}?e=1")
        assert operator.get(f"{LEDGER}export/", {name: text}).headers["Location"] == f"{LEDGER}?e=1"
    assert not AuditEntry.objects.exists()


def test_choosing_days_keeps_what_else_was_chosen_and_begins_at_the_first_page(operator: Client, ada: Any) -> None:
    record(ada, at=timezone.now())
    page = operator.get(LEDGER, {"pool": "default", "q": "ada@example.org", "from": "2026-03-01"})
    [spec] = [spec for spec in page.context["cl"].filter_specs if spec.title == "day (UTC)"]
    assert spec.others == [("pool", "default"), ("q", "ada@example.org")]
    content = page.content.decode()
    assert 'name="from" value="2026-03-01"' in content
    assert 'name="to" value=""' in content
    today = timezone.now().date().isoformat()
    assert listed(operator, **{"from": today, "to": today})


@pytest.mark.parametrize(
    ("today", "since", "chosen"),
    [
        (date(2026, 12, 1), date(2026, 12, 1), ["Today"]),
        (date(2026, 12, 7), date(2026, 12, 1), ["Past 7 days"]),
        (date(2026, 12, 9), date(2026, 12, 1), ["This month"]),
        (date(2026, 12, 9), date(2026, 12, 2), []),
    ],
)
def test_one_period_is_shown_as_chosen_on_every_day_of_a_month(
    operator: Client, monkeypatch: pytest.MonkeyPatch, today: date, since: date, chosen: list[str]
) -> None:
    monkeypatch.setattr(filters, "timezone", SimpleNamespace(now=lambda: NOON.replace(month=12, day=today.day)))
    page = operator.get(LEDGER, {"from": since.isoformat(), "to": today.isoformat()})
    [spec] = [spec for spec in page.context["cl"].filter_specs if spec.title == "day (UTC)"]
    assert [choice["display"] for choice in spec.choices(page.context["cl"]) if choice["selected"]] == chosen


def test_a_row_shows_its_prices_and_its_cost(operator: Client, ada: Any) -> None:
    record(ada, prices=Prices(prompt=3_000_000, cached=300_000, output=15_000_000))
    row = UsageEntry.objects.get()
    assert "0.000094 USD" in operator.get(LEDGER).content.decode()
    page = operator.get(f"{LEDGER}{row.pk}/change/").content.decode()
    for amount in ("3.00 USD", "0.30 USD", "15.00 USD", "0.000094 USD"):
        assert amount in page


def test_a_file_has_a_line_for_each_row_the_oldest_first(operator: Client, ada: Any) -> None:
    second = record(
        ada, at=NOON + DAY, prices=Prices(prompt=3_000_000, cached=300_000, output=15_000_000), wasted_tokens=9
    )
    first = record(ada, reason="lost")
    lines = exported(operator)
    assert [line["run_id"] for line in lines] == [str(first.run_id), str(second.run_id)]
    assert lines[1] == {
        "id": str(UsageEntry.objects.get(run_id=second.run_id).pk),
        "created_at": "2026-03-02T12:00:00+00:00",
        "user_id": str(ada.pk),
        "user_email": "ada@example.org",
        "run_id": str(second.run_id),
        "epoch": "1",
        "pool": "default",
        "reason": "completed",
        "purpose": "turn",
        "prompt_tokens": "10",
        "cached_tokens": "4",
        "output_tokens": "5",
        "wasted_tokens": "9",
        "prompt_price": "3.000000",
        "cached_price": "0.300000",
        "output_price": "15.000000",
        "cost": "0.000094",
        "currency": "USD",
    }  # fmt: skip


def test_a_file_of_nothing_is_its_first_line(operator: Client) -> None:
    response: Any = operator.get(f"{LEDGER}export/")
    assert b"".join(response).decode().splitlines() == [",".join([*(c.name for c in _columns()), "currency"])]
    assert response.headers["Content-Disposition"].startswith('attachment; filename="usageentry-20')
    assert "no-store" in response.headers["Cache-Control"]


def _columns() -> Any:
    from billing.screens.ledger import UsageEntryAdmin

    return UsageEntryAdmin.csv_columns


def test_a_file_has_what_the_list_finds_whatever_page_it_shows(operator: Client, ada: Any) -> None:
    eve: Any = get_user_model().objects.create_user(email="eve@example.org")
    hers = record(ada, pool="large", reason="failed", at=NOON)
    for changes in ({"reason": "completed"}, {"at": NOON - DAY}, {"pool": "default"}):
        record(ada, **{"pool": "large", "reason": "failed"} | changes)
    record(eve, pool="large", reason="failed")
    query = {"pool": "large", "reason__exact": "failed", "from": "2026-03-01", "q": "ada@example.org"}
    page = operator.get(LEDGER, query | {"o": "1"})
    url = page.context["export_url"]
    assert url.startswith(f"{LEDGER}export/?")
    response: Any = operator.get(url)
    lines = list(csv.DictReader(io.StringIO(b"".join(response).decode())))
    assert [line["run_id"] for line in lines] == [str(hers.run_id)]
    assert operator.get(LEDGER, {"o": "1"}).context["export_url"] == f"{LEDGER}export/"


@pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
def test_no_row_is_left_out_or_told_twice_wherever_pages_end(
    operator: Client, ada: Any, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(csv_export, "PAGE", page)
    # Three at each of three moments.
    for number in range(9):
        record(ada, at=NOON + (number % 3) * DAY)
    rows = UsageEntry.objects.order_by("created_at", "id").values_list("id", flat=True)
    assert [line["id"] for line in exported(operator)] == [str(one) for one in rows]


def test_rows_are_read_when_their_part_is_asked_for_and_never_more_than_a_page(
    operator: Client, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_export, "PAGE", 2)
    for _ in range(5):
        record(ada)
    response: Any = operator.get(f"{LEDGER}export/")
    made = iter(response)
    with CaptureQueriesContext(connection) as queries:
        assert next(made).startswith(b"id,")
        assert len(queries) == 0
        assert len(next(made).splitlines()) == 2
        assert len(queries) == 1
        assert [len(part.splitlines()) for part in made] == [2, 1]
    assert len(queries) == 4
    assert all("LIMIT 2" in query["sql"] for query in queries)


def test_rows_that_are_written_after_the_question_are_not_in_the_file(operator: Client, ada: Any) -> None:
    record(ada, at=timezone.now())
    response: Any = operator.get(f"{LEDGER}export/")
    record(ada, at=timezone.now())
    assert len(b"".join(response).splitlines()) == 2


@pytest.mark.parametrize(
    ("written", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("  =1", "'  =1"),
        ("＝1", "'＝1"),
        ("a=1", "a=1"),
        ("", ""),
        (None, ""),
    ],
)
def test_no_cell_is_a_formula_to_a_spreadsheet(written: str | None, cell: str) -> None:
    assert csv_export.text(written) == cell


def test_what_people_chose_is_no_formula_in_a_file_and_a_number_stays_one(operator: Client, make: Any) -> None:
    user: Any = get_user_model().objects.create_user(email="=cmd|x@example.org")
    record(user, pool="-large")
    [line] = exported(operator)
    assert (line["user_email"], line["pool"]) == ("'=cmd|x@example.org", "'-large")
    assert make(operator, user, tokens="-7", cost="-1500000", reason='=HYPERLINK("x"), "y"').status_code == 302
    [line] = exported(operator, ADJUSTMENTS)
    assert (line["tokens"], line["cost"], line["reason"]) == ("-7", "-1.500000", '\'=HYPERLINK("x"), "y"')
    assert (line["user_email"], line["author_email"]) == ("'=cmd|x@example.org", "root@example.org")


def test_rows_of_deleted_users_are_exported_without_a_name(operator: Client, ada: Any) -> None:
    record(ada)
    ada.delete()
    [line] = exported(operator)
    assert (line["user_id"], line["user_email"]) == ("", "")


def test_an_export_is_recorded_before_its_first_row_without_the_address_that_was_searched_for(
    operator: Client, ada: Any
) -> None:
    record(ada)
    operator.get(f"{LEDGER}export/", {"q": "ada@example.org", "reason__exact": "failed", "pool": "default", "to": ""})
    operator.get(f"{ADJUSTMENTS}export/")
    told = AuditEntry.objects.order_by("id").values_list("action", "object_type", "object_id", "detail")
    assert list(told) == [
        ("export", "billing.usageentry", "", "search, reason__exact=failed, pool=default"),
        ("export", "billing.adjustment", "", "everything"),
    ]
    page = operator.get("/admin/audit/auditentry/").content.decode()
    assert '<td class="field-about">usageentry</td>' in page


def test_a_file_is_for_those_who_may_see_the_list_and_comes_by_get_alone(operator: Client) -> None:
    browser = staff("view_subscription")
    for screen in (LEDGER, ADJUSTMENTS):
        assert browser.get(f"{screen}export/").status_code == 403
        assert operator.post(f"{screen}export/").status_code == 405
        assert operator.head(f"{screen}export/").status_code == 405
    assert not AuditEntry.objects.exists()
    get_user_model().objects.get(email="staff@example.org").delete()
    browser = staff("view_usageentry")
    assert browser.get(f"{LEDGER}export/").status_code == 200
    assert browser.get(f"{ADJUSTMENTS}export/").status_code == 403


@pytest.fixture
def make() -> Any:
    """Sends the form of adjustments, as it was shown."""

    def send(browser: Client, whom: Any, **given: str) -> Any:
        page = browser.get(f"{ADJUSTMENTS}add/?user={whom.pk}")
        form = page.context["adminform"].form
        shown = {"user": str(whom.pk), "tokens": "0", "cost": "0", "key": str(form.initial["key"])}
        assert str(form.initial["user"]) == str(whom.pk)
        return browser.post(f"{ADJUSTMENTS}add/", shown | {"reason": "An outage"} | given)

    return send


def test_an_adjustment_is_made_with_its_author_and_recorded(operator: Client, root: Any, ada: Any, make: Any) -> None:
    before = billing.account_generation(user_id=ada.pk)
    assert make(operator, ada, tokens="-100", cost="-250", author_email="x@x", created_at="2020").status_code == 302
    made = Adjustment.objects.get()
    assert (made.user_id, made.tokens, made.cost, made.reason) == (ada.pk, -100, -250, "An outage")
    assert (made.author_id, made.author_email) == (root.pk, "root@example.org")
    assert timezone.now() - made.created_at < timedelta(minutes=1)
    assert billing.account_generation(user_id=ada.pk) == before + 1
    told = AuditEntry.objects.values_list("actor_email", "action", "object_type", "object_id")
    assert list(told) == [("root@example.org", "add", "billing.adjustment", str(made.pk))]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "tokens"),
        ({"tokens": "9" * 30}, "tokens"),
        ({"tokens": "x"}, "tokens"),
        ({"tokens": "1", "cost": str(10**15 + 1)}, "cost"),
        ({"tokens": "1", "reason": "  "}, "reason"),
        ({"tokens": "1", "user": ""}, "user"),
        ({"tokens": "1", "key": "x"}, "key"),
        ({"tokens": "1", "key": ""}, "key"),
    ],
)
def test_what_no_adjustment_can_be_is_said_at_its_field(
    operator: Client, ada: Any, make: Any, given: dict[str, str], field: str
) -> None:
    response = make(operator, ada, **given)
    assert response.status_code == 200
    assert list(response.context["adminform"].form.errors) == [field]
    assert not Adjustment.objects.exists()


def test_a_form_that_is_sent_twice_adjusts_once(operator: Client, ada: Any, make: Any) -> None:
    key = str(uuid4())
    assert make(operator, ada, tokens="5", key=key).status_code == 302
    again = make(operator, ada, tokens="5", key=key)
    assert again.context["adminform"].form.errors == {
        "key": ["This adjustment has been made already: it is in the list."]
    }
    assert Adjustment.objects.count() == AuditEntry.objects.count() == 1
    assert make(operator, ada, tokens="5").status_code == 302


@pytest.mark.django_db(transaction=True)
def test_a_form_that_is_sent_many_times_at_once_adjusts_once_and_never_fails(root: Any, ada: Any, make: Any) -> None:
    key = str(uuid4())

    def send() -> int:
        browser = Client()
        browser.force_login(root)
        return int(make(browser, ada, tokens="5", key=key).status_code)

    assert sorted(at_once([partial(send) for _ in range(4)]), key=str) == [200, 200, 200, 302]
    assert Adjustment.objects.count() == 1
    assert billing.account_generation(user_id=ada.pk) == 2


def test_an_adjustment_once_made_is_shown_and_changed_or_deleted_by_nobody(
    operator: Client, ada: Any, make: Any
) -> None:
    make(operator, ada, tokens="-100", cost="1500000")
    made = Adjustment.objects.get()
    page = operator.get(f"{ADJUSTMENTS}{made.pk}/change/").content.decode()
    for shown in ("-100", "1.50 USD", "An outage", "root@example.org", "ada@example.org"):
        assert shown in page
    assert operator.post(f"{ADJUSTMENTS}{made.pk}/change/", {"tokens": "0"}).status_code == 403
    assert operator.post(f"{ADJUSTMENTS}{made.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Adjustment.objects.get().tokens == -100


def test_adjusting_takes_a_permission_of_its_own(ada: Any, make: Any) -> None:
    browser = staff("view_adjustment")
    assert browser.get(ADJUSTMENTS).status_code == 200
    assert browser.get(f"{ADJUSTMENTS}add/").status_code == 403
    assert browser.post(f"{ADJUSTMENTS}add/", {"tokens": "5"}).status_code == 403


def test_adjustments_are_found_by_user_and_day(operator: Client, ada: Any, make: Any) -> None:
    make(operator, ada, tokens="5")
    today = timezone.now().date().isoformat()
    for query, count in (
        ({"q": "ada@example.org"}, 1),
        ({"q": "eve@example.org"}, 0),
        ({"from": today, "to": today}, 1),
        ({"to": "2026-01-01"}, 0),
        ({"q": str(Adjustment.objects.get().pk)}, 1),
    ):
        assert operator.get(ADJUSTMENTS, query).context["cl"].result_count == count, query


@pytest.mark.django_db(transaction=True)
def test_the_file_comes_through_the_server_part_by_part(ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_export, "PAGE", 2)
    runs = [record(ada).run_id for _ in range(5)]
    browser = staff("view_usageentry")
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(event: Mapping[str, Any]) -> None:
        sent.append(event)

    cookies = "; ".join(f"{name}={cookie.value}" for name, cookie in browser.cookies.items())
    headers = [(b"host", b"testserver"), (b"cookie", cookies.encode())]
    scope = {"type": "http", "method": "GET", "path": f"{LEDGER}export/", "query_string": b"", "headers": headers}
    asyncio.run(Handler()({**scope, "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 5)}, receive, send))
    start, *parts = sent
    assert start["status"] == 200
    rows = list(csv.DictReader(io.StringIO(b"".join(part.get("body", b"") for part in parts).decode())))
    assert [row["run_id"] for row in rows] == list(map(str, runs))
    assert sum(bool(part.get("body", b"")) for part in parts) == 4
