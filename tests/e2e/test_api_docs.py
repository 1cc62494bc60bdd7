"""The API's documentation page in a real browser, under the site's content security policy."""

from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.browsers import NewVisitor, Visitor
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def stranger(new_visitor: NewVisitor) -> Visitor:
    return new_visitor()


def operation(page: Page, method: str, path: str) -> Locator:
    block = page.locator(f".opblock-{method}").filter(has=page.locator(f'[data-path="{path}"]'))
    expect(block).to_have_count(1)
    return block


def test_every_operation_of_the_schema_is_shown(stranger: Visitor, stack: Stack) -> None:
    page = stranger.open("/api/docs")
    asked = stranger.context.request.get(f"{stranger.url}/api/schema", headers={"Accept": "application/json"})
    schema = asked.json()
    described = [(path, method) for path, methods in schema["paths"].items() for method in methods]
    assert len(described) > 10
    expect(page.locator(".opblock")).to_have_count(len(described))
    send = operation(page, "post", "/api/v1/chats/{chat_id}/messages")
    send.click()
    expect(send.get_by_role("link", name="chat_busy")).to_have_attribute("href", "/problems/chat_busy")
    page.goto(f"{stranger.url}/problems/chat_busy")
    expect(page.get_by_role("heading", name="chat_busy")).to_be_visible()


def test_requests_are_tried_out_with_the_visitors_session(stranger: Visitor, stack: Stack) -> None:
    email = f"reader-{uuid4().hex[:12]}@example.org"
    password = stack.manage("create_admin", email).split()[-1]
    page = stranger.open("/login/?next=/api/docs")
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    create = operation(page, "post", "/api/v1/chats")
    create.click()
    create.get_by_role("button", name="Try it out").click()
    create.locator("textarea.body-param__text").fill('{"title": "From the page"}')
    create.get_by_role("button", name="Execute").click()
    expect(create.locator(".live-responses-table tbody .response-col_status")).to_contain_text("201")
    expect(create.locator(".live-responses-table")).to_contain_text("From the page")
