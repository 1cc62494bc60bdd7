"""The chat page in a real browser, on the whole running stack."""

import json
import re
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.browsers import NewVisitor, Visitor, log_in
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# The scripted engine reads the brackets; the real one takes them for a part of the question.
LONG = "Write a very long story about a lighthouse keeper, in many chapters. [[tokens=900 tps=40]]"
SHORT = "What is the capital of Italy?"
ANSWER_MS = 90_000


@pytest.fixture(scope="module")
def account(stack: Stack) -> tuple[str, str]:
    """E-mail address and password."""
    email = f"visitor-{uuid4().hex[:12]}@example.org"
    return email, stack.manage("create_admin", email).split()[-1]


@pytest.fixture
def visitor(new_visitor: NewVisitor, account: tuple[str, str]) -> Visitor:
    """Somebody who is logged in."""
    visitor = new_visitor()
    page = visitor.open("/")
    expect(page).to_have_url(re.compile(r"/login/\?next=/$"))
    log_in(page, *account)
    expect(page.locator("[data-composer-input]")).to_be_visible()
    page.close()
    return visitor


def answers(page: Page) -> Locator:
    return page.locator("[data-message][data-role=assistant]")


def questions(page: Page) -> Locator:
    return page.locator("[data-message][data-role=user]")


def ask(page: Page, text: str) -> Locator:
    """Send `text` by Enter; the message that answers it."""
    before = answers(page).count()
    page.locator("[data-composer-input]").fill(text)
    page.locator("[data-composer-input]").press("Enter")
    expect(answers(page)).to_have_count(before + 1)
    return answers(page).nth(before)


def text_of(message: Locator) -> str:
    text: str = message.locator("[data-text]").evaluate("(element) => element.textContent")
    return text


def longer_than(message: Locator, length: int) -> int:
    """Wait until the text is longer than `length` characters, while it still streams; its new length."""
    message.page.wait_for_function(
        "([element, length]) => element.querySelector('[data-text]').textContent.length > length",
        arg=[message.element_handle(), length],
        timeout=ANSWER_MS,
    )
    expect(message).to_have_attribute("data-state", "streaming")
    return len(text_of(message))


def finished(message: Locator, state: str = "complete") -> None:
    expect(message).to_have_attribute("data-state", state, timeout=ANSWER_MS)


def stored(page: Page) -> list[dict[str, Any]]:
    """The open chat's messages as the API gives them, oldest first."""
    chat_id = urlsplit(page.url).path.split("/")[2]
    listed = page.evaluate(
        "async (id) => (await (await fetch(`/api/v1/chats/${id}/messages?limit=100`)).json()).results",
        chat_id,
    )
    return list(reversed(listed))


def assert_shown_as_stored(page: Page) -> None:
    shown = [
        (message.get_attribute("data-role"), message.get_attribute("data-state"), text_of(message))
        for message in page.locator("[data-message]").all()
    ]
    assert shown == [(message["role"], message["state"], message["content"]) for message in stored(page)]


def test_tokens_arrive_one_after_another_and_end_as_the_stored_answer(visitor: Visitor) -> None:
    page = visitor.open()
    answer = ask(page, LONG)
    lengths = [longer_than(answer, 0)]
    for _ in range(4):
        lengths.append(longer_than(answer, lengths[-1]))
    assert lengths == sorted(set(lengths))
    page.locator("[data-stop]").click()
    finished(answer, "stopped")
    assert_shown_as_stored(page)


def test_a_new_chat_gets_an_address_a_title_and_a_place_among_the_chats(visitor: Visitor) -> None:
    page = visitor.open()
    links = page.locator("[data-chat-link]")
    before = links.count()
    answer = ask(page, SHORT)
    expect(page).to_have_url(re.compile(r"/c/[0-9a-f-]{36}/$"))
    expect(links).to_have_count(before + 1)
    # Until the answer is whole: then a model makes a title of it.
    expect(links.first).to_have_text(SHORT)
    expect(links.first).to_have_attribute("href", urlsplit(page.url).path)
    expect(page).to_have_title(re.compile("capital of Italy"))
    finished(answer)
    assert_shown_as_stored(page)


def test_stop_keeps_the_question_and_the_partial_answer_and_frees_the_composer(visitor: Visitor) -> None:
    page = visitor.open()
    answer = ask(page, LONG)
    longer_than(answer, 10)
    page.locator("[data-stop]").click()
    finished(answer, "stopped")
    expect(answer.locator("[data-status]")).to_contain_text("Stopped")
    assert text_of(answer) != ""
    assert_shown_as_stored(page)
    page.reload()
    assert_shown_as_stored(page)
    finished(ask(page, SHORT))
    assert_shown_as_stored(page)


def test_a_refresh_in_the_middle_of_an_answer_goes_on_with_it(visitor: Visitor) -> None:
    page = visitor.open()
    seen = longer_than(ask(page, LONG), 40)
    page.reload()
    expect(answers(page)).to_have_count(1)
    assert longer_than(answers(page).first, seen) > seen
    page.locator("[data-stop]").click()
    finished(answers(page).first, "stopped")
    assert_shown_as_stored(page)


