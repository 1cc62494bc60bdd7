"""The site's banner and maintenance: who is told, what is refused, and what it costs to know."""

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from conversations import banner
from conversations.errors import InvalidRequest, Maintenance
from conversations.models import Chat, Message, SiteBanner, Turn
from conversations.tests.support import (
    Caller,
    Json,
    Person,
    claim_by_hand,
    in_thread,
    lose_redis,
    queued,
    reservations,
    settle_by_hand,
)
from inference.models import Run
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = "Back at noon: the model is being replaced."
# Between a change in one process and its effect in every other.
EFFECT_S = 2.0


def maintain(text: str = TEXT, *, minutes: float | None = None) -> None:
    now = timezone.now()
    until = None if minutes is None else now + timedelta(minutes=minutes)
    banner.begin_maintenance(text=text, until=until, now=now)


def say(text: str, *, severity: str = "info") -> None:
    banner.change(text=text, severity=severity, maintenance=False, until=None, now=timezone.now())


def over() -> None:
    banner.end_maintenance(text=None, now=timezone.now())


def assert_refused(response: Any, *, text: str = TEXT) -> Json:
    assert response.status_code == 503, response.content
    problem: Json = response.json()
    assert (problem["code"], problem["detail"]) == ("maintenance", text)
    assert response.headers["Retry-After"] == str(problem["retry_after"])
    return problem


def everything() -> str:
    return repr([list(model.objects.order_by("pk").values()) for model in (Chat, Turn, Message, Run)])


def test_a_send_is_refused_with_the_banners_text_and_nothing_is_kept(ada: Person) -> None:
    chat = ada.new_chat()
    before = everything()
    maintain()
    problem = assert_refused(ada.send(chat))
    assert problem["until"] is None
    assert problem["retry_after"] == banner.PAUSE_S
    assert everything() == before
    assert (queued(), reservations(ada.user.id)) == ([], {})
    over()
    assert ada.send(chat).status_code == 202


async def test_a_send_that_asks_for_a_stream_is_refused_alike(ada: Person, caller: Caller) -> None:
    chat = await in_thread(ada.new_chat)
    await in_thread(maintain)
    exchange = caller.stream(chat)
    await exchange.finished()
    assert (exchange.status, exchange.headers["content-type"]) == (503, "application/problem+json")
    assert exchange.json()["detail"] == TEXT


def test_a_refused_client_is_told_to_wait_for_the_expected_end(ada: Person) -> None:
    chat = ada.new_chat()
    maintain(minutes=20)
    problem = assert_refused(ada.send(chat))
    assert 19 * 60 < problem["retry_after"] <= 20 * 60
    assert datetime.fromisoformat(problem["until"]) == SiteBanner.objects.get().until


def test_a_maintenance_that_lasts_longer_than_expected_still_refuses(ada: Person) -> None:
    chat = ada.new_chat()
    maintain(minutes=20)
    SiteBanner.objects.update(until=timezone.now() - timedelta(minutes=1))
    banner.forget()
    assert assert_refused(ada.send(chat))["retry_after"] == banner.PAUSE_S


def test_without_words_of_its_own_a_maintenance_has_stock_ones(ada: Person) -> None:
    chat = ada.new_chat()
    maintain("")
    assert_refused(ada.send(chat), text=banner.NO_WORDS)


def test_a_turn_that_was_accepted_is_answered_again(ada: Person) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat)["run"]["id"]
    maintain()
    repeat = ada.send(chat)
    assert (repeat.status_code, repeat.json()["run"]["id"]) == (200, run)
    assert ada.send(chat, "Something else").json()["code"] == "turn_conflict"


def test_reading_stopping_renaming_and_deleting_go_on(ada: Person) -> None:
    chat, other = ada.new_chat(), ada.new_chat()
    run = ada.sent(chat)["run"]["id"]
    maintain()
    for path in (
        "chats",
        f"chats/{chat}",
        f"chats/{chat}/messages",
        f"runs/{run}",
        f"runs/{run}/events",
        "me",
        "pools",
    ):
        assert ada.get(f"/api/v1/{path}").status_code == 200, path
    assert ada.new_chat()
    assert ada.patch(f"/api/v1/chats/{other}", {"title": "Later"}).status_code == 200
    assert ada.delete(f"/api/v1/chats/{other}").status_code == 204
    claim_by_hand(run)
    assert ada.post(f"/api/v1/runs/{run}/cancel").status_code == 202


