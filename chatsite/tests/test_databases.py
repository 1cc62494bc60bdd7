"""Database settings from a URL."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from chatsite import databases

STATE = Path("/srv/chatsite")


def test_without_a_url_the_database_is_a_file_of_the_state_directory() -> None:
    configured = databases.configure(url=None, state_dir=STATE)
    assert configured["ENGINE"] == "django.db.backends.sqlite3"
    assert configured["NAME"] == "/srv/chatsite/db.sqlite3"
    assert configured["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


def test_a_sqlite_url_gets_the_same_options() -> None:
    configured = databases.configure(url="sqlite:////data/chat.sqlite3", state_dir=STATE)
    assert configured["NAME"] == "/data/chat.sqlite3"
    assert configured["OPTIONS"] == databases.SQLITE_OPTIONS


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_postgres_is_pooled_and_keeps_no_connection_per_thread(scheme: str) -> None:
    configured = databases.configure(url=f"{scheme}://u:p@db.example:5433/chat?sslmode=require", state_dir=STATE)
    assert configured["ENGINE"] == "django.db.backends.postgresql"
    assert (configured["HOST"], configured["PORT"], configured["NAME"]) == ("db.example", 5433, "chat")
    assert configured["OPTIONS"] == {"sslmode": "require", "pool": databases.POSTGRES_POOL}
    assert configured["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "nonsense-hunter2", "postgres://u:hunter2@h:port/d"])
def test_what_cannot_serve_is_refused_by_name_without_the_password(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL") as refusal:
        databases.configure(url=url, state_dir=STATE)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.django_db
def test_sqlite_connections_use_the_write_ahead_log_and_wait_for_locks() -> None:
    if connection.vendor != "sqlite":
        pytest.skip("speaks of SQLite")
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert cursor.execute("PRAGMA synchronous").fetchone() == (1,)
        assert cursor.execute("PRAGMA busy_timeout").fetchone() == (30_000,)
