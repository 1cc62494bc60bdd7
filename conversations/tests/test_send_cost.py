"""What a turn costs the database: pinned, because every query of a send delays its first token."""

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext

from conversations import banner
from conversations.models import Chat, Message, Turn
from conversations.tests.support import Person, Room, settle_by_hand
from inference import policies

pytestmark = pytest.mark.django_db(transaction=True)

READS = [
    # Who asks.
    "accounts_apikey",
    # The chat, a turn of this name, the user's plan and own limits, the pool, a run in the way, the history.
    "conversations_chat", "conversations_turn", "billing_subscription", "billing_plan", "billing_limitoverride",
    "inference_modelpool", "inference_run", "conversations_message",
    # The account's and the chat's locks.
    "billing_account", "conversations_chat",
]  # fmt: skip
WRITES = ["conversations_turn", "inference_run", "inference_prompt", "conversations_chat", "conversations_message"]
_TABLE = re.compile(r'(?:FROM|INTO|UPDATE) "(\w+)"')


def tables(statements: list[str], *verbs: str) -> list[str]:
    chosen = [sql for sql in statements if sql.split()[0] in verbs]
    return [found.group(1) for sql in chosen if (found := _TABLE.search(sql))]


def statements_of(person: Person, chat: str, *, turn: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        person.sent(chat, turn=turn)
    return [query["sql"] for query in captured.captured_queries]


@pytest.fixture
def chat(ada: Person, monkeypatch: pytest.MonkeyPatch) -> str:
    """One whose owner has sent before: a first send opens the account, a key's use is noted once a minute, the banner
    is read once a second and the pool's policy every two."""
    monkeypatch.setattr(banner, "FRESH_S", 3600.0)
    monkeypatch.setattr(policies, "KEPT_S", 3600.0)
    chat = ada.new_chat()
    settle_by_hand(ada.sent(chat, turn="warm up")["run"]["id"])
    return chat


def test_a_send_makes_these_queries_and_no_others(ada: Person, chat: str) -> None:
    statements = statements_of(ada, chat, turn="t1")
    assert Counter(tables(statements, "SELECT")) == Counter(READS)
    assert Counter(tables(statements, "INSERT", "UPDATE", "DELETE")) == Counter(WRITES)
    assert sum(sql.startswith("BEGIN") for sql in statements) == 1


def test_a_repeat_only_reads(ada: Person, chat: str) -> None:
    ada.sent(chat)
    with CaptureQueriesContext(connection) as captured:
        assert ada.send(chat).status_code == 200
    statements = [query["sql"] for query in captured.captured_queries]
    assert tables(statements, "INSERT", "UPDATE", "DELETE") == []
    # The key, the chat, the turn, its run, its message.
    assert len(statements) == 5


def lengthen(chat: str, *, turns: int) -> None:
    row = Chat.objects.get(id=chat)
    for number in range(turns):
        turn = Turn.objects.create(
            chat=row, client_turn_id=f"old {number}", fingerprint="f", run_id=_uuid(number), created_at=row.created_at
        )
        for role in ("user", "assistant"):
            row.last_seq += 1
            Message.objects.create(
                chat=row, turn=turn, seq=row.last_seq, role=role, content="word " * 20, token_count=200,
                run_id=turn.run_id, created_at=row.created_at,
            )  # fmt: skip
    row.save()


def _uuid(number: int) -> Any:
    return f"{number + 1:032x}"


def test_a_send_into_a_long_chat_makes_no_more_queries_and_reads_no_more_than_the_window(
    ada: Person, chat: str
) -> None:
    lengthen(chat, turns=150)
    statements = statements_of(ada, chat, turn="t1")
    # What was remembered of the chat is not its last prompt: that takes a look, too.
    assert Counter(tables(statements, "SELECT")) == Counter([*READS, "conversations_message"])
    [since, history] = [sql for sql in statements if 'FROM "conversations_message"' in sql]
    assert "LIMIT 2" in since
    assert "LIMIT 40" in history


@contextmanager
def counted_writes() -> Iterator[Counter[str]]:
    """Writes of every thread of this process, by table."""
    counts: Counter[str] = Counter()
    lock = threading.Lock()
    real = CursorWrapper._execute  # type: ignore[attr-defined]

    def execute(self: Any, sql: Any, *args: Any) -> Any:
        if isinstance(sql, str) and sql.split()[0] in ("INSERT", "UPDATE", "DELETE"):
            with lock:
                counts.update(_TABLE.findall(sql))
        return real(self, sql, *args)

    CursorWrapper._execute = execute  # type: ignore[attr-defined]
    try:
        yield counts
    finally:
        CursorWrapper._execute = real  # type: ignore[attr-defined]


def writes_of_a_turn(person: Person, room: Room, chat: str, *, tokens: int) -> Counter[str]:
    with counted_writes() as counts:
        run = person.sent(chat, f"Hi [[tps=20000 prefill_ms=0 tokens={tokens}]]", turn=f"{tokens} tokens")["run"]["id"]
        room.serve()
    assert person.get(f"/api/v1/runs/{run}").json()["usage"]["output"] == tokens
    return counts


def test_the_writes_of_a_turn_are_few_and_independent_of_its_tokens(ada: Person, chat: str, room: Room) -> None:
    short = writes_of_a_turn(ada, room, chat, tokens=2)
    long = writes_of_a_turn(ada, room, chat, tokens=900)
    assert short == long
    assert sum(short.values()) <= 15
