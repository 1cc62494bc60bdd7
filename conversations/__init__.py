"""Chats, their messages and turns, and the ways people reach them: REST API, pages and event streams."""
