"""Database settings from a URL."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from psycopg.conninfo import make_conninfo

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
    assert (configured["OPTIONS"]["sslmode"], configured["OPTIONS"]["pool"]) == ("require", databases.POSTGRES_POOL)
    assert configured["CONN_MAX_AGE"] == 0


def test_a_postgres_that_falls_silent_is_given_up_unless_the_url_says_otherwise() -> None:
    configured = databases.configure(url="postgres://u:p@db.example/chat?keepalives_idle=60", state_dir=STATE)
    options = {name: value for name, value in configured["OPTIONS"].items() if name != "pool"}
    assert options == databases.POSTGRES_SOCKET | {"keepalives_idle": 60}
    # Raises for a name that the driver does not know.
    assert "tcp_user_timeout=15000" in make_conninfo("", **options)


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
