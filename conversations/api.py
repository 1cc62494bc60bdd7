"""Conversations as the composition root sees them."""

from conversations.sse import stream_http as stream_http