def test_stop_works_from_a_second_tab_and_both_show_it(visitor: Visitor) -> None:
    page = visitor.open()
    answer = ask(page, LONG)
    longer_than(answer, 0)
    other = visitor.open(urlsplit(page.url).path)
    longer_than(answers(other).first, 0)
    other.locator("[data-stop]").click()
    finished(answers(other).first, "stopped")
    finished(answer, "stopped")
    assert text_of(answers(other).first) == text_of(answer)


def test_leaving_does_not_end_an_answer_and_the_chat_can_be_come_back_to(visitor: Visitor) -> None:
    page = visitor.open()
    longer_than(ask(page, LONG), 0)
    chat_path = urlsplit(page.url).path
    page.close()
    page = visitor.open()
    page.locator(f"[data-chat-link][href='{chat_path}']").click()
    expect(questions(page)).to_have_count(1)
    longer_than(answers(page).first, 0)
    page.locator("[data-stop]").click()
    finished(answers(page).first, "stopped")
    finished(ask(page, SHORT))
    assert len(stored(page)) == 4
    assert_shown_as_stored(page)


def test_a_lost_response_is_asked_for_again_and_makes_one_turn(visitor: Visitor) -> None:
    page = visitor.open()
    ids: list[str] = []

    def lose_the_first(route: Route) -> None:
        ids.append(json.loads(route.request.post_data or "")["client_turn_id"])
        if len(ids) > 1:
            route.continue_()
        else:
            route.fetch()
            route.abort()

    page.route("**/messages", lose_the_first)
    finished(ask(page, SHORT))
    assert len(ids) == 2
    assert ids[0] == ids[1]
    assert [message["role"] for message in stored(page)] == ["user", "assistant"]
    assert_shown_as_stored(page)
    # The browser itself reports the response that this test took away.
    visitor.forgive("ERR_FAILED")


def test_a_refusal_is_shown_and_the_text_comes_back(visitor: Visitor) -> None:
    page = visitor.open()
    page.locator("[data-composer-input]").fill("word " * 20_000)
    page.locator("[data-send]").click()
    expect(page.locator("[data-alert]")).to_be_visible()
    expect(page.locator("[data-alert-detail]")).to_contain_text("tokens")
    expect(page.locator("[data-composer-input]")).to_have_value("word " * 20_000)
    expect(page.locator("[data-message]")).to_have_count(0)
    finished(ask(page, SHORT))
    visitor.forgive("status of 400")


@pytest.mark.parametrize(
    ("what", "sends"),
    [
        ({"isComposing": True}, False),
        ({"keyCode": 229}, False),
        ({"shiftKey": True}, False),
        ({}, True),
    ],
    ids=["composing", "ending a composition in Safari", "with Shift", "alone"],
)
def test_enter_sends_unless_an_input_method_composes(visitor: Visitor, what: dict[str, Any], sends: bool) -> None:
    page = visitor.open()
    composer = page.locator("[data-composer-input]")
    composer.fill(SHORT)
    composer.dispatch_event("keydown", {"key": "Enter", "keyCode": 13, "bubbles": True, "cancelable": True} | what)
    if sends:
        finished(answers(page).first)
    else:
        expect(composer).to_have_value(SHORT)
        expect(page.locator("[data-message]")).to_have_count(0)


def test_scrolling_up_detaches_from_the_end_and_a_button_brings_it_back(visitor: Visitor) -> None:
    page = visitor.open()
    page.set_viewport_size({"width": 500, "height": 360})
    answer = ask(page, LONG)
    longer_than(answer, 700)
    page.mouse.move(250, 150)
    page.mouse.wheel(0, -200)
    expect(page.locator("[data-to-end]")).to_be_visible()
    top = page.evaluate("scrollY")
    longer_than(answer, len(text_of(answer)) + 100)
    assert page.evaluate("scrollY") == top
    page.locator("[data-to-end]").click()
    expect(page.locator("[data-to-end]")).to_be_hidden()
    page.wait_for_function("scrollY + innerHeight > document.documentElement.scrollHeight - 40")
    page.locator("[data-stop]").click()
    finished(answer, "stopped")


def test_a_screen_reader_is_told_of_the_end_and_not_of_every_token(visitor: Visitor) -> None:
    page = visitor.open()
    page.evaluate(
        """() => {
            window.said = [];
            const announcer = document.querySelector("[data-announcer]");
            new MutationObserver(() => window.said.push(announcer.textContent))
                .observe(announcer, { childList: true, characterData: true, subtree: true });
        }"""
    )
    answer = ask(page, SHORT)
    finished(answer)
    page.wait_for_function("window.said.at(-1)?.startsWith('Finished')")
    said = page.evaluate("window.said")
    assert text_of(answer) in said[-1]
    assert len(said) <= 5
    assert page.locator("[data-messages]").get_attribute("aria-live") is None


def test_logging_out_ends_the_session(visitor: Visitor) -> None:
    page = visitor.open()
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/login/"))
    page.goto(visitor.url + "/")
    expect(page).to_have_url(re.compile(r"/login/\?next=/$"))


def test_the_page_is_usable_on_a_phone(visitor: Visitor) -> None:
    page = visitor.open()
    page.set_viewport_size({"width": 360, "height": 640})
    finished(ask(page, SHORT))
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.get_by_role("button", name="Your chats").click()
    expect(page.locator("[data-chat-link]").first).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(page.locator("[data-chat-link]").first).to_be_hidden()
