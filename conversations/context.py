"""Context assembly: which messages an answer is based on. Pure functions, no database.

For now the whole history goes in, and the oldest turns are left out where it does not fit the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from conversations.errors import TooLong
from inference.contracts import ChatTokenizer, ChatTurn

# An answer gets at least this many tokens: a long new message may take of the output's share, but no more.
MIN_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMessage:
    """An earlier message of the chat, as context sees it."""

    seq: int
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that fits: its token ids, and how many tokens the answer may have.

    `first_seq` and `last_seq` bound the messages in it; `trimmed` = older ones were left out.
    """

    ids: list[int]
    max_output_tokens: int
    first_seq: int
    last_seq: int
    trimmed: bool

    def snapshot(self) -> dict[str, object]:
        """What is stored with the run."""
        return {
            "summary_version": 0,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "trimmed": self.trimmed,
            "prompt_tokens": len(self.ids),
            "max_output_tokens": self.max_output_tokens,
        }


def assemble(
    *,
    system_prompt: str,
    history: Sequence[PastMessage],
    new: PastMessage,
    tokenizer: ChatTokenizer,
    context_window: int,
    max_output_tokens: int,
    max_prompt_tokens: int | None = None,
) -> Prompt:
    """The prompt of a new message: system prompt, as much history as fits beside a full answer, the message.

    `history` is oldest first. The system prompt is always there, byte-identical. Prompt and answer together never
    exceed `context_window`. Raises TooLong when the message alone leaves no room for an answer.
    """
    most = context_window - min(max_output_tokens, MIN_OUTPUT_TOKENS)
    if max_prompt_tokens is not None:
        most = min(most, max_prompt_tokens)
    roomy = min(most, context_window - max_output_tokens)
    turns = _turns(history)
    kept = len(turns)
    while True:
        messages = [message for turn in turns[len(turns) - kept :] for message in turn]
        ids = tokenizer.encode_chat(
            [
                ChatTurn("system", system_prompt),
                *(ChatTurn(message.role, message.content) for message in messages),
                ChatTurn(new.role, new.content),
            ]
        )
        if len(ids) <= (roomy if kept else most):
            break
        if not kept:
            raise TooLong(prompt_tokens=len(ids), max_prompt_tokens=most, context_window=context_window)
        kept = _fewer(turns, kept=kept, tokenizer=tokenizer, excess=len(ids) - roomy)
    return Prompt(
        ids=ids,
        max_output_tokens=min(max_output_tokens, context_window - len(ids)),
        first_seq=messages[0].seq if messages else new.seq,
        last_seq=new.seq,
        trimmed=kept < len(turns),
    )


def _turns(history: Sequence[PastMessage]) -> list[list[PastMessage]]:
    """Messages grouped by the user message they begin with: a turn is left out whole."""
    turns: list[list[PastMessage]] = []
    for message in history:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _fewer(turns: list[list[PastMessage]], *, kept: int, tokenizer: ChatTokenizer, excess: int) -> int:
    """How many of the newest turns to keep so that at least `excess` tokens go, and at least one turn."""
    while kept and excess > 0:
        excess -= sum(tokenizer.count(message.content) for message in turns[len(turns) - kept])
        kept -= 1
    return kept
