"""Mail URLs."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from chatsite import mail


def test_without_a_url_mail_goes_to_the_console() -> None:
    assert mail.configure(url=None) == {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}


@pytest.mark.parametrize(
    ("url", "port", "starttls", "tls"),
    [
        ("smtp://mail.example", 25, False, False),
        ("smtp+tls://mail.example", 587, True, False),
        ("smtp+ssl://mail.example", 465, False, True),
        ("smtp+tls://mail.example:2525", 2525, True, False),
    ],
)
def test_the_scheme_says_how_the_connection_is_protected(url: str, port: int, starttls: bool, tls: bool) -> None:
    settings = mail.configure(url=url)
    assert settings["EMAIL_HOST"] == "mail.example"
    assert (settings["EMAIL_PORT"], settings["EMAIL_USE_TLS"], settings["EMAIL_USE_SSL"]) == (port, starttls, tls)
    assert settings["EMAIL_HOST_USER"] == settings["EMAIL_HOST_PASSWORD"] == ""


def test_user_and_password_may_hold_what_a_url_must_escape() -> None:
    settings = mail.configure(url="smtp+tls://chat%40a.example:p%2Fw%40d@mail.example")
    assert (settings["EMAIL_HOST_USER"], settings["EMAIL_HOST_PASSWORD"]) == ("chat@a.example", "p/w@d")


@pytest.mark.parametrize(
    "url", ["", "mail.example", "http://secret@mail.example", "smtps://secret@h", "smtp://", "smtp://h:secret"]
)
def test_another_url_is_refused_by_the_variables_name_and_not_quoted(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="EMAIL_URL") as refusal:
        mail.configure(url=url)
    assert "secret" not in str(refusal.value)
