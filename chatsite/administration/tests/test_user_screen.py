"""The admin screen for users: what it shows, and what it lets whom do."""

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks

from billing import adjustments
from billing import api as billing
from billing.contracts import Charge
from billing.models import LimitOverride, Plan, Subscription, UsageEntry
from chatsite.accounts import accounts, closing, keys
from chatsite.accounts.models import User
from chatsite.accounts.user_screen import UserChange
from chatsite.audit import trail
from chatsite.audit.models import AuditEntry
from inference import runs
from inference.models import ModelPool, Run

USERS = "/admin/accounts/user/"
PASSWORD = "correct horse battery staple"


@pytest.fixture
def ada(db: None) -> User:
    return accounts.open_account(email="ada@example.org", password=PASSWORD)


@pytest.fixture
def bob(db: None) -> User:
    return accounts.open_account(email="bob@example.org", password=PASSWORD)


@pytest.fixture
def root(db: None) -> User:
    return accounts.open_account(email="root@example.org", password=PASSWORD, administrator=True)


@pytest.fixture
def admin_site(client: Client, root: User) -> Client:
    client.force_login(root)
    return client


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Browsers of staff with these permissions and no others."""

    def hire(email: str, *permissions: str) -> Client:
        user = accounts.open_account(email=email, password=PASSWORD)
        User.objects.filter(pk=user.pk).update(is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        assert user.user_permissions.count() == len(permissions)
        browser = Client()
        browser.force_login(user)
        return browser

    return hire


def log_in(email: str) -> Client:
    browser = Client()
    assert browser.post("/login/", {"login": email, "password": PASSWORD}).status_code == 302
    return browser


def use(user: User, *, tokens: int, ago: timedelta = timedelta(0)) -> None:
    billing.record(
        Charge(
            user_id=user.pk,
            run_id=uuid4(),
            epoch=1,
            admission_id=uuid4(),
            pool="default",
            reason="completed",
            prompt_tokens=tokens - 1,
            cached_tokens=0,
            output_tokens=1,
            wasted_tokens=0,
            at=timezone.now() - ago,
        )
    )


def a_streaming_run(user: User) -> Run:
    now = timezone.now()
    run_id = uuid4()
    runs.accept(
        run_id=run_id,
        owner_id=user.pk,
        chat_id=uuid4(),
        turn="t",
        pool=ModelPool.objects.get(is_default=True),
        model="m",
        admission_id=uuid4(),
        prompt_ids=[1],
        max_output_tokens=10,
        context={},
        now=now,
    )
    claimed = runs.claim(run_id=run_id, epoch=1, worker="w", incarnation="i", now=now)
    assert claimed
    return claimed


def routes_below(resolver: Any) -> Iterator[str]:
    """Every route, of included and namespaced ones too."""
    for pattern in resolver.url_patterns:
        yield f"{pattern.pattern} {pattern.name if isinstance(pattern, URLPattern) else ''}"
        if isinstance(pattern, URLResolver):
            yield from routes_below(pattern)


def cells(page: str, email: str) -> list[str]:
    """The text of the list's cells in a user's row."""
    row = next(row for row in page.split("<tr") if email in row)
    return [re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[dh] class=\"field.*?</t[dh]>", row, re.S)]


def test_the_list_shows_plan_usage_of_today_and_answers_under_way(admin_site: Client, ada: User, bob: User) -> None:
    plan = Plan.objects.create(slug="professional", name="Professional", weight=4)
    Subscription.objects.create(user=ada, plan=plan, starts_at=timezone.now() - timedelta(days=1))
    Subscription.objects.create(user=bob, plan=plan, starts_at=timezone.now() + timedelta(days=1))
    use(ada, tokens=1500)
    use(ada, tokens=20)
    use(ada, tokens=7, ago=timedelta(days=1))
    a_streaming_run(ada)
    page = admin_site.get(USERS).content.decode()
    assert cells(page, "ada@example.org")[2:5] == ["Professional", "1,520", "1"]
    default = Plan.objects.get(is_default=True).name
    assert cells(page, "bob@example.org")[2:5] == [default, "0", "0"]


def test_a_user_page_shows_plan_usage_answers_and_ways_in(admin_site: Client, ada: User) -> None:
    use(ada, tokens=1500)
    use(ada, tokens=7, ago=timedelta(days=2))
    use(ada, tokens=1000, ago=timedelta(days=31))
    run = a_streaming_run(ada)
    now = timezone.now()
    keys.create(user=ada, name="", now=now)
    keys.revoke(api_key=keys.create(user=ada, name="", now=now).api_key, now=now)
    log_in("ada@example.org")
    page = "".join(admin_site.get(f"{USERS}{ada.pk}/change/").content.decode().split())
    assert f"data-plan>{Plan.objects.get(is_default=True).name}<" in page
    assert "data-today>1,500<" in page
    assert "1,507" in page
    assert f"/admin/inference/run/{run.pk}/change/" in page
    assert "data-sessions>1<" in page
    assert "data-keys>1<" in page


def test_a_user_page_shows_limits_of_their_own_what_was_adjusted_and_what_it_cost(
    admin_site: Client, ada: User
) -> None:
    use(ada, tokens=10)
    LimitOverride.objects.create(user=ada, until=timezone.now() - timedelta(days=1))
    page = "".join(admin_site.get(f"{USERS}{ada.pk}/change/").content.decode().split())
    assert "data-limits>theplan’s<" in page
    assert "data-adjusted>0<" in page
    LimitOverride.objects.update(until=None)
    UsageEntry._base_manager.update(cost=2_500_000)
    for tokens, ago in ((-1200, 0), (-5, 31)):
        adjustments.adjust(
            user_id=ada.pk, tokens=tokens, cost=-40_000, reason="An outage", author_id=None, author_email="r",
            now=timezone.now() - timedelta(days=ago),
        )  # fmt: skip
    page = "".join(admin_site.get(f"{USERS}{ada.pk}/change/").content.decode().split())
    assert "data-limits>oftheirown<" in page
    assert "data-adjusted>-1,200<" in page
    assert "-0.04USD" in page
    assert "output,2.50USD" in page


def test_ways_to_subscribe_adjust_and_set_limits_are_shown_to_who_may(ada: User, staff: Callable[..., Client]) -> None:
    address = f"{USERS}{ada.pk}/change/"
    links = [f"/admin/billing/{name}/add/?user={ada.pk}" for name in ("subscription", "adjustment", "limitoverride")]
    page = staff("looks@example.org", "view_user").get(address).content.decode()
    assert [link for link in links if link in page] == []
    page = staff("acts@example.org", "view_user", "add_adjustment").get(address).content.decode()
    assert [link for link in links if link in page] == [links[1]]


def test_every_link_of_a_user_page_leads_somewhere(admin_site: Client, ada: User) -> None:
    a_streaming_run(ada)
    page = admin_site.get(f"{USERS}{ada.pk}/change/").content.decode()
    facts = page[page.index("panel-facts") : page.index("</section>")]
    links = re.findall(r'href="([^"]+)"', facts)
    assert len(links) == 11
    assert [link for link in links if admin_site.get(link).status_code != 200] == []


def test_suspending_from_a_user_page_asks_first_and_names_what_it_stops(admin_site: Client, ada: User) -> None:
    run = a_streaming_run(ada)
    page = admin_site.get(f"{USERS}{ada.pk}/change/").content.decode()
    form = {"action": "suspend", "_selected_action": str(ada.pk)}
    assert "Suspend …" in page
    question = " ".join(admin_site.post(USERS, form).content.decode().split())
    assert "(1 answer under way)" in question
    assert User.objects.get(pk=ada.pk).is_active
    browser = log_in("ada@example.org")
    assert admin_site.post(USERS, form | {"confirmed": "yes"}).status_code == 302
    assert browser.get("/account/").status_code == 302
    assert Run.objects.get(pk=run.pk).cancel_requested_at is not None
    assert "Reinstate …" in admin_site.get(f"{USERS}{ada.pk}/change/").content.decode()


def test_staff_who_may_only_look_cannot_act(staff: Callable[..., Client], ada: User) -> None:
    support = staff("support@example.org", "view_user")
    page = support.get(f"{USERS}{ada.pk}/change/").content.decode()
    assert "panel-facts" in page
    assert "Suspend …" not in page
    for action in ("suspend", "reinstate", "delete_selected"):
        form = {"action": action, "_selected_action": str(ada.pk), "confirmed": "yes", "post": "yes"}
        support.post(USERS, form)
    assert support.post(f"{USERS}{ada.pk}/change/", {"email": "x@example.org"}).status_code == 403
    assert support.post(f"{USERS}{ada.pk}/password/", {"password1": PASSWORD}).status_code == 403
    assert support.get(f"{USERS}add/").status_code == 403
    assert User.objects.filter(pk=ada.pk, is_active=True, email="ada@example.org").exists()


def test_staff_who_may_change_users_suspend_and_reinstate_them(staff: Callable[..., Client], ada: User) -> None:
    operator = staff("operator@example.org", "view_user", "change_user")
    form = {"action": "suspend", "_selected_action": str(ada.pk), "confirmed": "yes"}
    operator.post(USERS, form)
    assert not User.objects.get(pk=ada.pk).is_active
    operator.post(USERS, form | {"action": "reinstate"})
    assert User.objects.get(pk=ada.pk).is_active


def test_who_is_no_superuser_neither_touches_staff_nor_makes_any(
    staff: Callable[..., Client], ada: User, root: User
) -> None:
    operator = staff("operator@example.org", "view_user", "change_user", "delete_user")
    colleague = User.objects.get(pk=accounts.open_account(email="colleague@example.org", password=PASSWORD).pk)
    User.objects.filter(pk=colleague.pk).update(is_staff=True)
    for other in (root, colleague):
        form = {"email": "mine@example.org", "is_active": "on"}
        assert operator.post(f"{USERS}{other.pk}/change/", form).status_code == 403
        password = {"password1": "x" * 20, "password2": "x" * 20, "usable_password": "true"}
        assert operator.post(f"{USERS}{other.pk}/password/", password).status_code == 403
        assert operator.post(f"{USERS}{other.pk}/delete/", {"post": "yes"}).status_code == 403
        chosen: dict[str, Any] = {"_selected_action": [str(other.pk), str(ada.pk)]}
        operator.post(USERS, chosen | {"action": "suspend", "confirmed": "yes"})
        operator.post(USERS, chosen | {"action": "delete_selected", "post": "yes"})
        assert User.objects.get(pk=other.pk).is_active
    powers = {"email": "ada@example.org", "is_active": "on", "is_staff": "on", "is_superuser": "on"}
    operator.post(f"{USERS}{ada.pk}/change/", powers)
    assert not User.objects.filter(pk=ada.pk, is_staff=True).exists()
    assert not User.objects.filter(pk=ada.pk, is_superuser=True).exists()


def test_who_is_no_superuser_sets_nobodys_address_or_password(staff: Callable[..., Client], ada: User) -> None:
    operator = staff("operator@example.org", "view_user", "change_user")
    page = f"{USERS}{ada.pk}/change/"
    assert "../password/" not in operator.get(page).content.decode()
    form = {"email": "mine@example.org", "name": "Ada L.", "is_active": "on"}
    assert operator.post(page, form).status_code == 302
    password = {"password1": "x" * 20, "password2": "x" * 20, "usable_password": "true"}
    assert operator.post(f"{USERS}{ada.pk}/password/", password).status_code == 403
    changed = User.objects.get(pk=ada.pk)
    assert (changed.email, changed.name) == ("ada@example.org", "Ada L.")
    assert changed.check_password(PASSWORD)


def test_deleting_a_user_stops_answers_and_removes_what_names_them(
    admin_site: Client, ada: User, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    run = a_streaming_run(ada)
    with django_capture_on_commit_callbacks(execute=True):
        assert admin_site.post(f"{USERS}{ada.pk}/delete/", {"post": "yes"}).status_code == 302
    row = User.objects.get(pk=ada.pk)
    assert not row.is_active
    assert (row.email, row.name) == (f"deleted-{ada.pk}@invalid", "")
    assert Run.objects.get(pk=run.pk).cancel_requested_at is not None
    page = admin_site.get(f"{USERS}{ada.pk}/change/").content.decode()
    assert "Reinstate …" not in page, "who is gone is not let back in"


def test_the_last_administrator_is_not_deleted_and_the_reason_is_told(admin_site: Client, root: User) -> None:
    question = admin_site.get(f"{USERS}{root.pk}/delete/").content.decode()
    assert "is the last administrator" in question
    admin_site.post(f"{USERS}{root.pk}/delete/", {"post": "yes"})
    assert User.objects.filter(pk=root.pk, is_superuser=True).exists()
    assert closing.is_last_administrator(root)


@pytest.mark.parametrize("power", ["is_superuser", "is_staff"])
def test_the_last_administrator_keeps_their_powers(admin_site: Client, root: User, power: str) -> None:
    powers = {"is_staff": "on", "is_superuser": "on"}
    less = {"email": root.email, **{name: "on" for name in powers if name != power}}
    page = admin_site.post(f"{USERS}{root.pk}/change/", less)
    assert "Nobody else could administer the site." in page.content.decode()
    assert User.objects.filter(pk=root.pk, is_staff=True, is_superuser=True).exists()
    accounts.open_account(email="second@example.org", password=PASSWORD, administrator=True)
    assert admin_site.post(f"{USERS}{root.pk}/change/", less).status_code == 302
    assert not User.objects.filter(pk=root.pk, is_staff=True, is_superuser=True).exists()


def test_no_form_suspends_reinstates_or_brings_back_who_is_gone(admin_site: Client, ada: User, bob: User) -> None:
    active = {"email": "ada@example.org", "name": "Ada L.", "is_active": "on"}
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert admin_site.post(f"{USERS}{ada.pk}/change/", active).status_code == 302
    User.objects.get(pk=ada.pk, is_active=False, name="Ada L.")
    User.objects.filter(pk=ada.pk).update(closing_at=timezone.now())
    assert admin_site.post(f"{USERS}{ada.pk}/change/", active).status_code == 302
    User.objects.get(pk=ada.pk, is_active=False)
    assert admin_site.post(f"{USERS}{bob.pk}/change/", {"email": "bob@example.org"}).status_code == 302
    User.objects.get(pk=bob.pk, is_active=True)


def test_a_form_saves_what_it_changed_and_nothing_that_changed_meanwhile(
    admin_site: Client, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = UserChange.clean

    def suspended_meanwhile(form: UserChange) -> dict[str, Any]:
        User.objects.filter(pk=ada.pk).update(is_active=False)
        return checked(form)

    monkeypatch.setattr(UserChange, "clean", suspended_meanwhile)
    form = {"email": "ada@example.org", "name": "Ada L.", "is_active": "on"}
    assert admin_site.post(f"{USERS}{ada.pk}/change/", form).status_code == 302
    User.objects.get(pk=ada.pk, is_active=False, name="Ada L.")


@pytest.mark.django_db(transaction=True)
def test_an_account_is_closed_after_the_admins_transaction(
    admin_site: Client, ada: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[tuple[User, bool, int]] = []

    def note(*, user: User, now: datetime) -> None:
        recorded = AuditEntry.objects.filter(action="delete", object_id=user.pk).count()
        closed.append((user, connection.in_atomic_block, recorded))

    monkeypatch.setattr(closing, "close", note)
    admin_site.post(f"{USERS}{ada.pk}/delete/", {"post": "yes"})
    admin_site.post(USERS, {"action": "delete_selected", "_selected_action": str(bob.pk), "post": "yes"})
    assert closed == [(ada, False, 1), (bob, False, 1)]


def test_a_password_is_set_and_recorded_or_neither(
    admin_site: Client, ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**_: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(trail, "record", away)
    form = {"password1": "another long one 4711", "password2": "another long one 4711", "usable_password": "true"}
    with pytest.raises(ConnectionError):
        admin_site.post(f"{USERS}{ada.pk}/password/", form)
    assert User.objects.get(pk=ada.pk).check_password(PASSWORD)


def test_there_is_no_way_to_log_in_as_somebody_else(admin_site: Client, ada: User) -> None:
    page = admin_site.get(f"{USERS}{ada.pk}/change/").content.decode()
    routes = " ".join(routes_below(get_resolver()))
    assert "<id>/password/" in routes, "the admin's own are among them"
    assert not re.search("impersonat|hijack|login_as|log in as", page + routes, re.I)
