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
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = True
if "sqlite" in DATABASES["default"]["ENGINE"]:
    # A file: threads that share an in-memory database meet its table locks at once, whatever the timeout.
    DATABASES["default"]["TEST"] = {"NAME": str(Path(tempfile.gettempdir()) / f"chatsite-test-{os.getpid()}.sqlite3")}
