"""Cursor paging with checked limits."""

from typing import Any

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
        try:
            return super().decode_cursor(request)
        except NotFound as error:
            raise InvalidRequest(field="cursor", reason="is not one that a list gave out") from error


class ChatPagination(CheckedCursorPagination):
    ordering = ("-last_active_at", "-id")


class MessagePagination(CheckedCursorPagination):
    ordering = ("-seq",)