def test_an_answer_under_way_ends_as_ever(ada: Person) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat)["run"]["id"]
    maintain()
    settle_by_hand(run, text="Done.")
    assert ada.get(f"/api/v1/runs/{run}").json()["status"] == "done"
    assert ada.messages(chat)[0]["content"] == "Done."


def test_bad_requests_and_foreign_chats_are_told_as_ever(ada: Person, eve: Person) -> None:
    chat = ada.new_chat()
    maintain()
    assert ada.send(chat, " ").status_code == 400
    assert eve.send(chat).status_code == 404


def test_a_banner_alone_refuses_nothing(ada: Person) -> None:
    say("New models on Monday.", severity="warning")
    assert ada.send(ada.new_chat()).status_code == 202


def test_without_redis_a_maintenance_is_told_as_one(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = ada.new_chat()
    lose_redis(monkeypatch)
    assert ada.send(chat).json()["code"] == "unavailable"
    maintain()
    assert_refused(ada.send(chat))


def test_the_status_says_what_the_pages_show(ada: Person) -> None:
    assert ada.get("/api/v1/status").json() == {"maintenance": False, "banner": None}
    say("New models on Monday.")
    expected = {"text": "New models on Monday.", "severity": "info", "until": None}
    assert ada.get("/api/v1/status").json() == {"maintenance": False, "banner": expected}
    maintain(minutes=20)
    status = ada.get("/api/v1/status").json()
    assert status["maintenance"] is True
    assert (status["banner"]["text"], status["banner"]["severity"]) == (TEXT, "warning")
    assert datetime.fromisoformat(status["banner"]["until"]) == SiteBanner.objects.get().until


@pytest.mark.parametrize("path", ["/", "/c/{chat}/", "/account/", "/login/", "/signup/", "/password/reset/"])
def test_every_page_shows_the_banner_as_text(ada: Person, path: str) -> None:
    chat = ada.new_chat()
    browser = Client()
    if path in ("/", "/c/{chat}/", "/account/"):
        browser.force_login(ada.user)
    address = path.format(chat=chat)
    before = browser.get(address).content.decode()
    assert before.count("data-banner\n") == 1
    say("<b>Monday</b>\nNew models")
    shown = browser.get(address).content.decode()
    assert "&lt;b&gt;Monday&lt;/b&gt;\nNew models</p>" in shown
    assert 'role="status"' in shown[: shown.index("data-banner\n")][-200:]
    maintain(minutes=20)
    maintained = browser.get(address).content.decode()
    until = SiteBanner.objects.get().until
    assert until is not None
    assert TEXT in maintained
    assert f"Expected to be over at {until:%Y-%m-%d %H:%M} UTC" in maintained
    assert 'role="alert"' in maintained[: maintained.index("data-banner\n")][-200:]


def test_an_errors_page_reads_no_banner(client: Client) -> None:
    say("New models on Monday.")
    with CaptureQueriesContext(connection) as captured:
        assert client.get("/nothing").status_code == 404
    assert [query for query in captured.captured_queries if "sitebanner" in query["sql"]] == []


def test_without_a_database_pages_show_what_was_known_last(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise OperationalError("connection refused")

    say("New models on Monday.")
    browser = Client()
    assert "New models on Monday." in browser.get("/login/").content.decode()
    monkeypatch.setattr(banner, "_stored", away)
    banner.forget()
    assert "New models on Monday." in browser.get("/login/").content.decode()


def test_many_sends_read_the_banner_once(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(banner, "FRESH_S", 3600.0)
    chats = [ada.new_chat() for _ in range(2)]
    banner.forget()
    with CaptureQueriesContext(connection) as captured:
        for chat in chats:
            ada.sent(chat)
    reads = [query for query in captured.captured_queries if "conversations_sitebanner" in query["sql"]]
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"text": "x" * 501}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"text": "\udcff"}, "text"),
        ({"maintenance": True, "until": -1}, "until"),
    ],
)
def test_what_cannot_be_shown_or_has_passed_is_refused(values: Json, field: str) -> None:
    now = timezone.now()
    asked: Json = {"text": TEXT, "severity": "info", "maintenance": False, "until": None} | values
    if asked["until"] is not None:
        asked["until"] = now + timedelta(seconds=asked["until"])
    with pytest.raises(InvalidRequest) as refusal:
        banner.change(now=now, **asked)
    assert refusal.value.field == field
    assert not SiteBanner.objects.exists()


