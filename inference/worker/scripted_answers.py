"""What the scripted engine answers: a pure function of the prompt's last message.

That message may steer its answer by directives:

    [[tps=20 tokens=100 prefill_ms=50 fail_after=40 stall_after=30 clock]]
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference.tokenization import ChatTokenizer, ChatTurn

_DIRECTIVES = re.compile(r"\[\[([^\[\]]*)\]\]")
# Numbered words show a gap or a repeat at sight; some are multi-byte so that characters span tokens.
_WORDS = ("alpha", "bravo", "café", "delta", "écho", "🙂", "golf", "hôtel", "日本", "juliett")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How an answer comes: `tokens` at `tps` per second after a prefill of `prefill_ms` (None: by length).

    `fail_after` counts tokens of the whole answer, those of earlier epochs included. At the token `stall_after` of the
    answer the whole engine hangs, as one whose GPU does; an epoch that continues one does not. With `clock` each
    token's text is `@<ns>;`, the monotonic time at which it was due; it stays one id, so counts hold, but
    decoding the ids does not give that text.
    """

    tps: float = 50.0
    tokens: int = 60
    prefill_ms: float | None = None
    fail_after: int | None = None
    stall_after: int | None = None
    clock: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.tps <= 100_000:
            raise ValueError(f"tps must be above 0 and at most 100000, not {self.tps:g}")
        if not 1 <= self.tokens <= 1_000_000:
            raise ValueError(f"tokens must be from 1 to 1000000, not {self.tokens}")
        if self.prefill_ms is not None and not 0 <= self.prefill_ms <= 3_600_000:
            raise ValueError(f"prefill_ms must be from 0 to 3600000, not {self.prefill_ms:g}")
        if self.fail_after is not None and self.fail_after < 0:
            raise ValueError(f"fail_after must not be negative, it is {self.fail_after}")
        if self.stall_after is not None and self.stall_after < 1:
            raise ValueError(f"stall_after must be at least 1, it is {self.stall_after}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The whole answer to a prompt. `done` of its ids are in the prompt already (a continuation)."""

    script: Script
    ids: tuple[int, ...]
    done: int


class Answers:
    """Reads prompts of one chat template; `default` is the script where directives are silent."""

    def __init__(self, *, tokenizer: ChatTokenizer, default: Script) -> None:
        self._tokenizer = tokenizer
        self._default = default
        self._opening = _opening(tokenizer)

    def answer(self, prompt_ids: Sequence[int]) -> Answer:
        """Raises ValueError for a bad directive, or a prompt that goes on with tokens not of this answer."""
        prompt = tuple(prompt_ids)
        end = _end_of_last(prompt, self._opening)
        question, done = prompt[:end], prompt[end:]
        message = self._last_message(question)
        script = _read(message, self._default)
        ids = self._compose(message, script.tokens)
        if ids[: len(done)] != done:
            raise ValueError("the prompt continues with tokens that this answer does not begin with")
        return Answer(script=script, ids=ids, done=len(done))

    def _last_message(self, question: Sequence[int]) -> str:
        """The text between the last special tokens that enclose any: users cannot put those in."""
        segments: list[list[int]] = [[]]
        for token in question[: len(question) - len(self._opening)] or question:
            if token in self._tokenizer.special_ids:
                segments.append([])
            else:
                segments[-1].append(token)
        texts = (self._tokenizer.decode(segment) for segment in reversed(segments))
        return next((text for text in texts if text.strip()), "")

    def _compose(self, message: str, count: int) -> tuple[int, ...]:
        words = (f" {i} {_WORDS[i % len(_WORDS)]}" for i in range(count))
        text = f"Scripted answer {zlib.crc32(message.encode()):08x}." + "".join(words)
        ids = self._tokenizer.encode(text)[:count]
        # An answer does not stop inside a character: full stops replace the bytes of a cut one.
        full_stop = self._tokenizer.encode(".")[0]
        texts = list(map(self._tokenizer.stream(), ids))
        for i in range(len(ids) - 1, -1, -1):
            if texts[i]:
                break
            ids[i] = full_stop
        return tuple(ids)


def _opening(tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """The ids that open an answer: what the template adds after the last message."""
    turns = [ChatTurn("user", "?")]
    closed = tokenizer.encode_chat(turns, add_generation_prompt=False)
    opened = tokenizer.encode_chat(turns)
    if opened[: len(closed)] != closed or len(opened) == len(closed):
        raise ValueError("this chat template does not open answers by adding tokens after the last message")
    return tuple(opened[len(closed) :])


def _end_of_last(ids: tuple[int, ...], part: tuple[int, ...]) -> int:
    """Where the last occurrence of `part` ends; the length of `ids` where there is none."""
    for end in range(len(ids), len(part) - 1, -1):
        if ids[end - len(part) : end] == part:
            return end
    return len(ids)


def _read(message: str, default: Script) -> Script:
    found = _DIRECTIVES.search(message)
    if found is None:
        return default
    script = default
    for word in found.group(1).split():
        name, equals, value = word.partition("=")
        match name, bool(equals):
            case "clock", False:
                script = replace(script, clock=True)
            case "tps", True:
                script = replace(script, tps=float(value))
            case "prefill_ms", True:
                script = replace(script, prefill_ms=float(value))
            case "tokens", True:
                script = replace(script, tokens=int(value))
            case "fail_after", True:
                script = replace(script, fail_after=int(value))
            case "stall_after", True:
                script = replace(script, stall_after=int(value))
            case _:
                raise ValueError(f"unknown directive {word!r}")
    return script
