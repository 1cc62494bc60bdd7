"""Conversations as the composition root sees them."""

from conversations.banner import begin_maintenance, end_maintenance
from conversations.banner import current as current_banner
from conversations.owners import awaits_answers, chats_page, erase, messages_page, stop_answers
from conversations.sse import stream_http

__all__ = [
    "awaits_answers",
    "begin_maintenance",
    "chats_page",
    "current_banner",
    "end_maintenance",
    "erase",
    "messages_page",
    "stop_answers",
    "stream_http",
]
