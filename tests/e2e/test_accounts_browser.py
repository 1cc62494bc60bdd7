"""An account's life in a real browser, on the whole running site, with the mail that it prints."""

import base64
import hashlib
import hmac
import re
import struct
import time

import pytest
from playwright.sync_api import expect

from tests.e2e.browsers import PASSWORD, NewVisitor, log_in, sign_up, somebody
from tests.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

NEW_PASSWORD = "a keeper without a lighthouse"


def printed(stack: Stack) -> str:
    return (stack.state_dir / "serve.log").read_text(errors="replace")


def link_in_mail(stack: Stack, *, to: str, path: str) -> str:
    """The newest link below `path` in a mail to this address that the site printed."""
    found: list[str] = []

    def look() -> bool:
        mails = printed(stack).split("Subject: ")[1:]
        mine = [mail for mail in mails if f"To: {to}" in mail]
        found[:] = [link for mail in mine for link in re.findall(rf"http://\S+({re.escape(path)}\S+)", mail)]
        return bool(found)

    wait_for(look, what=f"a mail to {to} with a link to {path}")
    return found[-1]


def totp(secret: str) -> str:
    """What an authenticator app shows now (RFC 6238)."""
    digest = hmac.digest(base64.b32decode(secret), struct.pack(">Q", int(time.time()) // 30), hashlib.sha1)
    offset = digest[-1] & 15
    return f"{(struct.unpack('>I', digest[offset : offset + 4])[0] & 0x7FFFFFFF) % 1_000_000:06}"


def test_from_signing_up_to_logging_another_browser_out(stack: Stack, new_visitor: NewVisitor) -> None:
    email = somebody()
    here = new_visitor()

    page = here.open("/login/")
    page.get_by_role("link", name="Open an account").click()
    page.get_by_label("Name").fill("Someone")
    sign_up(page, email)
    page.get_by_role("button", name="Log out").click()

    page.get_by_role("link", name="Forgot your password?").click()
    page.get_by_label("E-mail").fill(email)
    page.get_by_role("button", name="Send the link").click()
    expect(page.get_by_role("heading", name="Look into your mail")).to_be_visible()
    page.goto(here.url + link_in_mail(stack, to=email, path="/password/reset/"))
    page.get_by_label("New Password", exact=True).fill(NEW_PASSWORD)
    page.get_by_label("New Password (again)").fill(NEW_PASSWORD)
    page.get_by_role("button", name="Save the password").click()
    page.get_by_role("link", name="Log in").click()
    log_in(page, email, PASSWORD)
    expect(page.get_by_role("alert")).to_contain_text("do not match")
    log_in(page, email, NEW_PASSWORD)
    expect(page.locator("[data-composer-input]")).to_be_visible()

    page.get_by_role("link", name=email).click()
    expect(page.get_by_role("heading", name="Your account")).to_be_visible()
    page.get_by_role("link", name="Second step").click()
    page.get_by_role("link", name="Set up an authenticator app").click()
    page.get_by_label("Password").fill(NEW_PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    qr = page.get_by_role("img", name="QR code")
    expect(qr).to_be_visible()
    assert qr.evaluate("(image) => image.complete && image.naturalWidth > 0"), "the policy lets the code be seen"
    secret = page.locator("[data-totp-secret]").inner_text()
    page.get_by_label("Code", exact=True).fill(totp(secret))
    page.get_by_role("button", name="Turn it on").click()
    expect(page.locator("[data-recovery-codes] li")).to_have_count(10)

    elsewhere = new_visitor()
    other = elsewhere.open("/")
    log_in(other, email, NEW_PASSWORD)
    other.get_by_label("Code", exact=True).fill(totp(secret))
    other.get_by_role("button", name="Log in").click()
    expect(other.locator("[data-composer-input]")).to_be_visible()

    page.goto(here.url + "/account/")
    expect(page.locator("[data-session]")).to_have_count(2)
    page.locator("[data-session]:not([data-current])").get_by_role("button", name="Log out").click()
    expect(page.locator("[data-session]")).to_have_count(1)
    other.reload()
    expect(other).to_have_url(re.compile(r"/login/"))
    page.reload()
    expect(page.get_by_role("heading", name="Your account")).to_be_visible()


def test_a_key_made_on_the_page_works_until_it_is_revoked_there(stack: Stack, new_visitor: NewVisitor) -> None:
    email = somebody()
    visitor = new_visitor()
    page = visitor.open("/signup/")
    sign_up(page, email)
    page.goto(visitor.url + "/account/")
    page.get_by_label("What is it for?").fill("a script")
    page.get_by_role("button", name="Make a key").click()
    key = page.locator("[data-new-key]").inner_text()

    def status() -> int:
        response = visitor.context.request.get(
            f"{visitor.url}/api/v1/me", headers={"Authorization": f"Bearer {key}", "Cookie": ""}
        )
        return response.status

    assert status() == 200
    page.get_by_role("button", name="Revoke a script").click()
    expect(page.locator("[data-api-key]")).to_have_count(0)
    assert status() == 401


def test_the_account_page_fits_a_phone(stack: Stack, new_visitor: NewVisitor) -> None:
    visitor = new_visitor()
    page = visitor.open("/signup/")
    page.set_viewport_size({"width": 360, "height": 640})
    sign_up(page, somebody())
    page.goto(visitor.url + "/account/")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
