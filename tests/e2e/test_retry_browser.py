"""Asking for an answer again in a real browser, on the whole site with the scripted engine.

Also fails on an error in the browser's console, a violation of the content security policy among them, and on any
request to another host.
"""

import re

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.browsers import Visitor
from tests.e2e.test_browser import answers, ask, longer_than, text_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SLOW = "Tell me of the lighthouse [[tokens=60 tps=20 prefill_ms=0]]"
BREAKS = "Tell me of the keeper [[tokens=60 tps=200 fail_after=20 prefill_ms=0]]"
RETRY = re.compile("^Retry$")


def retry_of(message: Locator) -> Locator:
    return message.get_by_role("button", name=RETRY)


def ended(message: Locator, state: str) -> None:
    expect(message).to_have_attribute("data-state", state)


def stored(page: Page) -> list[dict[str, str]]:
    """The chat's messages as the API has them, newest first."""
    chat = re.findall(r"/c/([0-9a-f-]+)/", page.url)[0]
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
    host = page.url.split("/c/")[0]
    found: list[dict[str, str]] = httpx.get(f"{host}/api/v1/chats/{chat}/messages", cookies=cookies).json()["results"]
    return found


def test_a_stopped_answer_is_given_anew_in_its_place_without_a_reload(page: Page) -> None:
    answer = ask(page, SLOW)
    longer_than(answer, 30)
    expect(retry_of(answer)).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    ended(answer, "stopped")
    partial, [before, _] = text_of(answer), stored(page)
    retry_of(answer).click()
    expect(answer).to_have_attribute("data-state", "streaming")
    expect(retry_of(answer)).to_be_hidden()
    ended(answer, "complete")
    expect(retry_of(answer)).to_be_hidden()
    expect(answers(page)).to_have_count(1)
    [after, _] = stored(page)
    assert len(text_of(answer)) > len(partial)
    assert text_of(answer) == after["content"]
    assert (after["id"], after["seq"]) == (before["id"], before["seq"])


def test_a_failed_answer_is_asked_for_again_by_keyboard_and_follows_the_new_attempt(page: Page) -> None:
    answer = ask(page, BREAKS)
    ended(answer, "failed")
    page.locator("[data-composer-input]").focus()
    page.keyboard.press("Shift+Tab")
    expect(retry_of(answer)).to_be_focused()
    with page.expect_response(re.compile("/retry$")) as response:
        page.keyboard.press("Enter")
    assert response.value.json()["epoch"] == 2
    expect(page.locator("[data-composer-input]")).to_be_focused()
    ended(answer, "failed")
    expect(page.locator("[data-composer][data-activity=idle]")).to_be_visible()
    # The script breaks off again, at the same place: what is shown is the second attempt's text once, not both.
    [after, _] = stored(page)
    assert text_of(answer) == after["content"] != ""
    expect(retry_of(answer)).to_be_visible()


def test_after_a_reload_the_last_answer_can_be_asked_for_again_and_an_earlier_one_cannot(page: Page) -> None:
    ended(ask(page, BREAKS), "failed")
    second = ask(page, SLOW)
    longer_than(second, 30)
    page.get_by_role("button", name="Stop").click()
    ended(second, "stopped")
    page.reload()
    first, second = answers(page).nth(0), answers(page).nth(1)
    expect(retry_of(first)).to_be_hidden()
    retry_of(second).click()
    longer_than(second, 30)
    # A second reload, in the middle of the new attempt, goes on with it.
    page.reload()
    ended(answers(page).nth(1), "complete")
    assert text_of(answers(page).nth(1)) == stored(page)[0]["content"]


def test_a_refused_retry_leaves_the_answer_and_says_why(page: Page, visitor: Visitor) -> None:
    answer = ask(page, BREAKS)
    ended(answer, "failed")
    before = text_of(answer)
    page.route(
        re.compile("/retry$"),
        lambda route: route.fulfill(
            status=429,
            content_type="application/problem+json",
            headers={"Retry-After": "5"},
            body='{"status": 429, "code": "limit_reached", "title": "A limit of yours is reached", "detail": ""}',
        ),
    )
    retry_of(answer).click()
    expect(page.locator("[data-alert]")).to_contain_text("A limit of yours is reached Try again in 5 s.")
    ended(answer, "failed")
    assert text_of(answer) == before
    expect(retry_of(answer)).to_be_enabled()
    # The browser notes every refused request in its console.
    visitor.troubles = [trouble for trouble in visitor.troubles if "429" not in trouble]