def test_a_maintenance_keeps_the_banners_text_unless_it_has_its_own_and_leaves_none_behind(ada: Person) -> None:
    say("New models on Monday.")
    banner.begin_maintenance(text=None, until=None, now=timezone.now())
    with pytest.raises(Maintenance, match="New models on Monday"):
        banner.refuse_during_maintenance(now=timezone.now())
    over()
    assert banner.current() is None


@pytest.fixture
def operator() -> Client:
    user: Any = get_user_model().objects.create_superuser(email="root@example.org", password="p")
    client = Client()
    client.force_login(user)
    return client


SCREEN = "/admin/conversations/sitebanner/1/change/"


def fill(operator: Client, **values: str) -> Any:
    return operator.post(SCREEN, {"text": TEXT, "severity": "info", "until_0": "", "until_1": ""} | values)


def test_an_administrator_begins_and_ends_a_maintenance_without_redis(operator: Client) -> None:
    assert operator.get("/admin/conversations/sitebanner/").headers["Location"] == SCREEN
    tomorrow = f"{timezone.now() + timedelta(days=1):%Y-%m-%d}"
    assert fill(operator, maintenance="on", until_0=tomorrow, until_1="12:00").status_code == 302
    shown = banner.current()
    assert shown is not None
    assert (shown.text, shown.maintenance, f"{shown.until:%Y-%m-%d %H:%M}") == (TEXT, True, f"{tomorrow} 12:00")
    assert fill(operator, text="", until_0=tomorrow, until_1="12:00").status_code == 302
    assert banner.current() is None


@pytest.mark.parametrize(
    "values",
    [
        {"text": "x" * 501},
        {"severity": "loud"},
        {"maintenance": "on", "until_0": "2020-01-01", "until_1": "12:00"},
        {"until_0": "soon", "until_1": "12:00"},
    ],
)
def test_the_admin_screen_refuses_what_cannot_be(operator: Client, values: dict[str, str]) -> None:
    operator.get("/admin/conversations/sitebanner/")
    response = fill(operator, **values)
    assert response.status_code == 200
    assert response.context["errors"]
    assert not SiteBanner.objects.exclude(text="", maintenance=False).exists()


def test_there_is_one_banner_which_nobody_adds_or_deletes(operator: Client) -> None:
    operator.get("/admin/conversations/sitebanner/")
    assert operator.get("/admin/conversations/sitebanner/add/").status_code == 403
    assert operator.get("/admin/conversations/sitebanner/1/delete/").status_code == 403


def in_another_process(*arguments: str) -> None:
    """Run `manage.py ARGUMENTS` on this test's database."""
    at = connection.settings_dict
    if connection.vendor == "sqlite":
        url = f"sqlite:///{at['NAME']}"
    else:
        url = f"postgres://{quote(at['USER'])}@{at['HOST']}:{at['PORT']}/{at['NAME']}"
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "chatsite.settings.test"}
    subprocess.run([sys.executable, "manage.py", *arguments], cwd=ROOT, env=environment, check=True)


def test_what_another_process_decides_holds_here_within_two_seconds(ada: Person) -> None:
    chat = ada.new_chat()
    assert banner.current() is None
    in_another_process("maintenance", "on", "--text", TEXT)
    wait_for(lambda: is_refused(ada, chat), what="it is known here", seconds=EFFECT_S)
    in_another_process("maintenance", "off")
    wait_for(lambda: not is_refused(ada, chat), what="it is over here", seconds=EFFECT_S)


def is_refused(person: Person, chat: str) -> bool:
    # A new turn each time: one that was accepted is answered again.
    return bool(person.send(chat, turn=str(uuid4())).status_code == 503)
