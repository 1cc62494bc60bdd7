"""A chat's long memory: older turns that a new message is about, looked up for a prompt that has no room for all.

Best effort: whatever is missing, slow or failing, the turn goes on without (docs/context.md).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from conversations import embedding, quoting, reasoning, selectors
from conversations.context import PastMessage, Recalled
from conversations.models import Chat
from inference.contracts import ChatTokenizer

if TYPE_CHECKING:
    from conversations.encoder import Encoder, Floats

log = structlog.get_logger(__name__)

# Turns whose vectors are read for one message: at two messages of 768 bytes each, 3 MB. Older ones are forgotten.
MOST_READ = 2000


class Question:
    """A new message. Its vector is made when it is first needed, once for all pools that its prompt is made for."""

    def __init__(self, *, content: str) -> None:
        self.content = content
        self._vector: Floats | None = None

    def vector(self, *, encoder: "Encoder") -> "Floats | None":
        """None where there is no room for it now; asked again, that may have changed."""
        if self._vector is None:
            self._vector = embedding.vector_of(self.content, encoder=encoder)
        return self._vector


def recalled(
    chat: Chat, *, question: Question, before: int, budget: int, tokenizer: ChatTokenizer
) -> Sequence[Recalled]:
    """Turns before message `before` that the question is about, oldest first, at most `budget` tokens of quotes."""
    encoder = embedding.encoder_at_hand()
    if encoder is None or budget <= 0:
        return []
    try:
        return _recalled(chat, question=question, before=before, budget=budget, tokenizer=tokenizer, encoder=encoder)
    except Exception:
        log.exception("not_recalled", chat_id=str(chat.id))
        return []


def _recalled(
    chat: Chat, *, question: Question, before: int, budget: int, tokenizer: ChatTokenizer, encoder: "Encoder"
) -> Sequence[Recalled]:
    turns = selectors.turn_vectors(chat=chat, before=before, model=encoder.revision, limit=MOST_READ)
    vector = question.vector(encoder=encoder) if turns else None
    if vector is None:
        return []
    # With numpy, which is loaded since the encoder is open, and not before.
    from conversations import recall

    near = recall.nearest(vector, turns)
    if not near:
        return []
    said = selectors.turns_at(chat=chat, seqs=[one.seq for one in near])
    quotes = [
        _quote(said[one.seq], score=one.score, budget=budget, tokenizer=tokenizer) for one in near if one.seq in said
    ]
    return recall.choose(quotes, budget=budget)


def _quote(messages: Sequence[PastMessage], *, score: float, budget: int, tokenizer: ChatTokenizer) -> Recalled:
    """A turn as it is quoted: of a long question at most a quarter of the budget, of a long answer a half."""
    parts = []
    for message in messages:
        most = budget // 4 if message.role == "user" else budget // 2
        content = quoting.shortened(reasoning.said(message), most=most, tokenizer=tokenizer)
        if content:
            parts.append(f"{message.role.capitalize()}: {content}")
    text = "\n\n".join(parts)
    # And the line feeds between it and the next one.
    tokens = tokenizer.count(text) + 2
    return Recalled(seqs=tuple(message.seq for message in messages), text=text, tokens=tokens, score=score)
