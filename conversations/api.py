"""Conversations as the composition root sees them."""

from conversations.sse import stream_http

__all__ = ["stream_http"]
