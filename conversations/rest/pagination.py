"""Cursor paging with checked limits and cursors."""

import base64
import contextlib
from datetime import UTC
from typing import Any
from urllib.parse import urlencode

from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from conversations.errors import InvalidRequest

DEFAULT_LIMIT = 30
MAX_LIMIT = 100


class CheckedCursorPagination(CursorPagination):
    """`limit` from 1 to 100 (default 30) and an opaque `cursor`; anything else is refused, not guessed."""

    page_size = DEFAULT_LIMIT
    cursor_query_param = "cursor"
    page_size_query_param = "limit"
    max_page_size = MAX_LIMIT

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get("limit")
        if text is None:
            return DEFAULT_LIMIT
        if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MAX_LIMIT):
            raise InvalidRequest(field="limit", reason=f"must be a whole number from 1 to {MAX_LIMIT}")
        return int(text)

    def decode_cursor(self, request: Request) -> Any:
        """The cursor asked for, None for the first page. The stock class lets the database trip over a bad position."""
        text = request.query_params.get(self.cursor_query_param)
        if not text:
            return None
        cursor: Any = None
        with contextlib.suppress(NotFound):
            cursor = super().decode_cursor(request)
        if cursor is None or text != _encoded(cursor) or not self.is_position(cursor.position):
            raise InvalidRequest(field="cursor", reason="is not one that a list gave out")
        return cursor

    def is_position(self, text: str | None) -> bool:
        """Whether a list can have given out this value of its first ordering field."""
        raise NotImplementedError


class ChatPagination(CheckedCursorPagination):
    ordering = ("-last_active_at", "-id")

    def is_position(self, text: str | None) -> bool:
        try:
            at = parse_datetime(text or "")
        except ValueError:
            return False
        return text is None or (at is not None and at.tzinfo == UTC and str(at) == text)


class MessagePagination(CheckedCursorPagination):
    ordering = ("-seq",)

    def is_position(self, text: str | None) -> bool:
        return text is None or (text.isascii() and text.isdigit() and len(text) <= 9)


def _encoded(cursor: Any) -> str:
    """The cursor as the stock class writes it."""
    parts = {"o": str(cursor.offset or ""), "r": "1" if cursor.reverse else "", "p": cursor.position or ""}
    query = urlencode({name: value for name, value in parts.items() if value})
    return base64.b64encode(query.encode("ascii")).decode("ascii")
