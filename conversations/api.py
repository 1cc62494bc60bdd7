"""Conversations as the composition root sees them."""

from conversations.owners import awaits_answers, content_of, erase, stop_answers
from conversations.sse import stream_http

__all__ = ["awaits_answers", "content_of", "erase", "stop_answers", "stream_http"]
