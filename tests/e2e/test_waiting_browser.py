"""Waiting, a full server and a smaller model's answer, as a real browser shows them; the events and refusals are told.

Also fails on an error in the browser's console, a violation of the content security policy among them, and on any
request to another host.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.e2e.browsers import Visitor
from tests.e2e.test_browser import answers, ask, questions, text_of
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

QUICK = "Tell me of the keeper [[tokens=5 tps=200 prefill_ms=0]]"
# In place of the browser's own: what comes over it is what the test says.
FAKE_SOURCE = """
class FakeSource extends EventTarget {
  constructor() {
    super();
    this.readyState = 1;
    FakeSource.last = this;
  }
  close() { this.readyState = 2; }
}
FakeSource.CLOSED = 2;
window.EventSource = FakeSource;
window.say = ([id, type, data]) =>
  FakeSource.last.dispatchEvent(new MessageEvent(type, { lastEventId: id, data: JSON.stringify(data) }));
"""


@pytest.fixture
def told(visitor: Visitor) -> Page:
    """A page that hears of its answers what `say` says."""
    page = visitor.open("/")
    page.add_init_script(FAKE_SOURCE)
    page.reload()
    return page


def say(page: Page, name: str, event: str, **data: Any) -> None:
    page.evaluate("(event) => say(event)", [name, event, data])


def status(message: Locator) -> Locator:
    return message.locator("[data-status]")


def test_the_place_in_line_is_shown_and_updated_in_place_with_the_reason_for_a_worse_one(told: Page) -> None:
    page = told
    answer = ask(page, QUICK)
    say(page, "0-1", "queued", position=2, wait_seconds=12, pool="default")
    expect(status(answer)).to_have_text("3rd in line, about 12 s")
    expect(answer).to_have_attribute("data-phase", "queued")
    say(page, "0-2", "queued", position=5, wait_seconds=25, pool="default", reason="overtaken")
    expect(status(answer)).to_have_text(re.compile("^6th in line, about 25 s, others go first"))
    expect(page.locator("[data-announcer]")).to_have_text(re.compile("^6th in line"))
    say(page, "0-3", "queued", position=4, wait_seconds=20, pool="default")
    expect(status(answer)).to_have_text("5th in line, about 20 s")
    # Not every place is news to a listener.
    expect(page.locator("[data-announcer]")).to_have_text(re.compile("^6th in line"))
    say(page, "0-4", "queued", position=0, wait_seconds=1, pool="default")
    expect(status(answer)).to_have_text("Next in line, about 1 s")
    expect(page.locator("[data-announcer]")).to_have_text(re.compile("^Next in line"))
    expect(page.get_by_role("button", name="Stop")).to_be_visible()


def test_a_smaller_models_answer_says_so_while_it_comes_and_after_a_reload(
    told: Page, visitor: Visitor, scripted: Stack
) -> None:
    page = told
    answer = ask(page, QUICK)
    badge = answer.locator("[data-degraded]")
    expect(badge).to_be_hidden()
    busy = "Large is busy: Small, a smaller and faster model, answers."
    say(page, "1-1", "started", epoch=1, pool="small", model="tiny", degraded=True)
    say(page, "1-2", "notice", code="faster_model", text=busy)
    say(page, "1-3", "delta", text="Rome.")
    expect(badge).to_be_visible()
    expect(answer.locator("[data-remark=faster_model]")).to_have_text(busy)
    assert text_of(answer) == "Rome."
    page = visitor.open(page.url.removeprefix(visitor.url))
    expect(answers(page).first).to_have_attribute("data-state", "complete")
    # The one worker here serves the pool that was asked for: what is stored of a smaller one's answer is put there.
    of_run = f"run_id='{answers(page).first.get_attribute('data-run-id')}', role='assistant'"
    scripted.manage(
        "shell",
        "-c",
        f"from conversations.models import Message; Message.objects.filter({of_run}).update(degraded=True)",
    )
    page.reload()
    expect(answers(page).first.locator("[data-degraded]")).to_be_visible()
    expect(answers(page).first.locator("[data-degraded]")).to_have_text("smaller model")


def full(seconds: int) -> Callable[[Route], None]:
    body = {
        "status": 503, "code": "pool_full", "title": "We are full", "detail": "There is no place.", "pool": "default",
        "reason": "full", "wait_seconds": 150, "retry_after": seconds,
    }  # fmt: skip

    def refuse(route: Route) -> None:
        if route.request.method != "POST":
            route.fallback()
            return
        headers = {"Retry-After": str(seconds)}
        route.fulfill(status=503, content_type="application/problem+json", headers=headers, body=json.dumps(body))

    return refuse


def test_a_full_server_keeps_the_text_and_offers_it_again_after_the_wait(page: Page, visitor: Visitor) -> None:
    sends = re.compile(r"/api/v1/chats/[0-9a-f-]+/messages")
    page.route(sends, full(2))
    page.locator("[data-composer-input]").fill(QUICK)
    page.locator("[data-composer-input]").press("Enter")
    alert = page.locator("[data-alert]")
    expect(alert).to_contain_text("We are full")
    expect(alert).to_contain_text("The wait would have been about 3 min. Try again in 2 s.")
    expect(page.locator("[data-composer-input]")).to_have_value(QUICK)
    expect(questions(page)).to_have_count(0)
    again = alert.get_by_role("button", name="Try again")
    expect(again).to_be_disabled()
    page.unroute(sends)
    expect(again).to_be_enabled()
    again.click()
    expect(alert).to_be_hidden()
    expect(answers(page)).to_have_count(1)
    expect(answers(page).first).to_have_attribute("data-state", "complete")
    expect(page.locator("[data-composer-input]")).to_have_value("")
    visitor.forgive("503")


def test_an_operator_watches_the_queues_which_come_anew_by_themselves(visitor: Visitor) -> None:
    page = visitor.open("/admin/")
    page.get_by_role("link", name="Watch the queues").click()
    pool = page.locator("[data-pool=default]")
    expect(pool.locator("[data-mode=normal]")).to_be_visible()
    expect(pool.locator("[data-worker]")).to_have_count(1)
    expect(pool.locator("[data-tier=free]")).to_contain_text("gives way first")
    as_of = page.get_by_text(re.compile("^As of "))
    before = as_of.text_content() or ""
    expect(as_of).not_to_have_text(before)
    switch = page.get_by_label("Refresh every 5 s")
    switch.uncheck()
    expect(switch).not_to_be_checked()
