"""Fills a database with many rows of everything that the admin lists, by a few INSERT … SELECT statements.

Times are spread evenly over the last 30 days and ids follow them, as UUIDv7 do. One user owns a tenth of all runs;
chats have ten turns; 2 % of runs failed, 1 % were interrupted, 5 % stopped; one in nine is the system's own; one of
three pools answered long ago only.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django.db import connection
from django.db.models import NOT_PROVIDED, DateTimeField, Model

from billing.models import Account, Adjustment, LimitOverride, Plan, Subscription, UsageEntry
from chatsite.accounts.models import ApiKey, User
from chatsite.audit.models import AuditEntry
from conversations.models import Chat, Message, Summary, Turn
from inference.models import Attempt, ModelPool, Run

SPAN = timedelta(days=30)
TURNS_OF_A_CHAT = 10
# Newest runs of which every tenth is still active: one in each of their chats.
RECENT = 600
# What only the oldest runs were answered by.
OLD_RUNS = 500
# First number of rows that Postgres would number itself: far from where it begins to.
NUMBERED_FROM = 1_000_000_000


class Filler:
    """Writes `rows` rows into each table, ending `now`."""

    def __init__(self, *, rows: int, now: datetime) -> None:
        self.rows = rows
        self.now = now.astimezone(UTC)
        self.begin_ms = int((now - SPAN).timestamp() * 1000)
        self.step_ms = max(1, int(SPAN.total_seconds() * 1000) // rows)
        self.is_postgres = connection.vendor == "postgresql"

    def fill(self) -> None:
        """Fill all tables. The database must be migrated and hold no users."""
        with connection.cursor() as cursor:
            for model, columns in self._tables():
                self._insert(cursor, model, columns)

    def fill_fast(self) -> None:
        """The same for very many rows, outside of a transaction; leaves the database as one in use would be."""
        # References are right by construction; to check each would take most of the time.
        before, after = (
            (("SET session_replication_role = replica",), ("SET session_replication_role = DEFAULT", "VACUUM ANALYZE"))
            if self.is_postgres
            else (("PRAGMA foreign_keys = OFF", "PRAGMA synchronous = OFF"), ("PRAGMA wal_checkpoint(TRUNCATE)",))
        )
        with connection.cursor() as cursor:
            for statement in before:
                cursor.execute(statement)
            self.fill()
            # What Postgres is told here, autovacuum does some time after so many inserts. SQLite stays as it is.
            for statement in after:
                cursor.execute(statement)

    def uuid(self, kind: int, number: int) -> UUID:
        """The id of one row: what `_id` is in SQL."""
        ms = self.begin_ms + number * self.step_ms
        return UUID(f"{ms:012x}7{kind:03x}8{number:015x}")

    @staticmethod
    def email(number: int) -> str:
        return f"person{number}@example.org"

    def owner(self, chat: int) -> int:
        """The number of a chat's owner: what `_owner` is in SQL."""
        return 0 if chat % 100 == 0 else 1 + chat // 10 % max(1, self.rows // 20)

    def _tables(self) -> list[tuple[type[Model], Mapping[str, str]]]:
        default = ModelPool.objects.get(is_default=True)
        small, _ = ModelPool.objects.get_or_create(slug="small", defaults={"name": "Small"})
        old, _ = ModelPool.objects.get_or_create(slug="old", defaults={"name": "Old", "is_open": False})
        pro, _ = Plan.objects.get_or_create(slug="pro", defaults={"name": "Pro", "weight": 4})
        pool = self._case(
            {f"n < {OLD_RUNS}": self._uuid(old.pk), "n % 20 = 4": self._uuid(small.pk)}, self._uuid(default.pk)
        )
        slug = self._case({f"n < {OLD_RUNS}": "'old'", "n % 20 = 4": "'small'"}, "'default'")
        chat = f"(n / {TURNS_OF_A_CHAT}) * {TURNS_OF_A_CHAT}"
        ended = {"n % 50 = 1": "'failed'", "n % 100 = 2": "'interrupted'", "n % 20 = 3": "'cancelled'"}
        active = f"n >= {self.rows - RECENT} AND n % {TURNS_OF_A_CHAT} = 0"
        # What nobody is charged for.
        purpose = {"n % 100 = 6": "'summary'", "n % 10 = 8": "'title'"}
        status = self._case({f"{active} AND n % 30 = 0": "'queued'", active: "'streaming'"} | ended, "'done'")
        run = {"id": self._id(1, "n"), "created_at": self._at(), "owner_id": self._owner(chat)}
        tokens = {"prompt_tokens": "100 + n % 1000", "cached_tokens": "n % 100", "output_tokens": "n % 300"}
        return [
            (
                User,
                {
                    "id": self._id(0, "n"),
                    "email": "'person' || n || '@example.org'",
                    "name": "'Person ' || n",
                    "password": "'!'",
                    "is_active": self._boolean("n % 1000 <> 5"),
                    "date_joined": self._at(),
                },
            ),
            (
                Subscription,
                {
                    "id": self._id(6, "n"),
                    "user_id": self._id(0, "n"),
                    "plan_id": self._uuid(pro.pk),
                    "starts_at": self._at(),
                },
            ),
            (Account, {"user_id": self._id(0, "n")}),
            (LimitOverride, {"user_id": self._id(0, "n"), "concurrent_runs": "1 + n % 50"}),
            (
                EmailAddress,
                {
                    "id": f"{NUMBERED_FROM} + n",
                    "user_id": self._id(0, "n"),
                    "email": "'person' || n || '@example.org'",
                    "primary": self._boolean("n >= 0"),
                    "verified": self._boolean("n % 10 <> 5"),
                },
            ),
            (
                UserSession,
                {
                    "id": f"{NUMBERED_FROM} + n",
                    "user_id": self._id(0, "n"),
                    "ip": "'192.0.2.1'::inet" if self.is_postgres else "'192.0.2.1'",
                    "session_key": "'session' || n",
                    "user_agent": "'Firefox/140.0'",
                    "created_at": self._at(),
                    "last_seen_at": self._at(),
                },
            ),
            (
                ApiKey,
                {
                    "id": self._id(10, "n"),
                    "user_id": self._id(0, "n"),
                    "prefix": "'sk-' || n",
                    "sha256": "'hash' || n",
                    "created_at": self._at(),
                },
            ),
            (
                Chat,
                {
                    "id": self._id(2, "n"),
                    "owner_id": self._owner("n"),
                    "title": "'About the ' || ((n * CAST(7919 AS bigint)) % 100003) || ' lighthouses'",
                    "pool": slug,
                    "created_at": self._at(),
                    "last_active_at": self._at(),
                },
            ),
            (
                Turn,
                {
                    "id": self._id(3, "n"),
                    "chat_id": self._id(2, chat),
                    "client_turn_id": "'turn-' || n",
                    "fingerprint": "'-'",
                    "run_id": self._id(1, "n"),
                    "created_at": self._at(),
                },
            ),
            (
                Message,
                {
                    "id": self._id(4, "n"),
                    "chat_id": self._id(2, chat),
                    "turn_id": self._id(3, "n"),
                    "seq": f"2 * (n % {TURNS_OF_A_CHAT}) + 1",
                    "role": "'user'",
                    "content": "'Tell me about the lighthouse keeper number ' || n || ', and take your time over it.'",
                    "token_count": "20",
                    "run_id": self._id(1, "n"),
                    "created_at": self._at(),
                },
            ),
            (
                Summary,
                {
                    "id": self._id(12, "n"),
                    "chat_id": self._id(2, "n"),
                    "version": "1",
                    "first_seq": "1",
                    "last_seq": "4",
                    "content": "'They talked about the lighthouse keeper number ' || n || '.'",
                    "model": "'SmolLM2-135M-Instruct'",
                    "run_id": self._id(13, "n"),
                    "created_at": self._at(),
                },
            ),
            (
                Run,
                run
                | tokens
                | {
                    "chat_id": self._id(2, chat),
                    "turn": "'turn-' || n",
                    "pool_id": pool,
                    "model": "'SmolLM2-135M-Instruct'",
                    "kind": self._case(purpose, "'turn'"),
                    "status": status,
                    "admission_id": self._id(7, "n"),
                    "reserved_tokens": "1500",
                    "max_output_tokens": "1024",
                    "error_code": self._case({"n % 50 = 1": "'engine_error'", "n % 100 = 2": "'worker_lost'"}, "''"),
                    "claimed_at": self._at(),
                    "finished_at": self._case({active: "NULL"}, self._at()),
                },
            ),
            (
                Attempt,
                {
                    "id": self._id(5, "n"),
                    "run_id": self._id(1, "n"),
                    "epoch": "1",
                    "worker": "'worker-' || (n % 7)",
                    "outcome": self._case({active: "'running'", "n % 1000 = 7": "'lost'"} | ended, "'done'"),
                    "started_at": self._at(),
                    "ended_at": self._case({active: "NULL"}, self._at()),
                },
            ),
            (
                UsageEntry,
                tokens
                | {
                    "id": self._id(8, "n"),
                    "user_id": self._case(dict.fromkeys(purpose, "NULL"), self._owner(chat)),
                    "run_id": self._id(1, "n"),
                    "purpose": self._case(purpose, "'turn'"),
                    "epoch": "1",
                    "admission_id": self._id(7, "n"),
                    "pool": slug,
                    "reason": self._case({"n % 1000 = 7": "'lost'"} | ended, "'completed'"),
                    "wasted_tokens": self._case({"n % 1000 = 7": "200"}, "0"),
                    "output_price": "1500000",
                    "cost": "(n % 300) * 3 / 2",
                    "created_at": self._at(),
                },
            ),
            (
                Adjustment,
                {
                    "id": self._id(11, "n"),
                    "user_id": self._owner(chat),
                    "tokens": "-1 - n % 1000",
                    "reason": "'An outage'",
                    "author_email": "'person1@example.org'",
                    "created_at": self._at(),
                },
            ),
            (
                AuditEntry,
                {
                    "id": self._id(9, "n"),
                    "at": self._at(),
                    "actor_id": self._id(0, "n % 10"),
                    "actor_email": "'person' || (n % 10) || '@example.org'",
                    "action": self._case({"n % 1000 = 3": "'suspend'", "n % 10 = 4": "'cancel'"}, "'view'"),
                    "object_type": "'conversations.message'",
                    "object_id": self._text(self._id(4, "n")),
                },
            ),
        ]

    def _insert(self, cursor: Any, model: type[Model], given: Mapping[str, str]) -> None:
        """One statement; columns that are not given get their field's default, as saving would."""
        names, expressions, parameters = [], [], []
        for field in model._meta.concrete_fields:
            assert field.column is not None
            names.append(connection.ops.quote_name(field.column))
            if field.attname in given:
                # Django's drivers take % for a placeholder.
                expressions.append(given[field.attname].replace("%", "%%"))
            elif field.default is NOT_PROVIDED and field.null:
                expressions.append("NULL")
            elif field.default is NOT_PROVIDED and isinstance(field, DateTimeField):
                expressions.append(self._at().replace("%", "%%"))
            else:
                expressions.append("%s")
                parameters.append(field.get_db_prep_save(field.get_default(), connection))
        last = self.rows - 1
        counting = f"WITH RECURSIVE g(n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM g WHERE n < {last}) SELECT n FROM g"
        numbers = f"generate_series(0, {last}) AS g(n)" if self.is_postgres else f"({counting})"
        table = connection.ops.quote_name(model._meta.db_table)
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(expressions)} FROM {numbers}", parameters
        )

    def _ms(self, number: str) -> str:
        return f"({self.begin_ms} + ({number}) * CAST({self.step_ms} AS bigint))"

    def _id(self, kind: int, number: str) -> str:
        if self.is_postgres:
            parts = (
                f"lpad(to_hex({self._ms(number)}), 12, '0')",
                f"'7{kind:03x}8'",
                f"lpad(to_hex({number}), 15, '0')",
            )
            return f"({' || '.join(parts)})::uuid"
        return f"printf('%012x7{kind:03x}8%015x', {self._ms(number)}, {number})"

    def _owner(self, chat: str) -> str:
        """A hundredth of all chats are the first user's, and a tenth of those that have turns."""
        return self._id(
            0, f"CASE WHEN ({chat}) % 100 = 0 THEN 0 ELSE 1 + (({chat}) / 10) % {max(1, self.rows // 20)} END"
        )

    def _at(self) -> str:
        if self.is_postgres:
            return f"to_timestamp({self._ms('n')} / 1000.0)"
        return f"strftime('%Y-%m-%d %H:%M:%f', {self._ms('n')} / 1000.0, 'unixepoch')"

    def _uuid(self, value: UUID) -> str:
        return f"'{value}'::uuid" if self.is_postgres else f"'{value.hex}'"

    def _text(self, identifier: str) -> str:
        """An id as Python writes it, with hyphens."""
        if self.is_postgres:
            return f"({identifier})::text"
        cuts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        return " || '-' || ".join(f"substr({identifier}, {start}, {length})" for start, length in cuts)

    def _boolean(self, condition: str) -> str:
        return f"({condition})"

    @staticmethod
    def _case(branches: Mapping[str, str], otherwise: str) -> str:
        return f"CASE {' '.join(f'WHEN {when} THEN {then}' for when, then in branches.items())} ELSE {otherwise} END"
