"""Settings of a public installation: HTTPS only, secrets from the environment."""

from django.core.exceptions import ImproperlyConfigured

from chatsite import logs
from chatsite.settings.base import *
from chatsite.settings.base import environment

if environment.secret_key is None:
    raise ImproperlyConfigured("Set SECRET_KEY to a long random value that stays the same between restarts.")
if not environment.allowed_hosts:
    raise ImproperlyConfigured("Set ALLOWED_HOSTS to the host names served, separated by commas.")
SECRET_KEY = environment.secret_key
REGISTRATION = environment.registration or "invitation"
# Whoever comes first to a public site is a stranger: `manage.py create_admin` makes the administrator.
FIRST_ACCOUNT_IS_ADMINISTRATOR = False
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https"

SECURE_SSL_REDIRECT = True
# Probes and scrapers come from inside, over plain HTTP.
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]
SECURE_HSTS_SECONDS = environment.hsts_seconds
# An hour, not a year, until the operator is sure: a browser cannot be told to forget it.
SECURE_HSTS_INCLUDE_SUBDOMAINS = environment.hsts_subdomains
SECURE_HSTS_PRELOAD = environment.hsts_subdomains
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
if environment.behind_tls_proxy:
    # Only a proxy that always sets this header may be trusted with it: clients can send it too.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

STATIC_ROOT = BASE_DIR / "staticfiles"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "chatsite.static_storage.ModuleStorage"},
}
LOGGING = logs.logging_config(json=environment.log_format != "console", level=environment.log_level)
