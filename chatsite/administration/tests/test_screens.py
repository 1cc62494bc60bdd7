"""What every list of the admin keeps to, whatever its table's size: bounded counts, indexes, few queries."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from benchmarks.filling import Filler
from billing.models import Plan
from chatsite.accounts import accounts
from chatsite.accounts.models import User
from chatsite.administration import paging
from chatsite.administration.screens import Screen
from inference.models import ModelPool

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ROWS = 120
# What a million of them make slow; the others are few on every site.
LARGE = {
    "account_emailaddress",
    "accounts_apikey",
    "accounts_user",
    "audit_auditentry",
    "billing_account",
    "billing_adjustment",
    "billing_limitoverride",
    "billing_subscription",
    "billing_usageentry",
    "conversations_chat",
    "conversations_message",
    "conversations_summary",
    "conversations_turn",
    "inference_attempt",
    "inference_run",
    "usersessions_usersession",
}
OF_FEW = ("accounts_user_staff", "accounts_user_superuser", "accounts_user_suspended")
MIDDLE = Filler(rows=ROWS, now=NOW)
# List → what is typed into its search box or chosen in its filters. Each is one question that an index answers.
QUESTIONS = [
    ("inference_run", {}),
    ("inference_run", {"q": str(MIDDLE.uuid(1, 60))}),
    ("inference_run", {"q": MIDDLE.email(0)}),
    ("inference_run", {"status__exact": "failed"}),
    ("inference_run", {"pool__id__exact": "{old}"}),
    ("inference_run", {"pool__id__exact": "{old}", "status__exact": "failed"}),
    ("inference_run", {"kind__exact": "summary"}),
    ("inference_run", {"kind__exact": "title", "status__exact": "failed"}),
    ("inference_run", {"o": "10"}),
    ("inference_attempt", {}),
    ("inference_attempt", {"q": str(MIDDLE.uuid(1, 60))}),
    ("inference_attempt", {"outcome__exact": "lost"}),
    ("conversations_chat", {}),
    ("conversations_chat", {"q": str(MIDDLE.uuid(2, 60))}),
    ("conversations_chat", {"q": MIDDLE.email(0)}),
    ("conversations_chat", {"pool": "old"}),
    ("conversations_turn", {}),
    ("conversations_turn", {"q": str(MIDDLE.uuid(1, 60))}),
    ("conversations_turn", {"q": MIDDLE.email(0)}),
    ("conversations_message", {}),
    ("conversations_message", {"q": str(MIDDLE.uuid(2, 60))}),
    ("conversations_message", {"q": MIDDLE.email(0)}),
    ("conversations_summary", {}),
    ("conversations_summary", {"q": str(MIDDLE.uuid(12, 60))}),
    ("conversations_summary", {"q": MIDDLE.email(0)}),
    ("billing_usageentry", {}),
    ("billing_usageentry", {"q": str(MIDDLE.uuid(1, 60))}),
    ("billing_usageentry", {"q": MIDDLE.email(0)}),
    ("billing_usageentry", {"reason__exact": "lost"}),
    ("billing_usageentry", {"purpose__exact": "summary"}),
    ("billing_usageentry", {"q": str(MIDDLE.uuid(0, 0))}),
    ("billing_usageentry", {"pool": "old"}),
    ("billing_usageentry", {"pool": "old", "reason__exact": "completed"}),
    ("billing_usageentry", {"from": "2026-02-10", "to": "2026-02-12"}),
    ("billing_usageentry", {"reason__exact": "lost", "from": "2026-02-10", "to": "2026-02-12"}),
    ("billing_usageentry", {"pool": "old", "from": "2026-02-10"}),
    ("billing_usageentry", {"pool": "old", "reason__exact": "failed", "to": "2026-02-12"}),
    ("billing_usageentry", {"q": MIDDLE.email(0), "from": "2026-02-10"}),
    ("billing_adjustment", {}),
    ("billing_adjustment", {"q": MIDDLE.email(0)}),
    ("billing_adjustment", {"q": str(MIDDLE.uuid(11, 60))}),
    ("billing_adjustment", {"from": "2026-02-10"}),
    ("billing_limitoverride", {}),
    ("billing_limitoverride", {"q": MIDDLE.email(3)}),
    ("accounts_user", {}),
    ("accounts_user", {"q": str(MIDDLE.uuid(0, 60))}),
    ("accounts_user", {"q": "person1"}),
    ("accounts_user", {"is_active__exact": "0"}),
    ("accounts_user", {"is_staff__exact": "1"}),
    ("audit_auditentry", {}),
    ("audit_auditentry", {"q": str(MIDDLE.uuid(4, 3))}),
    ("audit_auditentry", {"q": MIDDLE.email(3)}),
    ("billing_subscription", {}),
    ("billing_subscription", {"q": MIDDLE.email(3)}),
    ("billing_subscription", {"plan__id__exact": "{pro}"}),
    ("audit_auditentry", {"action__exact": "suspend"}),
    ("account_emailaddress", {}),
    ("account_emailaddress", {"q": MIDDLE.email(3)}),
    ("accounts_apikey", {}),
    ("accounts_apikey", {"q": MIDDLE.email(3)}),
    ("accounts_apikey", {"q": "sk-60"}),
    ("billing_account", {}),
    ("billing_account", {"q": MIDDLE.email(3)}),
    ("usersessions_usersession", {}),
    ("usersessions_usersession", {"q": MIDDLE.email(3)}),
]


on_sqlite = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="Postgres reads a small table whole, whatever indexes it has"
)


@pytest.fixture
def filled(db: None) -> None:
    Filler(rows=ROWS, now=NOW).fill()


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(accounts.open_account(email="root@example.org", password=None, administrator=True))
    return client


def asked(browser: Client, name: str, query: dict[str, str]) -> tuple[str, list[str]]:
    """A list's page and the queries about large tables that it took."""
    with CaptureQueriesContext(connection) as queries:
        response = browser.get(reverse(f"admin:{name}_changelist"), query)
    assert response.status_code == 200
    sql = [one["sql"] for one in queries if any(f'FROM "{table}"' in one["sql"] for table in LARGE)]
    return response.content.decode(), sql


