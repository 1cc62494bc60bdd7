"""What a user can take away, as one JSON document that is made piece by piece."""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder

from billing import api as billing
from chatsite.accounts import devices
from chatsite.accounts.models import ApiKey, User
from conversations import api as conversations
from inference import api as inference

# Names the shape; a reader may rely on it. Lists and fields may be added.
FORMAT = "chatsite-export/1"
# Rows of one kind that are in memory at a time. Each page is a query of its own, and nothing of the database is held
# between two, however slowly the document is fetched.
PAGE = 200
# Characters that are sent at a time, about.
PIECE = 65_536

Row = dict[str, Any]


def parts(*, user: User, now: datetime) -> Iterator[str]:
    """One JSON document in pieces; of its lists, no more than a page is in memory."""
    piece: list[str] = []
    length = 0
    for text in _document(user, now=now):
        piece.append(text)
        length += len(text)
        if length >= PIECE:
            yield "".join(piece)
            piece.clear()
            length = 0
    yield "".join(piece)


def _document(user: User, *, now: datetime) -> Iterator[str]:
    yield f'{{"format": {_json(FORMAT)}, "exported_at": {_json(now)}, "profile": {_json(_profile(user))}'
    yield f', "currency": {_json(settings.CURRENCY)}, "chats": '
    yield from _array(map(_chat, _rows(partial(conversations.chats_page, owner_id=user.pk))))
    lists = {"runs": partial(inference.runs_page, user_id=user.pk)} | {
        section: partial(billing.takeaway_page, section=section, user_id=user.pk) for section in billing.TAKEAWAY
    }
    for name, page in lists.items():
        yield f", {_json(name)}: "
        yield from _array([_json(row)] for row in _rows(page))
    yield "}\n"


def _chat(chat: Row) -> Iterator[str]:
    yield _json(chat).removesuffix("}") + ', "messages": '
    page = partial(conversations.messages_page, chat_id=chat["id"])
    yield from _array([_json(message)] for message in _rows(page, key="seq"))
    yield "}"


def _array(items: Iterable[Iterable[str]]) -> Iterator[str]:
    """A JSON array of items that come in pieces themselves."""
    opening = "["
    for item in items:
        yield opening
        yield from item
        opening = ", "
    yield "[]" if opening == "[" else "]"


def _rows(page: Callable[..., list[Row]], *, key: str = "id") -> Iterator[Row]:
    """All rows, page by page, each asked for after the `key` of the last one."""
    after = None
    while True:
        rows = page(after=after, limit=PAGE)
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1][key]


def _profile(user: User) -> Row:
    """The account itself, and the few things that one has of each: no secrets, nor what would tell them."""
    keys = ApiKey.objects.filter(user=user).order_by("id")
    addresses = EmailAddress.objects.filter(user=user).order_by("id")
    second_factors = Authenticator.objects.filter(user=user).order_by("id")
    sessions = devices.of_user(user=user, current_key=None)
    return {
        "id": user.pk,
        "email": user.email,
        "name": user.name,
        "joined_at": user.date_joined,
        "last_login_at": user.last_login,
        "api_keys": list(keys.values("name", "prefix", "created_at", "last_used_at", "revoked_at")),
        "email_addresses": list(addresses.values("email", "verified", "primary")),
        "second_factors": list(second_factors.values("type", "created_at", "last_used_at")),
        "sessions": [
            {
                "user_agent": session.user_agent,
                "address": session.address,
                "created_at": session.created_at,
                "last_seen_at": session.last_seen_at,
            }
            for session in sessions
        ],
    }


def _json(value: object) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False)
