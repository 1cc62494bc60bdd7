"""Context assembly: which messages an answer is based on. Pure functions, no database.

For now the whole history goes in, and the oldest turns are left out where it does not fit the window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conversations.errors import TooLong
from inference.contracts import ChatTokenizer, ChatTurn

# An answer gets at least this many tokens: a long new message may take of the output's share, but no more.
MIN_OUTPUT_TOKENS = 256
# What ChatML puts around a message. Only a first guess is made with it; what counts is the prompt's own length.
_FRAME_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMessage:
    """A message of the chat, as context sees it. `token_count` is of the content alone, and may be off a little.

    `token_ids` are those that the prompt's model made the content of, where it did (see `ChatTurn`).
    """

    seq: int
    role: str
    content: str
    token_count: int
    token_ids: bytes = b""


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
    """The prompt of a new message: system prompt, as many of the newest turns as fit beside a full answer, the message.

    `history` is oldest first; a turn is kept or left out whole. The system prompt is always there, byte-identical.
    Prompt and answer together never exceed `context_window`. Raises TooLong when the message alone leaves no room for
    an answer.
    """
    most = context_window - min(max_output_tokens, MIN_OUTPUT_TOKENS)
    if max_prompt_tokens is not None:
        most = min(most, max_prompt_tokens)
    roomy = min(most, context_window - max_output_tokens)
    turns = _turns(history)

    def encode(kept: int) -> list[int]:
        messages = [message for turn in turns[len(turns) - kept :] for message in turn]
        return tokenizer.encode_chat(
            [ChatTurn("system", system_prompt), *(ChatTurn(m.role, m.content, m.token_ids) for m in (*messages, new))]
        )

    kept, ids = _most_that_fit(turns, encode=encode, room=roomy, new_tokens=new.token_count)
    if len(ids) > most:
        raise TooLong(prompt_tokens=len(ids), max_prompt_tokens=most, context_window=context_window)
    return Prompt(
        ids=ids,
        max_output_tokens=min(max_output_tokens, context_window - len(ids)),
        first_seq=turns[len(turns) - kept][0].seq if kept else new.seq,
        last_seq=new.seq,
        trimmed=kept < len(turns),
    )


def answered(history: Sequence[PastMessage]) -> list[PastMessage]:
    """The history without the user messages that got no answer: user and assistant then take turns."""
    return [message for turn in _turns(history) if len(turn) == 2 for message in turn]


def _turns(history: Sequence[PastMessage]) -> list[list[PastMessage]]:
    """Messages grouped by the user message they begin with: a turn is left out whole."""
    turns: list[list[PastMessage]] = []
    for message in history:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _most_that_fit(
    turns: list[list[PastMessage]], *, encode: Callable[[int], list[int]], room: int, new_tokens: int
) -> tuple[int, list[int]]:
    """The largest number of newest turns whose prompt has at most `room` tokens, and that prompt.

    0 with its prompt when none fits. `encode(n)` makes the prompt with n turns. It costs about 2 ms per 1,000 tokens,
    so the messages' counts say where to begin: once is enough nearly always.
    """
    fitting: tuple[int, list[int]] | None = None
    too_many = len(turns) + 1
    kept = _newest_within(turns, room=room - new_tokens - _FRAME_TOKENS, frame=_FRAME_TOKENS)
    while True:
        ids = encode(kept)
        if len(ids) <= room:
            fitting = kept, ids
            step = _newest_within(turns[: len(turns) - kept], room=room - len(ids), frame=0)
        else:
            too_many = kept
            step = -_oldest_covering(turns[len(turns) - kept :], excess=len(ids) - room)
        if step == 0 or (fitting and fitting[0] + 1 == too_many):
            return fitting or (kept, ids)
        known_both = fitting is not None and too_many <= len(turns)
        kept = (fitting[0] + too_many) // 2 if fitting and known_both else min(kept + step, too_many - 1)


def _newest_within(turns: list[list[PastMessage]], *, room: int, frame: int) -> int:
    """How many of the newest turns take at most `room` tokens, by their counts and `frame` tokens a message."""
    for number, turn in enumerate(reversed(turns)):
        room -= sum(message.token_count + frame for message in turn)
        if room < 0:
            return number
    return len(turns)


def _oldest_covering(turns: list[list[PastMessage]], *, excess: int) -> int:
    """How many of the oldest turns must go for `excess` tokens to go, by their counts."""
    for number, turn in enumerate(turns, start=1):
        excess -= sum(message.token_count for message in turn)
        if excess <= 0:
            return number
    return len(turns)
