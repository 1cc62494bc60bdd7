"""One running site, with the real engine, for all tests of a process; browsers for those that look at its pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.client import Api
from tests.e2e import browsers
from tests.e2e.browsers import NewVisitor, Visitor, log_in
from tests.stack import Stack, running

VISITOR = "visitor@example.org"


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with running(engine="vllm") as site:
        yield site


@pytest.fixture(scope="session")
def api(stack: Stack) -> Iterator[Api]:
    with Api(url=stack.url, key=stack.manage("create_api_key", "somebody@example.com")) as client:
        yield client


# Of a module, not of the session: it keeps an event loop running, beside which asynchronous tests cannot start theirs.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browsers.launched() as browser:
        yield browser


@pytest.fixture
def new_visitor(chromium: Browser, stack: Stack) -> Iterator[NewVisitor]:
    """Browsers that share nothing; the test fails on what went wrong in any of them."""
    visitors: list[Visitor] = []

    def new() -> Visitor:
        context = chromium.new_context(viewport={"width": 1100, "height": 700})
        visitors.append(Visitor(context=context, url=stack.url.rstrip("/")))
        return visitors[-1]

    yield new
    for visitor in visitors:
        visitor.context.close()
    assert [visitor.troubles for visitor in visitors] == [[] for _ in visitors]


@pytest.fixture(scope="module")
def scripted() -> Iterator[Stack]:
    """A site of the module's own, with the scripted engine."""
    with running(engine="scripted") as site:
        yield site


@pytest.fixture(scope="module")
def password(scripted: Stack) -> str:
    return scripted.manage("create_admin", VISITOR).split()[-1]


@pytest.fixture
def visitor(chromium: Browser, scripted: Stack, password: str) -> Iterator[Visitor]:
    """Somebody logged in to the module's site; the test fails on what went wrong in the browser."""
    context = chromium.new_context(viewport={"width": 1000, "height": 800})
    visitor = Visitor(context=context, url=scripted.url.rstrip("/"))
    page = visitor.open("/login/")
    log_in(page, VISITOR, password)
    expect(page.locator("[data-composer-input]")).to_be_visible()
    page.close()
    yield visitor
    context.close()
    assert visitor.troubles == []


@pytest.fixture
def page(visitor: Visitor) -> Page:
    return visitor.open("/")
