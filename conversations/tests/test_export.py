"""The export: everything that is a user's, in bounded memory. Whoever adds a table of users' says here where it is."""

import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import connection, models
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from billing.models import UsageEntry
from chatsite.accounts import export
from chatsite.accounts.models import ApiKey, User
from conversations.models import Chat, Message, Turn
from conversations.tests.lives import EMAIL, MARKER, NAME, furnish, live, say_the_marker
from conversations.tests.support import Caller, Person, in_thread
from tests.services import Valkey

pytestmark = pytest.mark.django_db(transaction=True)

# Where the rows of each table that names users are to be found in the document.
EXPORTED = {
    "account.EmailAddress": ("profile", "email_addresses"),
    "accounts.ApiKey": ("profile", "api_keys"),
    "mfa.Authenticator": ("profile", "second_factors"),
    "usersessions.UserSession": ("profile", "sessions"),
    "billing.Adjustment": ("adjustments",),
    "billing.DailyUsage": ("daily_usage",),
    "billing.LimitOverride": ("limit_overrides",),
    "billing.Subscription": ("plans",),
    "billing.UsageEntry": ("usage",),
    "conversations.Chat": ("chats",),
    "inference.Run": ("runs",),
}
NOT_EXPORTED = {
    "accounts.FirstAdministrator": "says that the site was empty when the account was opened",
    "accounts.Invitation": "the administrators' record of whom they let in",
    "accounts.User_groups": "what staff may do in the admin, which its owner does not decide",
    "accounts.User_user_permissions": "as the groups",
    "admin.LogEntry": "nothing writes to it",
    "audit.AuditEntry": "the site's record of what its staff did",
    "billing.Account": "made anew from the usage that is exported",
    "billing.UsageEvent": "a note that a day's sums are to be made",
}


@pytest.fixture
def ada(site: None, valkey: Valkey, settings: Settings) -> Person:
    """Somebody with rows in every table."""
    person = live(furnish(settings, redis_url=valkey.url), now=datetime.now(UTC))
    say_the_marker(person)
    return person


def exported(user: User) -> Any:
    return json.loads("".join(export.parts(user=user, now=timezone.now())))


def names_users(model: type[models.Model]) -> bool:
    """Whether rows name a user: by a relation, or by an id alone."""
    user_model = get_user_model()
    return any(
        field.related_model is user_model if field.is_relation else field.name in ("user_id", "owner_id", "actor_id")
        for field in model._meta.concrete_fields
    )


def test_every_table_that_names_users_is_exported_or_has_a_reason_not_to_be(ada: Person) -> None:
    tables = {model._meta.label for model in apps.get_models(include_auto_created=True) if names_users(model)}
    assert tables == EXPORTED.keys() | NOT_EXPORTED.keys()
    document = exported(ada.user)
    for label, path in EXPORTED.items():
        found = document
        for name in path:
            found = found[name]
        rows = apps.get_model(label)._base_manager.filter(**{_owner(label): ada.user.pk}).count()
        assert len(found) == rows > 0, label


def _owner(label: str) -> str:
    return "owner_id" if label in ("conversations.Chat", "inference.Run") else "user_id"


def test_chats_come_with_every_message_and_its_state_and_runs_with_what_they_used(ada: Person) -> None:
    document = exported(ada.user)
    for chat in document["chats"]:
        stored = Message.objects.filter(chat_id=chat["id"], hidden=False).order_by("seq")
        assert [(one["role"], one["content"], one["state"]) for one in chat["messages"]] == list(
            stored.values_list("role", "content", "state")
        )
    runs = {run["id"]: run for run in document["runs"]}
    assert sorted(len(chat["messages"]) for chat in document["chats"]) == [1, 1, 2]
    for entry in document["usage"]:
        assert entry["run_id"] in runs
        assert entry["cost"] == UsageEntry.objects.get(id=entry["id"]).cost
    texts = [attempt["text"] for run in runs.values() for attempt in run["attempts"]]
    assert f"A bad {MARKER}" in texts, "what a retry replaced is theirs too"
    assert [run["pool"] for run in runs.values()] == ["default"] * 4
    assert sorted(run["kind"] for run in runs.values()) == ["title", "turn", "turn", "turn"]
    assert [chat["summary"] for chat in document["chats"]] == [MARKER, None, None]
    assert {entry["tokens"] for entry in document["adjustments"]} == {-5}
    assert [plan["plan"] for plan in document["plans"]] == ["of-its-own"]
    assert (document["profile"]["email"], document["profile"]["name"]) == (EMAIL, NAME)


def test_page_by_page_it_is_the_same_document(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = exported(ada.user)
    monkeypatch.setattr(export, "PAGE", 1)
    by_page = exported(ada.user)
    assert by_page | {"exported_at": None} == at_once | {"exported_at": None}
    monkeypatch.setattr(export, "PIECE", 10)
    assert len(list(export.parts(user=ada.user, now=timezone.now()))) > 20


def test_nothing_secret_and_nobody_else_is_in_it(ada: Person) -> None:
    stranger = Person("eve@example.org")
    stranger.new_chat(title="What a stranger thinks")
    text = "".join(export.parts(user=ada.user, now=timezone.now()))
    for secret in (
        *ApiKey.objects.values_list("sha256", flat=True),
        ada.key,
        User.objects.get(pk=ada.user.pk).password,
    ):
        assert secret not in text
    # Nothing so short that a random identifier could spell it.
    for other in ("a stranger thinks", "eve@example.org", "root@example.org"):
        assert other not in text
    empty = exported(stranger.user)
    assert (empty["runs"], empty["usage"], [chat["messages"] for chat in empty["chats"]]) == ([], [], [[]])


async def test_it_comes_as_one_file_through_the_site(streams: Any, transactional_db: None, ada: Person) -> None:
    browser = Client()
    await in_thread(browser.force_login, ada.user)
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in browser.cookies.items())
    caller = Caller(streams, person=None)
    exchange = await caller.call("GET", "/account/export/", headers={"cookie": cookie})
    assert exchange.status == 200
    assert exchange.headers["content-disposition"].startswith("attachment")
    assert len(exchange.json()["chats"]) == 3
    await caller.close()


def fill(chat_id: UUID, *, count: int, size: int) -> None:
    """Messages, each of a turn of its own."""
    now = timezone.now()
    turns = Turn.objects.bulk_create(
        Turn(chat_id=chat_id, client_turn_id=str(number), fingerprint="", run_id=UUID(int=number + 1), created_at=now)
        for number in range(count)
    )
    Message.objects.bulk_create(
        Message(
            chat_id=chat_id,
            turn=turn,
            seq=number,
            role="user",
            content=f"{number} ".ljust(size, "x"),
            run_id=turn.run_id,
            created_at=now,
        )
        for number, turn in enumerate(turns, start=1)
    )


def test_ten_thousand_messages_take_little_memory_and_few_queries(site: None) -> None:
    person = Person("ada@example.org")
    chat = UUID(person.new_chat())
    fill(chat, count=10_000, size=2_000)
    length = 0
    with CaptureQueriesContext(connection) as queries:
        tracemalloc.start()
        try:
            for part in export.parts(user=person.user, now=timezone.now()):
                length += len(part)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert length > 20_000_000
    assert peak < length / 5
    assert len(queries) < 10_000 / export.PAGE + 20
    assert Chat.objects.count() == 1
