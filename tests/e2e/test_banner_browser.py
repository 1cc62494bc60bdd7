"""The banner and a maintenance in a real browser, decided by commands on the running site; and whose unsent text is."""

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsers import PASSWORD, NewVisitor, Visitor, log_in, sign_up, somebody
from tests.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

TEXT = "Back at noon: the model is being <replaced>."
QUESTION = "What is the capital of Italy?"
ANSWER_MS = 90_000
Command = Callable[..., None]


@pytest.fixture
def maintenance(stack: Stack) -> Iterator[Command]:
    """`manage.py maintenance …`; there is neither one nor a banner afterwards."""

    def command(*arguments: str) -> None:
        stack.manage("maintenance", *arguments)

    yield command
    command("off")


def known(visitor: Visitor, *, maintenance: bool) -> None:
    """Return once the site's web process has heard of the command."""
    status = f"{visitor.url}/api/v1/status"
    wait_for(
        lambda: visitor.context.request.get(status).json()["maintenance"] is maintenance, what="known", seconds=2.0
    )


def send(page: Page, text: str) -> None:
    page.locator("[data-composer-input]").fill(text)
    page.locator("[data-composer-input]").press("Enter")


def refuse(visitor: Visitor, page: Page, text: str) -> None:
    """Send during a maintenance: it is refused, and the text is in the composer again."""
    send(page, text)
    expect(page.locator("[data-alert]")).to_be_visible()
    expect(page.locator("[data-alert-detail]")).to_contain_text(TEXT)
    expect(page.locator("[data-composer-input]")).to_have_value(text)
    expect(page.locator("[data-message]")).to_have_count(0)
    visitor.forgive("status of 503")


def unsent(page: Page) -> int:
    """How many things the tab remembers."""
    count: int = page.evaluate("sessionStorage.length")
    return count


def test_a_send_during_maintenance_tells_why_and_loses_nothing(new_visitor: NewVisitor, maintenance: Command) -> None:
    visitor = new_visitor()
    page = visitor.open("/signup/")
    sign_up(page, somebody())
    banner = page.locator("[data-banner]")
    expect(banner).to_be_hidden()

    maintenance("on", "--text", TEXT, "--until", "+20m")
    known(visitor, maintenance=True)
    refuse(visitor, page, QUESTION)
    expect(page.locator("[data-alert-detail]")).to_contain_text("Try again in 20 min.")
    expect(banner).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="Expected to be over at")).to_contain_text(TEXT)

    page.reload()
    expect(banner).to_contain_text(TEXT)
    expect(page.locator("[data-composer-input]")).to_have_value(QUESTION)
    expect(page.locator("[data-message]")).to_have_count(0)

    maintenance("off")
    known(visitor, maintenance=False)
    page.locator("[data-send]").click()
    expect(page.locator("[data-message][data-role=assistant]")).to_have_attribute(
        "data-state", "complete", timeout=ANSWER_MS
    )
    expect(banner).to_be_hidden()
    expect(page.locator("[data-composer-input]")).to_have_value("")


def test_an_answer_under_way_and_stop_go_on_through_a_maintenance(
    new_visitor: NewVisitor, maintenance: Command
) -> None:
    visitor = new_visitor()
    page = visitor.open("/signup/")
    sign_up(page, somebody())
    send(page, "Write a very long story about a lighthouse keeper, in many chapters. [[tokens=900 tps=40]]")
    answer = page.locator("[data-message][data-role=assistant]")
    expect(answer.locator("[data-text]")).not_to_be_empty(timeout=ANSWER_MS)
    maintenance("on")
    known(visitor, maintenance=True)
    page.reload()
    expect(answer).to_have_attribute("data-state", "streaming")
    page.locator("[data-stop]").click()
    expect(answer).to_have_attribute("data-state", "stopped")


def test_pages_of_strangers_and_accounts_show_the_banner(new_visitor: NewVisitor, maintenance: Command) -> None:
    maintenance("off", "--text", TEXT)
    visitor = new_visitor()
    page = visitor.open("/signup/")
    wait_for(lambda: bool(page.reload()) and page.get_by_text(TEXT).is_visible(), what="the banner is there")
    for width in (1100, 360):
        page.set_viewport_size({"width": width, "height": 640})
        for path in ("/login/", "/signup/"):
            page.goto(visitor.url + path)
            expect(page.get_by_role("status").filter(has_text=TEXT)).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") == width
    sign_up(page, somebody())
    for path in ("/", "/account/"):
        page.goto(visitor.url + path)
        expect(page.get_by_role("status").filter(has_text=TEXT)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_logging_out_takes_an_unsent_text_along(new_visitor: NewVisitor, maintenance: Command) -> None:
    maintenance("on", "--text", TEXT)
    visitor = new_visitor()
    page = visitor.open("/signup/")
    email = somebody()
    sign_up(page, email)
    known(visitor, maintenance=True)
    refuse(visitor, page, QUESTION)
    assert unsent(page) == 1
    chat = urlsplit(page.url).path
    page.goto(visitor.url + "/account/")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    assert unsent(page) == 0
    log_in(page, email, PASSWORD)
    page.goto(visitor.url + chat)
    expect(page.locator("[data-composer-input]")).to_have_value("")


def test_another_account_on_the_same_tab_finds_no_unsent_text(new_visitor: NewVisitor, maintenance: Command) -> None:
    maintenance("on", "--text", TEXT)
    visitor = new_visitor()
    page = visitor.open("/signup/")
    sign_up(page, somebody())
    known(visitor, maintenance=True)
    refuse(visitor, page, QUESTION)
    # As when a login runs out.
    visitor.context.clear_cookies()
    page.goto(visitor.url + "/signup/")
    assert unsent(page) == 1
    sign_up(page, somebody())
    expect(page.locator("[data-composer-input]")).to_have_value("")
    assert unsent(page) == 0
