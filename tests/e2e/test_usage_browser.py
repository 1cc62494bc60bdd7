"""What an answer cost and how much is left, in a real browser, on the whole site with the scripted engine."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.browsers import Visitor
from tests.e2e.test_browser import answers, ask

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

QUICK = "Tell me of the lighthouse [[tokens=20 tps=200 prefill_ms=0]]"
LONG = "Tell me of the storm [[tokens=900 tps=20 prefill_ms=0]]"
BREAKS = "Tell me of the keeper [[tokens=60 tps=200 fail_after=20 prefill_ms=0]]"


def opener(message: Locator) -> Locator:
    return message.get_by_role("button", name="Details")


def panel(message: Locator) -> Locator:
    return message.locator("[data-details-panel]")


def detail(message: Locator, term: str) -> str:
    row = panel(message).locator("dl > div").filter(has=message.page.get_by_text(term, exact=True))
    return row.locator("dd").inner_text()


def ended(message: Locator, state: str) -> None:
    expect(message).to_have_attribute("data-state", state)


def test_an_answers_details_are_opened_and_closed_by_keyboard(page: Page) -> None:
    answer = ask(page, QUICK)
    ended(answer, "complete")
    page.locator("[data-composer-input]").focus()
    page.keyboard.press("Shift+Tab")
    expect(opener(answer)).to_be_focused()
    expect(opener(answer)).to_have_attribute("aria-expanded", "false")
    with page.expect_response(re.compile(r"/api/v1/runs/[^/]+$")) as response:
        page.keyboard.press("Enter")
    run = response.value.json()
    expect(panel(answer).locator("dl")).to_be_visible()
    expect(opener(answer)).to_have_attribute("aria-expanded", "true")
    assert run["charged"] == run["usage"]["prompt"] + run["usage"]["output"]
    assert detail(answer, "Answer") == "20 tokens"
    assert detail(answer, "Charged") == f"{run['charged']:,} tokens"
    assert detail(answer, "Waited for a worker").endswith("ms")
    assert detail(answer, "Attempts") == "1"
    page.keyboard.press("Enter")
    expect(panel(answer)).to_be_hidden()
    expect(opener(answer)).to_be_focused()


def test_an_answer_has_details_only_once_it_has_ended(page: Page) -> None:
    answer = ask(page, LONG)
    ended(answer, "streaming")
    expect(opener(answer)).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    ended(answer, "stopped")
    expect(opener(answer)).to_be_visible()


def test_details_close_when_the_answer_is_given_anew_and_then_count_all_attempts(page: Page) -> None:
    answer = ask(page, BREAKS)
    ended(answer, "failed")
    opener(answer).click()
    expect(panel(answer).locator("dl")).to_be_visible()
    once = detail(answer, "Charged")
    with page.expect_response(re.compile("/retry$")):
        answer.get_by_role("button", name="Retry").click()
    expect(panel(answer)).to_be_hidden()
    expect(page.locator("[data-composer][data-activity=idle]")).to_be_visible()
    ended(answer, "failed")
    opener(answer).click()
    expect(panel(answer).locator("dl")).to_be_visible()
    assert detail(answer, "Attempts") == "2"
    assert int(detail(answer, "Charged").split()[0]) == 2 * int(once.split()[0])


def test_details_that_cannot_be_had_say_so_and_come_with_the_next_opening(page: Page, visitor: Visitor) -> None:
    answer = ask(page, QUICK)
    ended(answer, "complete")
    page.reload()
    answer = answers(page).last
    page.route(re.compile(r"/api/v1/runs/[^/]+$"), lambda route: route.abort())
    opener(answer).click()
    expect(panel(answer)).to_contain_text("could not be loaded")
    visitor.forgive("net::ERR_FAILED")
    page.unroute_all()
    opener(answer).click()
    opener(answer).click()
    expect(panel(answer).locator("dl")).to_be_visible()


def test_the_account_page_shows_what_is_left_and_what_was_used(page: Page, visitor: Visitor) -> None:
    ended(ask(page, QUICK), "complete")
    page.goto(visitor.url + "/account/")
    usage = page.get_by_role("region", name="Usage")
    expect(usage.locator("[data-plan]")).to_have_text("Free")
    bar = usage.get_by_role("meter", name="Tokens left")
    expect(bar).to_be_visible()
    left, capacity = (int(bar.get_attribute(f"aria-value{name}") or "") for name in ("now", "max"))
    expect(usage.locator("[data-budget]")).to_have_text(f"{left:,} of {capacity:,}")
    assert 0 < left <= capacity == 1_000_000
    whole, part = bar.bounding_box(), bar.locator("rect").bounding_box()
    assert whole is not None
    assert part is not None
    assert part["height"] > 0.8 * whole["height"]
    assert part["width"] == pytest.approx(whole["width"] * left / capacity, abs=4)
    used = int(usage.locator("[data-totals] tbody tr").nth(1).locator("td").first.inner_text().replace(",", ""))
    assert used > 20
    expect(usage.get_by_role("img", name=re.compile("Tokens charged by day"))).to_be_visible()
    usage.get_by_text("The same as a table").click()
    expect(usage.locator("[data-days] tbody tr")).to_have_count(30)
    expect(usage.locator("[data-days]")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_usage_section_fits_a_phone(page: Page, visitor: Visitor, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": 360, "height": 640})
    page.goto(visitor.url + "/account/")
    page.get_by_text("The same as a table").click()
    expect(page.locator("[data-days]")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    # The bars stand out against what is behind them, in either scheme.
    behind, bar = page.evaluate(
        "() => [getComputedStyle(document.querySelector('[data-usage]')).backgroundColor,"
        " getComputedStyle(document.querySelector('.key .output')).borderInlineStartColor]"
    )
    assert behind != bar
