"""Fixtures of the accounts' tests."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.core import mail
from django.core.cache import cache
from django.test import Client

from chatsite.accounts import accounts
from chatsite.accounts.models import User

PASSWORD = "correct horse battery staple"
OTHER_PASSWORD = "an entirely different phrase"


@pytest.fixture(autouse=True)
def _nothing_counted() -> Iterator[None]:
    """Codes that were used and attempts that were counted are remembered across tests otherwise."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def ada(db: None) -> User:
    return accounts.open_account(email="ada@example.org", password=PASSWORD)


@pytest.fixture
def bob(db: None) -> User:
    return accounts.open_account(email="bob@example.org", password=PASSWORD)


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def log_in(email: str, password: str = PASSWORD) -> Client:
    """A browser of its own that has just logged in on the page."""
    browser = Client()
    response = browser.post("/login/", {"login": email, "password": password})
    assert response.status_code == 302, response.content.decode()
    return browser


def is_logged_in(browser: Client) -> bool:
    """Whether the server still takes the browser's session for somebody's."""
    return browser.get("/account/").status_code == 200


def link_in_mail() -> str:
    """The path of the one link in the newest mail."""
    found = re.findall(r"http://testserver(/\S+)", str(mail.outbox[-1].body))
    assert len(found) == 1, mail.outbox[-1].body
    return str(found[0])
