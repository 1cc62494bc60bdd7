"""An operator's day in a real browser: sees an answer under way, stops it, suspends its owner.

On a site of its own, with the scripted engine. Also fails on an error in the browser's console, a violation of the
content security policy among them, and on any request to another host.
"""

import json
import re
import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.client import Api, Event
from tests.e2e.browsers import NewVisitor, Visitor
from tests.stack import Stack, running
from tests.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ENDLESS = "Tell me of the lighthouse. [[tps=20 tokens=1000]]"
STOPPED_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(engine="scripted") as site:
        yield site


@pytest.fixture
def operator(new_visitor: NewVisitor, stack: Stack) -> Visitor:
    """An administrator's browser, logged in."""
    email = f"root-{uuid4().hex[:12]}@example.org"
    password = stack.manage("create_admin", email).split()[-1]
    visitor = new_visitor()
    page = visitor.open("/admin/")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Answers under way")).to_be_visible()
    page.close()
    return visitor


class Talker:
    """A user whose answers are followed through the API."""

    def __init__(self, stack: Stack) -> None:
        self.email = f"talker-{uuid4().hex[:12]}@example.org"
        self.api = Api(url=stack.url, key=stack.manage("create_api_key", self.email))

    def begin(self) -> tuple[str, list[Event], threading.Thread]:
        """Send, and follow from a thread: the run, its events as they come, and the thread that ends with them."""
        run = str(self.api.send(self.api.new_chat(), ENDLESS)["run"]["id"])
        seen: list[Event] = []

        def follow() -> None:
            for event in self.api.follow(run):
                seen.append(event)  # noqa: PERF402 - one by one, as they arrive

        reader = threading.Thread(target=follow, daemon=True)
        reader.start()
        wait_for(lambda: any(event.type == "delta" for event in seen), what="the answer begins", seconds=60)
        return run, seen, reader


@pytest.fixture
def talker(stack: Stack) -> Iterator[Talker]:
    talker = Talker(stack)
    yield talker
    talker.api.http.close()


def ended(seen: list[Event], reader: threading.Thread) -> str:
    """The type of the last event; the stream must end in time."""
    reader.join(timeout=STOPPED_WITHIN_S)
    assert not reader.is_alive(), "the stream is still open"
    return seen[-1].type


def reload_until(page: Page, selector: str, text: str) -> None:
    """Engines report every second or so: look again until the page has heard."""

    def look() -> bool:
        page.reload()
        return page.locator(selector).inner_text().strip() == text

    wait_for(look, what=f"{selector} shows {text}")


def test_an_answer_is_seen_on_the_dashboard_and_stopped_from_its_page(operator: Visitor, talker: Talker) -> None:
    run, seen, reader = talker.begin()
    page = operator.open("/admin/")
    pool = "[data-pool=default]"
    expect(page.locator(f"{pool} [data-running]")).to_have_text("1")
    reload_until(page, f"{pool} [data-workers]", "1")
    expect(page.locator("[data-redis-away]")).to_have_count(0)
    line = page.locator(f"[data-run='{run}']")
    expect(line).to_contain_text(talker.email)
    line.get_by_role("link", name=run).click()
    page.get_by_role("button", name="Stop this answer").click()
    expect(page.get_by_text("The answer was stopped")).to_be_visible()
    assert ended(seen, reader) == "cancelled"
    page.reload()
    expect(page.get_by_role("button", name="Stop this answer")).to_have_count(0)
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("cell", name="Cancel")).to_be_visible()


def test_a_user_is_suspended_after_a_question_and_reinstated(operator: Visitor, talker: Talker) -> None:
    run, seen, reader = talker.begin()
    page = operator.open("/admin/accounts/user/")
    page.get_by_role("textbox").first.fill(talker.email)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name=talker.email).click()
    expect(page.get_by_role("link", name=run)).to_be_visible()
    page.get_by_role("button", name="Suspend").click()
    expect(page.get_by_text("(1 answer under way)")).to_be_visible()
    assert reader.is_alive(), "a question suspends nobody"
    page.get_by_role("button", name="Yes, suspend").click()
    expect(page.get_by_text("1 suspended.")).to_be_visible()
    assert ended(seen, reader) == "cancelled"
    assert talker.api.http.get("/api/v1/me").status_code == 401
    page.goto(f"{operator.url}/admin/accounts/user/?q={talker.email}")
    page.get_by_role("link", name=talker.email).click()
    page.get_by_role("button", name="Reinstate").click()
    page.get_by_role("button", name="Yes, reinstate").click()
    expect(page.get_by_text("1 reinstated.")).to_be_visible()
    assert talker.api.http.get("/api/v1/me").status_code == 200


def test_the_prompt_that_was_sent_is_shown_and_downloaded_from_its_runs_page(operator: Visitor, talker: Talker) -> None:
    run = talker.api.send(talker.api.new_chat(), "Hello <b>you</b>. [[tps=1000 tokens=5]]")["run"]["id"]
    assert [event.type for event in talker.api.follow(run)][-1] == "completed"
    page = operator.open(f"/admin/inference/run/{run}/change/")
    page.get_by_role("link", name="Show the prompt that was sent").click()
    expect(page.get_by_text("The two agree")).to_be_visible()
    text = page.locator("[data-text]").inner_text()
    assert "<|im_start|>user\nHello <b>you</b>. [[tps=1000 tokens=5]]<|im_end|>\n<|im_start|>assistant" in text
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download the ids as JSON").click()
    told = json.loads(downloading.value.path().read_text())
    assert (told["run_id"], told["sha256"]) == (run, page.locator("[data-rebuilt]").inner_text())
    assert f"{len(told['ids']):,}" == page.locator("[data-tokens]").inner_text()
    page.get_by_role("link", name=f"{run} done").click()
    page.get_by_role("link", name="History").click()
    expect(page.get_by_role("cell", name="View content")).to_have_count(2)


def test_every_screen_keeps_to_the_content_security_policy(operator: Visitor, talker: Talker) -> None:
    page = operator.open("/admin/")
    links = page.locator("#content-main a[href^='/admin/']").evaluate_all(
        "(found) => found.map((link) => link.getAttribute('href'))"
    )
    lists = sorted({link for link in links if re.fullmatch(r"/admin/\w+/\w+/(add/)?", link)})
    assert len(lists) > 12
    for link in lists:
        page.goto(operator.url + link)
        expect(page.locator("#content")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_is_drawn_in_light_and_in_dark(operator: Visitor, talker: Talker, theme: str) -> None:
    run = talker.api.send(talker.api.new_chat(), "Hello. [[tps=1000 tokens=50]]")["run"]["id"]
    assert [event.type for event in talker.api.follow(run)][-1] == "completed"
    page = operator.open("/admin/")
    page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
    bar = page.locator(".hours rect.output").last
    expect(bar).to_be_visible()
    colours = page.evaluate(
        """() => [".hours rect.output", "body"].map((selector) => {
            const style = getComputedStyle([...document.querySelectorAll(selector)].at(-1));
            return selector === "body" ? style.backgroundColor : style.fill;
        })"""
    )
    assert colours[0] not in (colours[1], "rgb(0, 0, 0)"), "the bar is coloured by the style sheet"
    box = bar.bounding_box()
    assert box
    assert box["height"] > 0
    page.set_viewport_size({"width": 400, "height": 700})
    assert page.locator(".hours svg").evaluate("(svg) => svg.getBoundingClientRect().right <= innerWidth")
