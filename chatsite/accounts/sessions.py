"""Browser sessions: Django's in the database, under keys that look like keys only."""

import re

from django.contrib.sessions.backends.db import SessionStore as DatabaseSessionStore

_KEY = re.compile(r"[a-z0-9]{32}", re.ASCII)


class SessionStore(DatabaseSessionStore):
    """A quoted cookie can smuggle a NUL (`"…\\000…"`), which Postgres refuses with an error, hence a 500."""

    def _validate_session_key(self, key: str | None) -> bool:
        return key is not None and _KEY.fullmatch(key) is not None
