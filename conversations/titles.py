"""Titles of chats: the first words at once, and what a model makes of the first turn soon after."""

import re
from collections.abc import Sequence
from uuid import UUID

from conversations import reasoning
from conversations.context import PastMessage
from conversations.models import Chat
from inference.contracts import ChatTokenizer, ChatTurn

MOST_TOKENS = 24
_CHARACTERS = 60
# Of each side of the turn: enough to tell what it is about.
_QUOTED = 600
_SYSTEM = "You give conversations short titles, in the language of the question."
_ASK = "Question: {question}\nAnswer: {answer}\nTitle of two to five words?"
# Told what a title is, small models say it back; shown some, they make one.
_SHOWN = (
    (
        "How do I bake bread without yeast?",
        "You can use baking soda and buttermilk in its place.",
        "Bread without yeast",
    ),
    (
        "Plan three days in Kyoto for us.",
        "On the first day, visit the temples in the east of the city.",
        "Three days in Kyoto",
    ),
    (
        "fix my code, it says list index out of range",
        "The loop runs one step too far: use range(len(items)).",
        "List index out of range",
    ),
)
_TAG = re.compile(r"<[^<>]{0,40}>")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()]*\)")
_MARKUP = re.compile(r"[*_`~#>|]+")
_LABEL = re.compile(
    r"\A\W*(?:(?:chat|conversation)\s+)?(?:title|titel|titre|título|titolo)\s*[:\-–—]\s*", re.IGNORECASE
)
_QUOTES = "\"'“”„‟‘’«»‹›「」『』"


def first_words(content: str) -> str:
    """The first words, until a better title is made."""
    words = " ".join(content[: 4 * _CHARACTERS].split())
    if len(words) <= _CHARACTERS:
        return words
    cut = words[:_CHARACTERS]
    return (cut.rsplit(" ", 1)[0] or cut) + "…"


def prompt(turn: Sequence[PastMessage], *, tokenizer: ChatTokenizer) -> list[int]:
    """What a model is asked for the title of a chat with this first turn. Raises inference's ChatTemplateRefused."""
    shown = [
        example
        for question, answer, title in _SHOWN
        for example in (
            ChatTurn("user", _ASK.format(question=question, answer=answer)),
            ChatTurn("assistant", title),
        )
    ]
    question, answer = (reasoning.said(message)[:_QUOTED] for message in turn)
    asked = _ASK.format(question=question, answer=answer or "…")
    return tokenizer.encode_chat([ChatTurn("system", _SYSTEM), *shown, ChatTurn("user", asked)], thinking=False)


def clean(text: str) -> str:
    """A title of what a model said: one line without markup and quotes. Empty where that is none."""
    # An end without a beginning is no part of a title, whoever opened it.
    text = reasoning.left_out(text, opened=reasoning.is_ended(text))
    text = _MARKUP.sub("", _LINK.sub(r"\1", _TAG.sub("", text)))
    lines = (" ".join(line.split()) for line in text.splitlines())
    line = next((line for line in lines if any(map(str.isalnum, line))), "")
    line = _LABEL.sub("", line).strip(_QUOTES + " .:;,-–—")
    # More than a title: the model has gone on with the conversation.
    if not any(map(str.isalnum, line)) or len(line) > 2 * _CHARACTERS:
        return ""
    return first_words(line)


def give(*, chat_id: UUID, text: str) -> bool:
    """Give the chat the title that a model made, unless its owner has given one since. False where it is none."""
    title = clean(text)
    if not title:
        return False
    Chat.objects.filter(id=chat_id, title_by=Chat.TitleBy.WORDS).update(title=title, title_by=Chat.TitleBy.MODEL)
    return True


def give_up(*, chat_id: UUID) -> None:
    """The first words stay."""
    Chat.objects.filter(id=chat_id, title_by=Chat.TitleBy.WORDS).update(title_by=Chat.TitleBy.KEPT)
