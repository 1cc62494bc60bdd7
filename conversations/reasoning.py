"""Reasoning that a model writes before its answer, between tags: left out where only the answer is wanted."""

import re

_NAMES = "think|thinking|thought|reasoning|reflection"
# Between tags, or never closed.
_TAGGED = re.compile(rf"<({_NAMES})\b[^>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
# Some templates open it in the prompt, so that the text has only its end.
_ENDED = re.compile(rf"\A.*</(?:{_NAMES})\s*>", re.IGNORECASE | re.DOTALL)
_OPENING = re.compile(rf"<(?:{_NAMES})\b[^>]*>\s*\Z", re.IGNORECASE)


def is_open(prompt: str) -> bool:
    """Whether a prompt ends by opening the answer's reasoning."""
    return _OPENING.search(prompt) is not None


def left_out(text: str, *, opened: bool = False) -> str:
    """The text without its reasoning. `opened`: it begins amid that, so that without an end of it all of it is."""
    if opened and _ENDED.match(text) is None:
        return ""
    return _ENDED.sub("", _TAGGED.sub("", text)).strip()
