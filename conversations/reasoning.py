"""Reasoning that a model writes before its answer, between tags: left out where only the answer is wanted."""

import re
from collections.abc import Iterable, Sequence

from inference.contracts import ChatTokenizer

# Tokens for what a model thinks before it does a job: thrown away, so no more than a part of a small window.
_MOST = 512
_PART = 4
# Tokens of a prompt's end that may open it.
_TAIL = 16
_NAMES = "think|thinking|thought|reasoning|reflection"
# Between tags, or never closed.
_TAGGED = re.compile(rf"<({_NAMES})\b[^>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
# Some templates open it in the prompt, so that the text has only its end.
_ENDED = re.compile(rf"\A.*</(?:{_NAMES})\s*>", re.IGNORECASE | re.DOTALL)
_OPENING = re.compile(rf"<(?:{_NAMES})\b[^>]*>\s*\Z", re.IGNORECASE)


def is_open(prompt_ids: Sequence[int], *, tokenizer: ChatTokenizer) -> bool:
    """Whether a prompt ends by opening the answer's reasoning."""
    return _OPENING.search(tokenizer.spell(prompt_ids[-_TAIL:])) is not None


def is_shown(text: str) -> bool:
    """Whether an answer begins with reasoning."""
    return _TAGGED.match(text.lstrip()) is not None or _ENDED.match(text) is not None


def room(prompt_ids: Sequence[int], *, answers: Iterable[str], window: int, tokenizer: ChatTokenizer) -> int:
    """Tokens to leave for what a model thinks before it does a job.

    None unless the prompt opens that, or some of the chat's answers begin with it.
    """
    thinks = is_open(prompt_ids, tokenizer=tokenizer) or any(map(is_shown, answers))
    return min(_MOST, window // _PART) if thinks else 0


def left_out(text: str, *, opened: bool = False) -> str:
    """The text without its reasoning. `opened`: it begins amid that, so that without an end of it all of it is."""
    if opened and _ENDED.match(text) is None:
        return ""
    return _ENDED.sub("", _TAGGED.sub("", text)).strip()
