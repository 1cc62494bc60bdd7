"""Secrets of second factors: what the database holds of them."""

import base64
import hashlib
import secrets

import structlog
from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

log = structlog.get_logger(__name__)


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth ships no types
    """Encrypts under SECRET_KEY: a copy of the database alone gives nobody's codes away.

    A key that moved to SECRET_KEY_FALLBACKS still reads. One that is lost locks second factors out; administrators
    can delete them in the admin.
    """

    def encrypt(self, text: str) -> str:
        return _cipher().encrypt(text.encode()).decode("ascii")

    def decrypt(self, encrypted_text: str) -> str:
        try:
            return _cipher().decrypt(encrypted_text.encode("ascii")).decode()
        except InvalidToken:
            log.error("second_factor_unreadable", reason="it was stored under another SECRET_KEY")
            # Nothing that anybody could know: no code fits it.
            return base64.b32encode(secrets.token_bytes(20)).decode("ascii")


def _cipher() -> MultiFernet:
    site_keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    # The key is long and random: one hash derives another from it. The label keeps it apart from other uses.
    keys = (hashlib.sha256(b"chatsite second factors:" + str(secret).encode()).digest() for secret in site_keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in keys])
