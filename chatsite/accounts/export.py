"""What a user can take away: profile, chats, messages and usage, as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder

from billing import api as billing
from chatsite.accounts.models import ApiKey, User
from conversations import api as conversations

# Names the shape; a reader may rely on it.
FORMAT = "chatsite-export/1"


def parts(*, user: User, now: datetime) -> Iterator[str]:
    """One JSON document in pieces, so that only one chat at a time is in memory twice."""
    yield f'{{"format": {_json(FORMAT)}, "exported_at": {_json(now)}, "profile": {_json(_profile(user))}, "chats": ['
    for index, chat in enumerate(conversations.content_of(owner_id=user.pk)):
        yield (", " if index else "") + _json(asdict(chat))
    usage = [
        {name: value for name, value in asdict(charge).items() if name != "user_id"}
        for charge in billing.charges_of(user_id=user.pk)
    ]
    yield f'], "usage": {_json(usage)}}}\n'


def _profile(user: User) -> dict[str, Any]:
    keys = ApiKey.objects.filter(user=user).order_by("id")
    return {
        "id": user.pk,
        "email": user.email,
        "name": user.name,
        "joined_at": user.date_joined,
        "last_login_at": user.last_login,
        "api_keys": list(keys.values("name", "prefix", "created_at", "last_used_at", "revoked_at")),
    }


def _json(value: object) -> str:
    return json.dumps(value, cls=DjangoJSONEncoder, ensure_ascii=False)
