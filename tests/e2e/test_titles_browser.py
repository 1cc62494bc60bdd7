"""The title that a model makes of a chat, in a real browser, on the whole site with the scripted engine.

Also fails on an error in the browser's console, a violation of the content security policy among them, and on any
request to another host.
"""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.test_browser import ask

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# The title's prompt quotes it, so that the title is as quick.
QUICK = "Tell me of the lighthouse [[tokens=20 tps=500 prefill_ms=0]]"
SCRIPTED = re.compile("^Scripted answer")


def test_a_title_takes_the_place_of_the_first_words_without_a_reload(page: Page) -> None:
    answer = ask(page, QUICK)
    page.evaluate("window.sameDocument = true")
    link, head = page.locator("[data-chat-link]").first, page.locator("[data-chat-title]")
    for place in (link, head):
        expect(place).to_have_text(re.compile("^Tell me of the lighthouse"))
    expect(answer).to_have_attribute("data-state", "complete")
    for place in (link, head):
        expect(place).to_have_text(SCRIPTED)
    expect(page).to_have_title(re.compile("^Scripted answer.* · Chatsite$"))
    assert page.evaluate("window.sameDocument") is True
    title = head.inner_text()
    page.reload()
    expect(link).to_have_text(title)


def test_once_it_is_there_or_after_a_later_answer_nobody_asks_for_one(page: Page) -> None:
    expect(ask(page, QUICK)).to_have_attribute("data-state", "complete")
    expect(page.locator("[data-chat-title]")).to_have_text(SCRIPTED)
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url) if re.search(r"/chats/[^/]+$", request.url) else None)
    page.clock.install()
    expect(ask(page, QUICK)).to_have_attribute("data-state", "complete")
    page.clock.run_for(60_000)
    # After the send, and after the end.
    assert len(reads) == 2
