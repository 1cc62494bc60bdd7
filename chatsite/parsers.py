"""Request bodies: JSON in UTF-8, of bounded size."""

import json
from collections.abc import Mapping
from typing import IO, Any

from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

# 400,000 characters, the longest message, each written as a pair of \uXXXX escapes (12 bytes), and room.
MAX_BODY_BYTES = 5_000_000


class BodyTooLarge(APIException):
    status_code = 413
    default_code = "too_large"
    default_detail = _("The request body is too large.")


class StrictJSONParser(BaseParser):
    """Whatever charset the request names, the body is UTF-8 (RFC 8259); NaN and Infinity are refused."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            body = stream.read(MAX_BODY_BYTES + 1)
        except ValueError as error:
            # Django closes the body of a client that went away while its request waited for a thread.
            raise ParseError("The client went away.") from error
        if len(body) > MAX_BODY_BYTES:
            raise BodyTooLarge
        try:
            return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        except RecursionError as error:
            raise ParseError("JSON parse error: nested too deeply.") from error
        except ValueError as error:
            raise ParseError(f"JSON parse error: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
