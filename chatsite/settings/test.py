"""Settings of the test suite."""

import os
import tempfile
from pathlib import Path

from chatsite.settings.base import *
from chatsite.settings.base import DATABASES

SECRET_KEY = "a key for tests, which protects nothing and is fifty characters long"  # noqa: S105
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
# PBKDF2's 0.3 s a login is what production wants and a test suite does not.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Of this process alone: tests neither share counts nor reach the server of a site that runs beside them.
CACHES["default"]["LOCATION"] = ""
# A suite makes more requests a minute than anybody may. The tests of the limits set them.
ACCOUNT_RATE_LIMITS = dict.fromkeys(ACCOUNT_RATE_LIMITS, "")
API_REQUESTS_PER_MINUTE = API_REQUESTS_PER_MINUTE_PER_ADDRESS = 0
REGISTRATION = "open"
FIRST_ACCOUNT_IS_ADMINISTRATOR = False
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
if "sqlite" in DATABASES["default"]["ENGINE"]:
    # Threads of one test must not keep the next one's database open.
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    # A file: threads that share an in-memory database meet its table locks at once, whatever the timeout.
    DATABASES["default"]["TEST"] = {"NAME": str(Path(tempfile.gettempdir()) / f"chatsite-test-{os.getpid()}.sqlite3")}
