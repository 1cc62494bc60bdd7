"""Django's ASGI handler, made to refuse what it would trip over before any view or middleware runs."""

from tempfile import SpooledTemporaryFile
from typing import Any

from asgiref.typing import HTTPScope
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.utils.http import parse_header_parameters

from chatsite import problems


class Utf8Request(ASGIRequest):
    """A request whose address and body are UTF-8, whatever its Content-Type says.

    Django decodes both with the charset that the client names. Some that Python knows decode no text
    (`rot13`, `hex`, `undefined`), and the error comes before anything can turn it into an answer.
    """

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        self.content_type, self.content_params = parse_header_parameters(meta.get("CONTENT_TYPE", ""))


class Handler(ASGIHandler):
    request_class = Utf8Request

    def create_request(
        self, scope: HTTPScope, body_file: SpooledTemporaryFile[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponse]:
        """A query string that is not UTF-8, a header parameter in an unknown encoding: 400."""
        try:
            return self.request_class(scope, body_file), None
        except ValueError:
            unread = HttpRequest()
            unread.path_info = scope["path"]
            return None, problems.bad_request(unread, BadRequest())
