"""Settings of `make run` and of development: one machine, plain HTTP, embedded parts."""

from django.core.management.utils import get_random_secret_key

from chatsite.settings.base import *
from chatsite.settings.base import environment

DEBUG = environment.debug
# Sessions outlive a restart only under a key that does: the supervisor keeps one and hands it on.
SECRET_KEY = environment.secret_key or get_random_secret_key()
ALLOWED_HOSTS = list(environment.allowed_hosts) or list(
    dict.fromkeys([environment.host, "localhost", "127.0.0.1", "[::1]"])
)
# Static files straight from their sources, so that no collectstatic is needed before the first start.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
