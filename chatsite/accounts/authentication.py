"""How an API request proves whose it is: a personal key or an access token, as bearer token."""

from typing import Any

from allauth.headless.tokens.strategies.jwt import internal as access_tokens
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from chatsite.accounts import devices, keys, throttling
from chatsite.accounts.errors import InvalidApiKey
from chatsite.accounts.models import ApiKey, User

# Ours have some 600 characters. What is longer is refused before anybody decodes it.
_LONGEST_TOKEN = 4_096


class _Bearer(BaseAuthentication):
    def token(self, request: Request) -> str | None:
        """The bearer token that the request brings; None without that scheme."""
        scheme, _, token = get_authorization_header(request).partition(b" ")
        return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="api"'


class ApiKeyAuthentication(_Bearer):
    """`Authorization: Bearer sk-…`. Without such a key the next authenticator decides."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        secret = self.token(request)
        if secret is None or not secret.startswith(keys.PREFIX):
            return None
        try:
            api_key = keys.authenticate(secret=secret, now=timezone.now())
        except InvalidApiKey as error:
            throttling.count_refusal(request._request)
            raise AuthenticationFailed("The API key is not valid.", code="invalid_api_key") from error
        return api_key.user, api_key


class AccessTokenAuthentication(_Bearer):
    """`Authorization: Bearer <access token>`, from logging in at /api/auth/. Refuses every bearer it does not know."""

    def authenticate(self, request: Request) -> tuple[User, dict[str, Any]] | None:
        token = self.token(request)
        if token is None:
            return None
        valid = None
        if token.isascii() and len(token) <= _LONGEST_TOKEN:
            # Also finds that the session it belongs to has ended, or that its user is suspended.
            valid = access_tokens.validate_access_token(token)
        if valid is None:
            throttling.count_refusal(request._request)
            raise AuthenticationFailed("The access token is not valid, or no longer.", code="invalid_token")
        devices.note_seen(session_key=valid.session.session_key, now=timezone.now())
        return valid.user, valid.payload
