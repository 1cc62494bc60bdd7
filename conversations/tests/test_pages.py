"""The chat pages: whose they are, and what the server has put on them before any script runs."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from uuid_utils.compat import uuid7

from conversations.models import Chat, Message, Turn
from conversations.pages import CHATS_SHOWN, MESSAGES_SHOWN, exact_html
from inference.models import Run

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def owner() -> Any:
    return get_user_model().objects.create_user(email="ada@example.org", password="a password")


@pytest.fixture
def browser(owner: Any) -> Client:
    client = Client()
    client.force_login(owner)
    return client


def a_chat(owner: Any, *, title: str = "About Rome", minutes: int = 0) -> Chat:
    at = NOW + timedelta(minutes=minutes)
    return Chat.objects.create(owner=owner, title=title, pool="default", created_at=at, last_active_at=at)


def a_turn(chat: Chat, *, question: str, answer: str | None, state: str = "complete") -> Turn:
    """A turn as it is stored: its user message and, unless it is still running, its answer."""
    turn = Turn.objects.create(chat=chat, client_turn_id=str(uuid7()), fingerprint="f", run_id=uuid7(), created_at=NOW)
    said = [("user", question, "complete")] + ([("assistant", answer, state)] if answer is not None else [])
    for role, content, kept_as in said:
        chat.last_seq += 1
        Message.objects.create(
            chat=chat, turn=turn, seq=chat.last_seq, role=role, content=content, state=kept_as,
            run_id=turn.run_id, created_at=NOW,
        )  # fmt: skip
    chat.save()
    return turn


def a_waiting_run(chat: Chat, *, run_id: UUID) -> None:
    pool = apps.get_model("inference", "ModelPool").objects.get(slug="default")
    Run.objects.create(
        id=run_id, owner=chat.owner, chat_id=chat.id, pool=pool, model="m", admission_id=uuid7(),
        reserved_tokens=9, prompt_tokens=4, max_output_tokens=5, created_at=NOW, deadline_at=NOW,
    )  # fmt: skip


def page_of(chat: Chat) -> str:
    return reverse("pages:chat", args=[chat.id])


def texts_on(html: str) -> list[str]:
    """The messages' texts as a browser reads them, the page's empty template aside."""
    list_alone = html.split("data-messages>", 1)[1].split("</section>", 1)[0]
    return [unescape(text) for text in re.findall(r"data-text>(.*?)</div>", list_alone, flags=re.DOTALL)]


@pytest.mark.parametrize("path", ["/", "/c/0190a000-0000-7000-8000-000000000000/"])
def test_a_page_sends_a_stranger_to_the_login_and_back(path: str) -> None:
    response = Client().get(path)
    assert response.status_code == 302
    assert response.headers["Location"] == f"/login/?next={path}"


def test_logging_in_leads_to_the_page_that_was_asked_for(owner: Any) -> None:
    chat = a_chat(owner)
    client = Client()
    form = client.get(f"/login/?next={page_of(chat)}").content.decode()
    assert f'name="next" value="{page_of(chat)}"' in form
    response = client.post("/login/", {"login": "ada@example.org", "password": "a password", "next": page_of(chat)})
    assert response.headers["Location"] == page_of(chat)


def test_a_failed_login_says_so_and_keeps_the_address(owner: Any) -> None:
    form = Client().post("/login/", {"login": "ada@example.org", "password": "wrong"}).content.decode()
    assert 'role="alert"' in form
    assert 'value="ada@example.org"' in form
    assert "wrong" not in form


def test_another_users_chat_is_not_there(browser: Client) -> None:
    stranger = get_user_model().objects.create_user(email="eve@example.org", password="a password")
    theirs = a_chat(stranger, title="Secret plans")
    response = browser.get(page_of(theirs))
    assert response.status_code == 404
    assert "Secret plans" not in response.content.decode()
    assert "Secret plans" not in browser.get("/").content.decode()


def test_a_deleted_chat_is_not_there(browser: Client, owner: Any) -> None:
    chat = a_chat(owner)
    Chat.objects.update(deleted_at=NOW)
    assert browser.get(page_of(chat)).status_code == 404


def test_pages_are_not_kept_by_browsers_or_proxies(browser: Client) -> None:
    cache_control = browser.get("/").headers["Cache-Control"]
    assert "no-store" in cache_control
    assert "private" in cache_control


def test_pages_only_read(browser: Client) -> None:
    assert browser.post("/").status_code == 405


def test_a_chat_shows_its_messages_in_order_with_their_states(browser: Client, owner: Any) -> None:
    chat = a_chat(owner)
    a_turn(chat, question="First?", answer="One.")
    a_turn(chat, question="Second?", answer="Tw", state="stopped")
    a_turn(chat, question="Third?", answer="", state="failed")
    html = browser.get(page_of(chat)).content.decode()
    assert texts_on(html) == ["First?", "One.", "Second?", "Tw", "Third?", ""]
    listed = html.split("data-messages>", 1)[1].split("</section>", 1)[0]
    assert re.findall(r'data-role="(\w+)"\s+data-state="(\w+)"', listed) == [
        ("user", "complete"), ("assistant", "complete"), ("user", "complete"), ("assistant", "stopped"),
        ("user", "complete"), ("assistant", "failed"),
    ]  # fmt: skip


def test_a_text_is_shown_as_it_is_stored_and_never_as_markup(browser: Client, owner: Any) -> None:
    chat = a_chat(owner, title="<b>Bold</b>")
    text = '\n <script>alert("&amp;")</script>\r\n\ttab   and spaces \r'
    a_turn(chat, question=text, answer=text)
    html = browser.get(page_of(chat)).content.decode()
    assert texts_on(html) == [text, text]
    assert "<script>alert" not in html
    assert "<b>Bold" not in html


def test_a_carriage_return_survives_the_html_parser() -> None:
    assert exact_html(text="a\r\nb\r<") == "a&#13;\nb&#13;&lt;"


def test_a_long_chat_shows_its_latest_messages_and_offers_the_rest(browser: Client, owner: Any) -> None:
    chat = a_chat(owner)
    for number in range(MESSAGES_SHOWN // 2):
        a_turn(chat, question=f"q{number}", answer=f"a{number}")
    assert "data-earlier" not in browser.get(page_of(chat)).content.decode()
    a_turn(chat, question="last?", answer="yes")
    html = browser.get(page_of(chat)).content.decode()
    assert "data-earlier" in html
    assert len(texts_on(html)) == MESSAGES_SHOWN
    assert texts_on(html)[0] == "q1"
    assert texts_on(html)[-1] == "yes"


def test_a_chat_that_is_being_answered_says_where_to_follow(browser: Client, owner: Any) -> None:
    chat = a_chat(owner)
    assert 'data-active-run-id=""' in browser.get(page_of(chat)).content.decode()
    turn = a_turn(chat, question="Well?", answer=None)
    a_waiting_run(chat, run_id=turn.run_id)
    html = browser.get(page_of(chat)).content.decode()
    assert f'data-active-run-id="{turn.run_id}"' in html
    assert f'data-active-events-url="/api/v1/runs/{turn.run_id}/events"' in html
    assert "data-stopping" not in html


def test_a_chat_whose_answer_is_being_stopped_says_so(browser: Client, owner: Any) -> None:
    chat = a_chat(owner)
    turn = a_turn(chat, question="Well?", answer=None)
    a_waiting_run(chat, run_id=turn.run_id)
    Run.objects.update(status="streaming", cancel_requested_at=NOW)
    assert "data-stopping" in browser.get(page_of(chat)).content.decode()


def test_past_chats_are_listed_last_active_first_and_the_open_one_is_marked(browser: Client, owner: Any) -> None:
    older, newer = a_chat(owner, title="Older", minutes=1), a_chat(owner, title="Newer", minutes=2)
    html = browser.get(page_of(older)).content.decode()
    assert html.index(page_of(newer)) < html.index(page_of(older))
    marked = re.findall(r'data-chat-id="([0-9a-f-]+)"\s+aria-current="page"', html)
    assert marked == [str(older.id)]


def test_more_chats_than_fit_are_offered(browser: Client, owner: Any) -> None:
    for minute in range(CHATS_SHOWN + 1):
        a_chat(owner, minutes=minute)
    html = browser.get("/").content.decode()
    assert len(re.findall(r"data-chat-link\s+data-chat-id", html)) == CHATS_SHOWN
    assert "data-more-chats" in html


def test_a_choice_of_pools_is_offered_only_where_there_is_one(browser: Client) -> None:
    assert "data-pool" not in browser.get("/").content.decode()
    apps.get_model("inference", "ModelPool").objects.create(slug="big", name="The big one")
    html = browser.get("/").content.decode()
    assert re.findall(r'<option value="([\w-]+)"', html) == ["default", "big"]


def test_a_chats_own_pool_is_the_one_chosen_in_it(browser: Client, owner: Any) -> None:
    apps.get_model("inference", "ModelPool").objects.create(slug="big", name="The big one")
    chat = a_chat(owner)
    Chat.objects.update(pool="big")
    html = browser.get(page_of(chat)).content.decode()
    assert re.findall(r'<option value="([\w-]+)"\s+selected', html) == ["big"]


def test_a_scripted_engine_is_named_as_one(browser: Client, settings: Any) -> None:
    settings.ENGINE = "vllm"
    assert "Scripted engine" not in browser.get("/").content.decode()
    settings.ENGINE = "scripted"
    assert "Scripted engine" in browser.get("/").content.decode()


def test_pages_hold_no_inline_script_or_style_and_name_no_other_host(browser: Client, owner: Any) -> None:
    chat = a_chat(owner)
    a_turn(chat, question="First?", answer="One.")
    pages = [browser.get("/"), browser.get(page_of(chat)), Client().get("/login/"), browser.get("/nowhere/")]
    for page in pages:
        html = page.content.decode()
        assert re.findall(r"<script(?![^>]*\bsrc=)", html) == []
        assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", html) == []
        assert re.findall(r'(?:src|href|action)="(?:[a-z]+:)?//', html) == []


def test_logging_out_takes_a_form_and_leads_to_the_login(browser: Client) -> None:
    assert re.search(r'<form[^>]*method="post"[^>]*action="/logout/"', browser.get("/").content.decode())
    assert browser.post("/logout/").headers["Location"] == "/login/"
    assert browser.get("/").status_code == 302


def test_a_form_without_its_token_is_refused_with_a_page_that_explains(owner: Any) -> None:
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(owner)
    response = careful.post("/logout/")
    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()
