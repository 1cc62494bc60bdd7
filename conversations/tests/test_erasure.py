"""Deleting a chat, and deleting an account: what is left of either, in every table and every Redis key there is.

Whoever adds a table says here what becomes of its rows.
"""

import base64
import contextlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
import redis
from django.apps import apps
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from pytest_django import Settings

from chatsite.accounts.models import User
from conversations.tests.lives import EMAIL, MARKER, MARKER_IDS, NAME, PASSWORD, furnish, live, say_the_marker
from conversations.tests.support import settle_by_hand
from inference import store, token_ids
from inference.models import Run
from tests.services import Valkey

pytestmark = pytest.mark.django_db(transaction=True)


class Fate(Enum):
    """What becomes of a table's rows."""

    GONE = "there are no more than before"
    STAYS = "they stay, and name nobody"
    OTHERS = "they are not this user's, and none are made or deleted"
    NEVER = "nothing writes to it"


GONE, STAYS, OTHERS, NEVER = Fate.GONE, Fate.STAYS, Fate.OTHERS, Fate.NEVER

# Of each table, when a chat is deleted and when its owner is: STAYS of an account's rows means while there is one.
FATES: dict[str, tuple[Fate, Fate]] = {
    "accounts.ApiKey": (STAYS, GONE),
    "accounts.FirstAdministrator": (STAYS, STAYS),
    "accounts.Invitation": (STAYS, STAYS),
    "accounts.Registration": (OTHERS, OTHERS),
    "accounts.User": (STAYS, GONE),
    "accounts.User_groups": (STAYS, GONE),
    "accounts.User_user_permissions": (STAYS, GONE),
    "account.EmailAddress": (STAYS, GONE),
    # Links in mails are signed instead of stored.
    "account.EmailConfirmation": (NEVER, NEVER),
    # The trail outlives what it speaks of: it names members of staff and, of all else, ids.
    "audit.AuditEntry": (STAYS, STAYS),
    "auth.Group": (OTHERS, OTHERS),
    "auth.Group_permissions": (OTHERS, OTHERS),
    "auth.Permission": (OTHERS, OTHERS),
    "billing.Account": (STAYS, GONE),
    "billing.Adjustment": (STAYS, STAYS),
    "billing.DailyUsage": (STAYS, STAYS),
    "billing.LimitOverride": (STAYS, GONE),
    "billing.Plan": (OTHERS, OTHERS),
    "billing.Subscription": (STAYS, GONE),
    "billing.UsageEntry": (STAYS, STAYS),
    # The days' sums are made before their user goes.
    "billing.UsageEvent": (STAYS, GONE),
    "contenttypes.ContentType": (OTHERS, OTHERS),
    "conversations.Chat": (GONE, GONE),
    "conversations.Job": (GONE, GONE),
    "conversations.Message": (GONE, GONE),
    "conversations.SiteBanner": (OTHERS, OTHERS),
    "conversations.Summary": (GONE, GONE),
    "conversations.Turn": (GONE, GONE),
    # Numbers that say what a turn is about.
    "conversations.TurnVectors": (GONE, GONE),
    "inference.Attempt": (GONE, GONE),
    "inference.ModelPool": (OTHERS, OTHERS),
    "inference.ModelPool_plans": (OTHERS, OTHERS),
    "inference.PoolWeight": (OTHERS, OTHERS),
    "inference.Prompt": (GONE, GONE),
    "inference.Run": (GONE, GONE),
    "mfa.Authenticator": (STAYS, GONE),
    "sessions.Session": (STAYS, GONE),
    "usersessions.UserSession": (STAYS, GONE),
    # The site's own trail is used instead.
    "admin.LogEntry": (NEVER, NEVER),
}
# Where what people write may be found while the chat is there.
CONTENT = {
    "conversations_chat",
    "conversations_message",
    "conversations_summary",
    "inference_attempt",
    "inference_prompt",
    "inference_run",
}


def rows() -> Counter[str]:
    """How many rows each model has."""
    models = apps.get_models(include_auto_created=True)
    return Counter({model._meta.label: model._base_manager.count() for model in models})


def _texts(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes | memoryview):
        yield bytes(value)
        with contextlib.suppress(zlib.error):
            yield zlib.decompress(bytes(value))
    elif value is not None:
        yield str(value).encode()


def tables_with(*needles: bytes) -> set[str]:
    """The tables in any column of which one of these can be found; also those that no model describes."""
    found = set()
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            for row in cursor:
                if any(needle in text for value in row for text in _texts(value) for needle in needles):
                    found.add(table)
    for session in Session.objects.all():
        if any(needle in repr(session.get_decoded()).encode() for needle in needles):
            found.add("django_session")
    return found


def redis_keys_with(valkey: Valkey, *needles: bytes) -> set[bytes]:
    """The keys that hold one of these, or whose names do; a value of any kind is read as a whole."""
    found = set()
    with redis.Redis(port=valkey.port) as client:
        every: Any = client.keys("*")
        for key in every:
            kind: Any = client.type(key)
            value: Any = {
                b"string": client.get,
                b"hash": client.hgetall,
                b"stream": client.xrange,
                b"set": client.smembers,
                b"zset": lambda key: client.zrange(key, 0, -1),
                b"list": lambda key: client.lrange(key, 0, -1),
            }[kind](key)
            text = key + b" " + _flat(value) + _inflated(key, value)
            if any(needle in text for needle in needles):
                found.add(key)
    return found


