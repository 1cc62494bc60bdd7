"""Real browsers, and what the people in front of them do on every page.

A visitor keeps account of errors in the browser's console, violations of the content security policy among them, and
of requests to other hosts: the fixtures fail a test on any.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

# Two busy cores that also run the engine are slow, and waiting costs nothing when they are not.
PATIENCE_MS = 30_000
PASSWORD = "a lighthouse without a keeper"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# No services of the browser's own: they would be requests to other hosts.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Visitor:
    """A browser that shares nothing with others: opens pages and keeps account of what went wrong on them."""

    def __init__(self, *, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.troubles: list[str] = []

    def open(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"uncaught: {error}"))
        page.on("request", lambda request: self._request(request.url))
        page.goto(self.url + path)
        return page

    def forgive(self, words: str) -> None:
        """Strike troubles that the test provoked: those with these words, of which there must be some."""
        left = [trouble for trouble in self.troubles if words not in trouble]
        assert len(left) < len(self.troubles), f"nothing about {words!r} in {self.troubles}"
        self.troubles = left

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text}")

    def _request(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.troubles.append(f"request to {url}")


NewVisitor = Callable[[], Visitor]


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A running Chromium."""
    executable = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if executable is None:
        pytest.fail("no Chromium found; on Debian or Ubuntu: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()


def somebody() -> str:
    """An e-mail address that nobody has used."""
    return f"someone-{uuid4().hex[:12]}@example.org"


def sign_up(page: Page, email: str) -> None:
    """Open an account with PASSWORD on the sign-up page; the page then shows a new chat."""
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    expect(page.locator("[data-composer-input]")).to_be_visible()
    # Its script is at work then.
    page.wait_for_load_state()


def log_in(page: Page, email: str, password: str) -> None:
    page.get_by_label("E-mail").fill(email)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