def steps(sql: str) -> list[str]:
    """How SQLite goes about a query."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + sql.replace("%", "%%"))
        return [str(row[3]) for row in cursor.fetchall()]


@on_sqlite
@pytest.mark.parametrize(("name", "query"), QUESTIONS, ids=str)
def test_no_question_to_a_large_table_reads_it_whole_or_sorts_it(
    browser: Client, filled: None, name: str, query: dict[str, str]
) -> None:
    chosen = {"old": ModelPool.objects.get(slug="old").pk, "pro": Plan.objects.get(slug="pro").pk}
    _, queries = asked(browser, name, {key: value.format(**chosen) for key, value in query.items()})
    assert queries
    for sql in queries:
        plan = steps(sql)
        # From the end of the table: its own order is that of the row numbers.
        is_end = "WHERE" not in sql and not any("TEMP B-TREE" in step for step in plan)
        for step in plan:
            whole = re.match(r"SCAN (\w+)", step)
            # Through an index, from its end: as many rows as the page shows, or as are counted. Or through one of few.
            is_few = any(few in step for few in OF_FEW)
            is_bounded = ("LIMIT" in sql and ("USING" in step or is_end)) or ("USING" in step and is_few)
            assert not whole or whole[1] not in LARGE or is_bounded, (step, sql)


@on_sqlite
def test_search_by_owner_in_the_order_of_an_index_needs_no_sorting(browser: Client, filled: None) -> None:
    for name in ("inference_run", "billing_usageentry"):
        for text in (MIDDLE.email(0), str(MIDDLE.uuid(0, 0))):
            _, queries = asked(browser, name, {"q": text})
            assert [step for sql in queries for step in steps(sql) if "USE TEMP B-TREE FOR ORDER BY" in step] == []


# But for the id of a run, whose rows are few.
EXPORTS = [
    (name, query)
    for name, query in QUESTIONS
    if name in ("billing_usageentry", "billing_adjustment")
    and query.get("q") not in (str(MIDDLE.uuid(1, 60)), str(MIDDLE.uuid(11, 60)))
]


@on_sqlite
@pytest.mark.parametrize(("name", "query"), EXPORTS, ids=str)
def test_no_page_of_a_file_reads_a_large_table_whole_or_sorts_it(
    browser: Client, filled: None, monkeypatch: pytest.MonkeyPatch, name: str, query: dict[str, str]
) -> None:
    monkeypatch.setattr("billing.screens.csv_export.PAGE", 1)
    with CaptureQueriesContext(connection) as queries:
        response: Any = browser.get(reverse(f"admin:{name}_export"), query)
        for _ in zip(range(4), response, strict=False):
            pass
        # Not left to the collector: that may come in the middle of another request's setting of a context variable,
        # and the same variable set at the end of this one then crashes the interpreter.
        response._iterator.close()
    pages = [one["sql"] for one in queries if one["sql"].endswith("ORDER BY 1 ASC, 2 ASC LIMIT 1")]
    assert pages
    for sql in pages:
        plan = steps(sql)
        assert [step for step in plan if re.match(r"SCAN \w+$", step)] == [], sql
        # Of the rows of one moment the ids are in no index.
        assert [step for step in plan if "TEMP B-TREE FOR ORDER BY" in step] == [], sql


@pytest.mark.parametrize("name", sorted(LARGE))
def test_no_list_counts_further_than_it_can_be_paged_through(browser: Client, filled: None, name: str) -> None:
    _, queries = asked(browser, name, {})
    counts = [sql for sql in queries if "COUNT(" in sql and "GROUP BY" not in sql]
    assert counts
    assert all(f"LIMIT {paging.REACH + 1}" in sql for sql in counts)
    assert not any("DISTINCT" in sql for sql in queries)


def test_a_list_longer_than_its_reach_says_so(browser: Client, filled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    page, _ = asked(browser, "inference_run", {})
    assert f"{ROWS} runs" in " ".join(page.split())
    monkeypatch.setattr(paging, "REACH", 100)
    page, _ = asked(browser, "inference_run", {})
    assert "more than 100 runs" in " ".join(page.split())
    assert "p=2" in page
    assert "p=3" not in page


@pytest.mark.parametrize("name", sorted(LARGE))
def test_the_number_of_queries_does_not_grow_with_the_page(browser: Client, filled: None, name: str) -> None:
    screen: Any = admin.site.get_model_admin(_model(name))
    # Once a minute a session's use is noted.
    browser.get(reverse("admin:index"))
    numbers = []
    for length in (5, 50):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(screen, "list_per_page", length)
            with CaptureQueriesContext(connection) as queries:
                page = browser.get(reverse(f"admin:{name}_changelist")).content.decode()
        assert page.count('class="action-select"') in (length, 0)
        numbers.append(len(queries))
    assert numbers[0] == numbers[1]


def _model(name: str) -> Any:
    return next(model for model in admin.site._registry if model._meta.label_lower.replace(".", "_") == name)


def test_every_screen_is_on_the_common_base() -> None:
    assert admin.site._registry
    assert all(isinstance(screen, Screen) for screen in admin.site._registry.values())


def test_every_permission_that_the_documentation_names_is_there(db: None) -> None:
    page = Path(settings.BASE_DIR, "docs", "admin.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| permissions |"))
    named = set(re.findall(r"`(\w+)`", row))
    assert len(named) > 10
    assert named - set(Permission.objects.values_list("codename", flat=True)) == set()


@pytest.mark.parametrize("name", sorted(LARGE))
def test_sorting_by_a_column_without_an_index_is_not_done(browser: Client, filled: None, name: str) -> None:
    allowed: Any = admin.site.get_model_admin(_model(name))
    for column in range(1, 11):
        for direction in ("", "-"):
            _, queries = asked(browser, name, {"o": f"{direction}{column}"})
            lists = [sql for sql in queries if "ORDER BY" in sql and "LIMIT" in sql]
            assert lists
            for sql in lists:
                first = re.search(r'ORDER BY "?(?:\w+"\.")?(\w+)"?', sql)
                assert first
                assert first[1] in ("id", "user_id", "created_at"), (allowed.sortable_by, sql)


def test_an_id_is_compared_as_one_and_an_address_is_looked_up_first(browser: Client, filled: None) -> None:
    _, queries = asked(browser, "inference_run", {"q": str(MIDDLE.uuid(1, 60))})
    assert not any("UPPER" in sql or "LIKE" in sql for sql in queries)
    _, queries = asked(browser, "inference_run", {"q": MIDDLE.email(0).upper()})
    assert not any("UPPER" in sql or "LIKE" in sql for sql in queries)
    owner = MIDDLE.uuid(0, 0)
    assert any(f"\"owner_id\" = '{owner.hex}'" in sql.replace(str(owner), owner.hex) for sql in queries)


def test_a_search_for_what_cannot_be_there_finds_nothing(browser: Client, filled: None) -> None:
    for text in ("nobody@example.org", str(UUID(int=1)), "word", "'", '"', "%", "0"):
        page, _ = asked(browser, "inference_run", {"q": text})
        assert "0 runs" in " ".join(page.split()), text


def test_several_words_narrow_each_other(browser: Client, filled: None) -> None:
    run = str(MIDDLE.uuid(1, 100))
    assert run in asked(browser, "inference_run", {"q": f"{run} {MIDDLE.email(0)}"})[0]
    assert "0 runs" in " ".join(asked(browser, "inference_run", {"q": f"{run} {MIDDLE.email(1)}"})[0].split())


def test_a_search_that_names_a_field_which_users_do_not_have_is_answered(browser: Client) -> None:
    assert browser.get("/admin/usersessions/usersession/", {"q": "ada"}).status_code == 200


def test_users_are_found_by_the_beginning_of_their_address(browser: Client) -> None:
    accounts.open_account(email="ada@example.org", password=None)
    accounts.open_account(email="eve@example.org", password=None)
    page = browser.get("/admin/accounts/user/", {"q": "AD"}).content.decode()
    assert "ada@example.org" in page
    assert "eve@example.org" not in page


@pytest.mark.parametrize(
    "path",
    [
        "accounts/user/?password__startswith=p",
        "accounts/apikey/?sha256__startswith=a",
        "accounts/invitation/?sha256__startswith=a",
        "inference/run/?carry_text__contains=x",
        "inference/run/?owner__password__startswith=p",
        "inference/attempt/?text__contains=x",
        "mfa/authenticator/?data__contains=x",
        "billing/usageentry/?user__api_keys__sha256__startswith=a",
        "inference/run/?pool__runs__owner__chats__messages__content__gte=a",
        "inference/run/?pool__runs__owner__password__exact=a",
        "inference/run/?pool__runs__isnull=1",
        "billing/subscription/?plan__subscriptions__user__password__lt=p",
    ],
)
def test_no_address_of_a_list_lets_secrets_be_guessed(browser: Client, path: str) -> None:
    assert browser.get(f"/admin/{path}").status_code == 400


def _filters() -> list[tuple[Any, str]]:
    """Each screen with each field that its list is filtered by."""
    return [
        (screen, str(item[0] if isinstance(item, tuple) else item))
        for screen in admin.site._registry.values()
        for item in screen.list_filter
        if not isinstance(item, type)
    ]


def test_no_filter_of_any_list_leads_on_to_what_lies_behind_it(rf: RequestFactory) -> None:
    request = rf.get("/")
    request.user = User(is_superuser=True)
    asked = 0
    for screen, name in _filters():
        field: Any = get_fields_from_path(screen.model, name)[-1]
        behind = field.related_model._meta.get_fields() if field.is_relation else []
        for other in behind:
            deeper = (
                [f"{other.name}__{far.name}" for far in other.related_model._meta.get_fields()]
                if (other.is_relation and other.related_model)
                else []
            )
            for path in (other.name, *deeper):
                for lookup in ("__gte", "__lt", "__isnull", "__startswith", "__exact"):
                    if f"{path}{lookup}" != "id__exact":
                        asked += 1
                        assert not screen.lookup_allowed(f"{name}__{path}{lookup}", "1", request), (screen, path)
    assert asked > 100


def test_every_filter_of_every_list_works(browser: Client) -> None:
    offered = []
    for screen, name in _filters():
        listed = reverse(f"admin:{screen.opts.app_label}_{screen.opts.model_name}_changelist")
        response = browser.get(listed)
        for spec in response.context["cl"].filter_specs:
            addresses = [choice["query_string"] for choice in spec.choices(response.context["cl"])]
            offered += [name, *addresses]
            assert [one for one in addresses if browser.get(listed + one).status_code != 200] == []
    assert len(offered) > 30


def test_an_action_takes_ticked_rows_of_one_page_and_never_all(browser: Client) -> None:
    users = [accounts.open_account(email=f"u{number}@example.org", password=None) for number in range(51)]
    form: dict[str, Any] = {"action": "suspend", "confirmed": "yes"}
    across = form | {"select_across": "1", "_selected_action": str(users[0].pk)}
    many = form | {"_selected_action": [str(user.pk) for user in users]}
    for chosen in (across, many):
        page = browser.post("/admin/accounts/user/", chosen, follow=True).content.decode()
        assert "one page at a time" in page
    assert User.objects.filter(is_active=True).count() == len(users) + 1
    assert "select_across" not in browser.get("/admin/accounts/user/").content.decode().replace(
        '<input type="hidden" name="select_across" value="0" class="select-across">', ""
    )


def test_the_history_of_an_object_is_for_those_who_may_see_it(browser: Client, client: Client) -> None:
    ada = accounts.open_account(email="ada@example.org", password=None)
    assert browser.get(f"/admin/accounts/user/{ada.pk}/history/").status_code == 200
    assert browser.get(f"/admin/accounts/user/{UUID(int=1)}/history/").status_code == 404
    staff = accounts.open_account(email="staff@example.org", password=None)
    User.objects.filter(pk=staff.pk).update(is_staff=True)
    client.force_login(staff)
    assert client.get(f"/admin/accounts/user/{ada.pk}/history/").status_code == 403


def test_the_history_of_an_object_is_part_of_the_trail_and_for_its_readers_alone(client: Client) -> None:
    ada = accounts.open_account(email="ada@example.org", password=None)
    staff = accounts.open_account(email="staff@example.org", password=None)
    User.objects.filter(pk=staff.pk).update(is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="view_user"))
    client.force_login(staff)
    page, history = (f"/admin/accounts/user/{ada.pk}/{name}/" for name in ("change", "history"))
    assert client.get(history).status_code == 403
    assert "historylink" not in client.get(page).content.decode()
    staff.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    assert client.get(history).status_code == 200
    assert "historylink" in client.get(page).content.decode()


@pytest.mark.parametrize("query", [{"status__exact": "\0"}, {"status": "a\0b"}, {"\0": "1"}, {"q": "\0"}])
def test_a_filter_that_holds_what_no_database_does_finds_nothing(browser: Client, query: dict[str, str]) -> None:
    address = reverse("admin:inference_run_changelist")
    response = browser.get(address, query)
    assert (response.status_code, response.headers["Location"]) == (302, f"{address}?e=1")
