"""The audit trail: what it keeps, for how long, and that nobody rewrites it."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.test import Client
from pytest_django import DjangoCaptureOnCommitCallbacks

from chatsite.accounts import accounts, keys
from chatsite.accounts.models import User
from chatsite.audit import trail
from chatsite.audit.errors import TrailIsAppendOnly
from chatsite.audit.models import AuditEntry
from inference.models import ModelPool

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SCREEN = "/admin/audit/auditentry/"


@pytest.fixture
def root() -> User:
    return accounts.open_account(email="root@example.org", password=None, administrator=True)


@pytest.fixture
def ada() -> User:
    return accounts.open_account(email="ada@example.org", password=None)


@pytest.fixture
def browser(root: User, client: Client) -> Client:
    client.force_login(root)
    return client


def acts() -> list[tuple[str, str, str]]:
    """Action, type and detail of every entry, oldest first."""
    return [(entry.action, entry.object_type, entry.detail) for entry in AuditEntry.objects.order_by("id")]


def test_an_entry_outlives_who_did_it_and_to_whom(root: User, ada: User) -> None:
    trail.record(actor=root, action="suspend", objects=[ada], now=NOW)
    user_ids = root.pk, ada.pk
    User.objects.all().delete()
    (entry,) = AuditEntry.objects.all()
    assert (entry.actor_email, entry.actor_id, UUID(entry.object_id)) == ("root@example.org", *user_ids)
    assert entry.at == NOW


def test_an_entry_does_not_keep_the_address_of_whom_it_is_about(root: User, ada: User) -> None:
    (entry,) = trail.record(actor=root, action="suspend", objects=[ada], now=NOW)
    assert "ada@" not in "".join(str(value) for value in vars(entry).values())


def test_an_act_on_many_is_one_entry_for_each(root: User, ada: User) -> None:
    trail.record(actor=root, action="suspend", objects=[ada, root], now=NOW)
    assert {UUID(entry.object_id) for entry in AuditEntry.objects.all()} == {ada.pk, root.pk}


def test_an_unknown_act_is_refused(root: User, ada: User) -> None:
    with pytest.raises(ValueError, match="tickle"):
        trail.record(actor=root, action="tickle", objects=[ada], now=NOW)
    assert not AuditEntry.objects.exists()


def test_entries_are_neither_changed_nor_deleted(root: User, ada: User) -> None:
    (entry,) = trail.record(actor=root, action="suspend", objects=[ada], now=NOW)
    for attempt in (entry.save, entry.delete, AuditEntry.objects.all().delete):
        with pytest.raises(TrailIsAppendOnly):
            attempt()
    with pytest.raises(TrailIsAppendOnly):
        AuditEntry.objects.update(action="view")
    assert AuditEntry.objects.get().action == "suspend"


def test_what_a_form_adds_changes_and_deletes_is_recorded_by_its_fields(browser: Client) -> None:
    form = {
        "slug": "team", "name": "Team", "concurrent_runs": "2", "weight": "4", "output_floor": "64",
        "overflow": "smaller", "unwatched": "finish",
    }  # fmt: skip
    assert browser.post("/admin/billing/plan/add/", form).status_code == 302
    (plan,) = AuditEntry.objects.values_list("object_id", flat=True)
    assert browser.post(f"/admin/billing/plan/{plan}/change/", form | {"weight": "5"}).status_code == 302
    assert browser.post(f"/admin/billing/plan/{plan}/delete/", {"post": "yes"}).status_code == 302
    assert acts() == [
        ("add", "billing.plan", "team"),
        ("change", "billing.plan", "team: Weight"),
        ("delete", "billing.plan", "team"),
    ]


def test_the_value_of_a_changed_field_is_not_kept(browser: Client) -> None:
    pool = ModelPool.objects.get(is_default=True)
    page = browser.get(f"/admin/inference/modelpool/{pool.pk}/change/")
    form = {name: value for name, value in page.context["adminform"].form.initial.items() if value is not None}
    form |= {"engine_options": "{}", "initial-engine_options": "{}", "is_open": "on", "system_prompt": "You are Zorba."}
    form |= {"weights-TOTAL_FORMS": "0", "weights-INITIAL_FORMS": "0"}
    assert browser.post(f"/admin/inference/modelpool/{pool.pk}/change/", form).status_code == 302
    assert acts() == [("change", "inference.modelpool", "default: System prompt")]


def test_several_deleted_at_once_are_recorded_each(
    browser: Client, ada: User, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    bob = accounts.open_account(email="bob@example.org", password=None)
    form = {"action": "delete_selected", "_selected_action": [str(ada.pk), str(bob.pk)], "post": "yes"}
    with django_capture_on_commit_callbacks(execute=True):
        assert browser.post("/admin/accounts/user/", form).status_code == 302
    assert {UUID(entry.object_id) for entry in AuditEntry.objects.filter(action="delete")} == {ada.pk, bob.pk}
    assert not User.objects.filter(pk__in=[ada.pk, bob.pk]).exists()


def test_screens_of_other_packages_are_recorded_too(browser: Client, ada: User) -> None:
    form = {"user": str(ada.pk), "email": "ada@example.com", "verified": "on"}
    assert browser.post("/admin/account/emailaddress/add/", form).status_code == 302
    assert acts() == [("add", "account.emailaddress", "")]


def test_revoking_a_key_and_changing_a_password_are_recorded(browser: Client, ada: User) -> None:
    api_key = keys.create(user=ada, name="", now=NOW).api_key
    for _ in range(2):
        browser.post("/admin/accounts/apikey/", {"action": "revoke", "_selected_action": str(api_key.pk)})
    password = {"password1": "correct horse battery", "password2": "correct horse battery", "usable_password": "true"}
    assert browser.post(f"/admin/accounts/user/{ada.pk}/password/", password).status_code == 302
    assert acts() == [("revoke", "accounts.apikey", ""), ("change", "accounts.user", "password")]


def test_suspending_is_recorded_before_it_is_done(browser: Client, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, str, str]]] = []

    def suspend(**_: object) -> bool:
        seen.append(acts())
        return True

    monkeypatch.setattr("chatsite.accounts.suspension.suspend", suspend)
    form = {"action": "suspend", "_selected_action": str(ada.pk)}
    browser.post("/admin/accounts/user/", form)
    assert acts() == [], "a question is no act"
    browser.post("/admin/accounts/user/", form | {"confirmed": "yes"})
    assert seen == [[("suspend", "accounts.user", "")]]


def test_an_entry_leads_from_a_log_line_and_to_its_object(browser: Client, ada: User, root: User) -> None:
    form = {"action": "suspend", "_selected_action": str(ada.pk), "confirmed": "yes"}
    browser.post("/admin/accounts/user/", form, headers={"X-Request-ID": "from-a-proxy-1"})
    entry = AuditEntry.objects.get()
    assert entry.request_id == "from-a-proxy-1"
    assert f"/admin/accounts/user/{ada.pk}/change/" in browser.get(SCREEN).content.decode()
    history = browser.get(f"/admin/accounts/user/{ada.pk}/history/").content.decode()
    assert "Suspend" in history
    assert "root@example.org" in history


@pytest.mark.parametrize("looked_for", ["root@example.org", "ROOT@example.org", "{ada}", "new@example.org", "gone"])
def test_entries_are_found_by_who_did_it_and_by_what_it_was_done_to(
    browser: Client, root: User, ada: User, looked_for: str
) -> None:
    other = accounts.open_account(email="other@example.org", password=None)
    (mine,) = trail.record(actor=root, action="suspend", objects=[ada], now=NOW)
    (theirs,) = trail.record(actor=other, action="suspend", objects=[other], now=NOW)
    if looked_for == "new@example.org":
        User.objects.filter(pk=root.pk).update(email=looked_for)
    if looked_for == "gone":
        looked_for = "root@example.org"
        User.objects.filter(pk=root.pk).update(email="new@example.org")
    found = browser.get(SCREEN, {"q": looked_for.format(ada=ada.pk)}).content.decode()
    assert str(mine.pk) in found
    assert str(theirs.pk) not in found


def test_not_even_a_superuser_can_edit_the_trail(browser: Client, root: User, ada: User) -> None:
    (entry,) = trail.record(actor=root, action="suspend", objects=[ada], now=NOW)
    page = f"{SCREEN}{entry.pk}/"
    assert browser.get(f"{page}change/").status_code == 200
    assert browser.get(f"{SCREEN}add/").status_code == 403
    assert browser.post(f"{page}change/", {"action": "view"}).status_code == 403
    assert browser.post(f"{page}delete/", {"post": "yes"}).status_code == 403
    browser.post(SCREEN, {"action": "delete_selected", "_selected_action": str(entry.pk), "post": "yes"})
    assert AuditEntry.objects.get() == entry


def test_staff_without_the_permission_do_not_see_the_trail(client: Client) -> None:
    support = accounts.open_account(email="support@example.org", password=None)
    User.objects.filter(pk=support.pk).update(is_staff=True)
    client.force_login(support)
    assert client.get(SCREEN).status_code == 403
    assert "Latest acts" not in client.get("/admin/").content.decode()
