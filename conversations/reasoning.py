"""Reasoning that a model writes before its answer, between tags: left out where only the answer is wanted."""

import re
from collections.abc import Iterable, Sequence

from conversations.context import PastMessage
from inference.contracts import ChatTokenizer

# Tokens for what a model thinks before it does a job: thrown away, so no more than a part of a small window.
_MOST = 512
_PART = 4
# Tokens of a prompt's end that may open it.
_TAIL = 16
_NAMES = "think|thinking|thought|reasoning|reflection"
_OPENING = re.compile(rf"<(?:{_NAMES})(?=[\s>])[^<>]*>\s*\Z", re.IGNORECASE)
# Of an answer that begins with it, ended or not. Anywhere else, a tag is something that is talked about.
_FIRST = re.compile(rf"\A(?:\s*<({_NAMES})(?=[\s>])[^<>]*>.*?(?:</\1\s*>|\Z))+", re.IGNORECASE | re.DOTALL)
_THOUGHTS = re.compile(r"\A\s*<think>")
_THOUGHTS_END = re.compile(r"</think>")
_END = re.compile(rf"</(?:{_NAMES})\s*>", re.IGNORECASE)


def is_open(prompt_ids: Sequence[int], *, tokenizer: ChatTokenizer) -> bool:
    """Whether a prompt ends by opening the answer's reasoning, so that the answer has only its end."""
    return _OPENING.search(tokenizer.spell(prompt_ids[-_TAIL:])) is not None


def left_out(text: str, *, opened: bool = False) -> str:
    """What a model wrote without its reasoning. `opened`: it begins amid that, so that without an end of it all is."""
    if not opened:
        return _FIRST.sub("", text).strip()
    end = _END.search(text)
    return "" if end is None else left_out(text[end.end() :])


def is_ended(text: str) -> bool:
    """Whether reasoning ends in it."""
    return _END.search(text) is not None


def part_left(text: str, *, opened: bool) -> float:
    """How much of what a model wrote is no reasoning, from 0 to 1, by its bytes.

    1 where that has no end, or is between other tags than templates know.
    """
    if not _THOUGHTS_END.search(text) or not (opened or _THOUGHTS.match(text)):
        return 1.0
    return len(left_out(text, opened=opened).encode()) / len(text.encode())


def said(message: PastMessage) -> str:
    """What is quoted of a message: an answer without its reasoning, what a person wrote as it is."""
    if message.role != "assistant":
        return message.content
    return left_out(message.content, opened=message.opens_reasoning)


def room(
    prompt_ids: Sequence[int], *, said_before: Iterable[PastMessage], window: int, tokenizer: ChatTokenizer
) -> int:
    """Tokens to leave for what a model thinks before it does a job.

    Some, where the prompt opens that; or where answers of the chat begin with it, and the template cannot ask for none:
    otherwise the room would be filled with the job itself.
    """
    thinks = is_open(prompt_ids, tokenizer=tokenizer)
    if not thinks and any(map(_thinks, said_before)):
        thinks = not tokenizer.has_thinking_switch
    return min(_MOST, window // _PART) if thinks else 0


def _thinks(message: PastMessage) -> bool:
    return message.role == "assistant" and (message.opens_reasoning or _FIRST.match(message.content) is not None)
