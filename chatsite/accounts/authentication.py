"""How an API request proves whose it is: a personal key as bearer token."""

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from chatsite.accounts import keys
from chatsite.accounts.errors import InvalidApiKey
from chatsite.accounts.models import ApiKey, User


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sk-…`. Without a bearer token the next authenticator decides."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _, token = get_authorization_header(request).partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        try:
            api_key = keys.authenticate(secret=token.strip().decode("latin-1"), now=timezone.now())
        except InvalidApiKey as error:
            raise AuthenticationFailed("The API key is not valid.", code="invalid_api_key") from error
        return api_key.user, api_key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="api"'
