"""What browsers are told to refuse, and that the admin keeps to it."""

from html.parser import HTMLParser

import pytest
from django.test import Client
from django.utils import timezone

from chatsite.accounts import accounts, keys
from chatsite.accounts.models import Registration, User

POLICY = {
    "default-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "object-src 'none'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
}


class InlineCode(HTMLParser):
    """Collects what the policy would block: scripts and styles in the page itself, and foreign addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_data = values.get("type") == "application/json"
        if tag == "style" or (tag == "script" and "src" not in values and not is_data):
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.found.append(f"{tag} {name}={value}")
            loads = name == "src" or (tag == "link" and name == "href")
            if loads and value is not None and "//" in value:
                self.found.append(f"{tag} {name}={value}")


def inline_code(html: str) -> list[str]:
    parser = InlineCode()
    parser.feed(html)
    return parser.found


@pytest.mark.parametrize("path", ["/login/", "/healthz", "/api/v1/nothing", "/nothing", "/static/admin/css/base.css"])
@pytest.mark.django_db
def test_every_answer_carries_the_headers(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    if not path.startswith("/static/"):  # no document, hence nothing to frame or to run
        assert set(headers["Content-Security-Policy"].split("; ")) == POLICY
        assert headers["X-Frame-Options"] == "DENY"


def test_the_detector_finds_inline_code() -> None:
    html = "<p style='x'><script>1</script><style></style><a onclick='f()'><script src='https://e.example/x'>"
    assert len(inline_code(html)) == 5


@pytest.mark.django_db
def test_login_page_and_admin_need_no_inline_code(client: Client) -> None:
    assert inline_code(client.get("/login/").content.decode()) == []
    admin = accounts.open_account(email="root@example.org", password="x", administrator=True)
    key = keys.create(user=admin, name="laptop", now=timezone.now()).api_key
    Registration.objects.create()
    client.force_login(admin)
    assert client.get("/admin/conversations/sitebanner/").status_code == 302, "looking for it makes it"
    for path in (
        "/admin/",
        "/admin/accounts/user/",
        "/admin/accounts/user/add/",
        f"/admin/accounts/user/{admin.pk}/change/",
        f"/admin/accounts/user/{admin.pk}/password/",
        f"/admin/accounts/user/{admin.pk}/delete/",
        "/admin/accounts/apikey/",
        f"/admin/accounts/apikey/{key.pk}/change/",
        "/admin/accounts/invitation/",
        "/admin/accounts/invitation/add/",
        "/admin/accounts/registration/1/change/",
        "/admin/conversations/sitebanner/1/change/",
        "/admin/account/emailaddress/",
        "/admin/mfa/authenticator/",
    ):
        response = client.get(path)
        assert response.status_code == 200, path
        assert inline_code(response.content.decode()) == [], path
    assert User.objects.filter(pk=admin.pk).exists()
