"""How a mail URL becomes Django's EMAIL settings."""

from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

# Scheme → the port that goes without saying: plain, STARTTLS, TLS from the first byte.
PORTS = {"smtp": 25, "smtp+tls": 587, "smtp+ssl": 465}
# Seconds. Mail is sent while somebody waits for the page.
TIMEOUT = 10


def configure(*, url: str | None) -> dict[str, Any]:
    """The settings that `url` stands for; without one, mail is written to the console.

    Raises ImproperlyConfigured, naming EMAIL_URL and never quoting it: it may hold a password.
    """
    if url is None:
        return {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in PORTS:
        raise ImproperlyConfigured("EMAIL_URL must begin with smtp://, smtp+tls:// or smtp+ssl://.")
    try:
        parsed = dict(environ.Env.email_url_config(url))
    except Exception as error:
        raise ImproperlyConfigured("EMAIL_URL cannot be read as a mail URL.") from error
    if not parsed.get("EMAIL_HOST"):
        raise ImproperlyConfigured("EMAIL_URL names no mail server.")
    return {
        "EMAIL_BACKEND": parsed["EMAIL_BACKEND"],
        "EMAIL_HOST": parsed["EMAIL_HOST"],
        "EMAIL_PORT": parsed.get("EMAIL_PORT") or PORTS[scheme],
        "EMAIL_HOST_USER": parsed.get("EMAIL_HOST_USER") or "",
        "EMAIL_HOST_PASSWORD": parsed.get("EMAIL_HOST_PASSWORD") or "",
        "EMAIL_USE_TLS": scheme == "smtp+tls",
        "EMAIL_USE_SSL": scheme == "smtp+ssl",
        "EMAIL_TIMEOUT": TIMEOUT,
    }
