"""Reasoning that a model writes before its answer, between tags: left out where only the answer is wanted."""

import re

_NAMES = "think|thinking|thought|reasoning|reflection"
# Between tags, or never closed.
_TAGGED = re.compile(rf"<({_NAMES})\b[^>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
# Some templates open it in the prompt, so that the text has only its end.
_ENDED = re.compile(rf"\A.*</(?:{_NAMES})\s*>", re.IGNORECASE | re.DOTALL)


def left_out(text: str) -> str:
    """The text without its reasoning."""
    return _ENDED.sub("", _TAGGED.sub("", text)).strip()