def _inflated(key: bytes, value: Any) -> bytes:
    """The token ids of a remembered prompt; of a deleted chat there is only that it is gone."""
    ids = json.loads(value).get("ids") if b":context:" in key else None
    return b"" if ids is None else zlib.decompress(base64.b85decode(ids))


def _flat(value: Any) -> bytes:
    if isinstance(value, dict):
        return _flat(list(value.items()))
    if isinstance(value, list | tuple | set):
        return b" ".join(map(_flat, value))
    return value if isinstance(value, bytes) else str(value).encode()


CONTENT_NEEDLES = (MARKER.encode(), token_ids.pack(MARKER_IDS), ",".join(map(str, MARKER_IDS)).encode())


@pytest.fixture
def furnished(site: None, valkey: Valkey, settings: Settings) -> User:
    return furnish(settings, redis_url=valkey.url)


def check_fates(before: Counter[str], lived: Counter[str], after: Counter[str], *, of: int) -> None:
    """Raise AssertionError for each table whose rows met another fate than the one that is declared."""
    assert set(after) == set(FATES), "every table's fate is declared"
    for label, fates in FATES.items():
        match fates[of]:
            case Fate.GONE:
                assert lived[label] > before[label], f"{label} held nothing that could go"
                assert after[label] == before[label], f"{label} must be gone"
            case Fate.STAYS:
                assert lived[label] > before[label], f"{label} held nothing that could stay"
                assert after[label] >= lived[label], f"{label} must stay"
            case Fate.OTHERS:
                assert before[label] > 0, f"{label} held nothing"
                assert after[label] == lived[label], f"{label} is others'"
            case Fate.NEVER:
                assert after[label] == 0, f"{label} is written to: declare its fate"


def test_a_deleted_chat_leaves_what_is_owed_and_not_a_word(furnished: User, valkey: Valkey) -> None:
    now = datetime.now(UTC)
    before = rows()
    ada = live(furnished, now=now)
    chats = say_the_marker(ada)
    lived = rows()
    assert tables_with(*CONTENT_NEEDLES) == CONTENT
    assert tables_with(CONTENT_NEEDLES[1]) == {"conversations_message", "inference_prompt", "inference_run"}, (
        "answer and prompt, as token ids"
    )
    in_redis = redis_keys_with(valkey, *CONTENT_NEEDLES)
    prefix = store.connector().cell().keys.prefix.encode()
    remembered = {key for key in in_redis if b":context:" in key}
    assert len(remembered) == 3, "the last prompt of each chat"
    assert {key.removeprefix(prefix).split(b":")[0] for key in in_redis - remembered} == {b"stream"}
    assert len(in_redis - remembered) == 3 - 1, "the retried one's stream is a fresh one"

    for chat in chats:
        assert ada.delete(f"/api/v1/chats/{chat}").status_code == 204
        assert ada.get(f"/api/v1/chats/{chat}").status_code == 404
    for running in Run.objects.filter(status__in=Run.ACTIVE):
        settle_by_hand(running.id, status="cancelled", text=MARKER)
    check_fates(before, lived, rows(), of=0)
    assert tables_with(*CONTENT_NEEDLES) == set()
    assert redis_keys_with(valkey, *CONTENT_NEEDLES) == set()


def test_a_deleted_account_leaves_sums_without_a_name(furnished: User, valkey: Valkey) -> None:
    now = datetime.now(UTC)
    before = rows()
    ada = live(furnished, now=now)
    say_the_marker(ada)
    lived = rows()
    named = (EMAIL.encode(), NAME.encode())
    assert tables_with(*named) >= {"accounts_user", "account_emailaddress", "accounts_invitation", "django_session"}

    assert redis_keys_with(valkey, b"chatsite:cache:"), "attempts and requests were counted"
    browser = Client()
    browser.force_login(ada.user)
    assert browser.post("/account/delete/", {"password": PASSWORD}).status_code == 302
    assert tables_with(*named) == set(), "nothing names the owner from the first moment on"
    assert redis_keys_with(valkey, *named) == set()
    for running in Run.objects.filter(status__in=Run.ACTIVE):
        settle_by_hand(running.id, status="cancelled", text=MARKER)

    check_fates(before, lived, rows(), of=1)
    assert tables_with(*named, *CONTENT_NEEDLES) == set()
    assert redis_keys_with(valkey, *named, *CONTENT_NEEDLES) == set()
    # What the trail has is the id alone; the user's own rows no more.
    by_id = (str(ada.user.pk).encode(), ada.user.pk.hex.encode())
    assert tables_with(*by_id) == {"audit_auditentry"}
    # Counts of requests expire within minutes.
    left = {key for key in redis_keys_with(valkey, *by_id) if not key.startswith(b"chatsite:cache")}
    assert left == set()
