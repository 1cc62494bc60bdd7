"""Context assembly: which messages an answer is based on. Pure functions, no database.

A prompt is the system prompt, the chat's summary where it has one, the newest turns word for word, and the new message.
It begins like the last one for as long as that can be: an engine has it in its prefix cache then. So what is cut is cut
well below what fits, and stays cut (docs/context.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from conversations.errors import TooLong
from inference.contracts import ChatTokenizer, ChatTurn, PoolInfo, PromptBase
from inference.errors import ChatTemplateRefused

# An answer gets at least this many tokens: a long new message may take of the output's share, but no more.
MIN_OUTPUT_TOKENS = 256
# What stands between the system prompt, which comes first and whole, and the summary of what was said before.
SUMMARY_HEADING = "\n\nSummary of the conversation until here, for your information:\n"
# What stands between those and the older turns that the new message is about.
RECALL_HEADING = "\n\nEarlier messages of the conversation that may matter for the next one, quoted:\n\n"
# What ChatML puts around a message. Only a first guess is made with it; what counts is the prompt's own length.
_FRAME_TOKENS = 5
# A guess may be off by this part: where it says that more than that is too much, nothing is encoded to find out.
_DOUBT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMessage:
    """A message of the chat, as context sees it. `token_count` is of the content alone, and may be off a little.

    `token_ids` are those that the prompt's model made the content of, where it did (see `ChatTurn`). An answer that
    `opens_reasoning` begins amid that: its prompt opened it.
    """

    seq: int
    role: str
    content: str
    token_count: int
    token_ids: bytes = b""
    opens_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSummary:
    """What a version of the chat's summary says of its messages up to `last_seq`."""

    version: int
    last_seq: int
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """An older turn, as it is quoted for a new message that is about it. `score` says how near it is to that.

    `tokens` is of the quote, and may be off a little. Its messages are `seqs`.
    """

    seqs: tuple[int, ...]
    text: str
    tokens: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How a window is shared out, in tokens. Prompt and answer together never exceed `context_window`.

    System prompt and tools have `reserve_tokens`, or what they take where that is more; what neither they nor a full
    answer take is the chat's. Above `high_water` percent of that its oldest turns are to be summarised, so that its
    newest ones take `low_water` percent. `max_prompt_tokens` is the plan's limit.
    """

    context_window: int
    max_output_tokens: int
    reserve_tokens: int = 0
    high_water: int = 100
    low_water: int = 100
    max_prompt_tokens: int | None = None

    @classmethod
    def of(cls, pool: PoolInfo, *, max_output_tokens: int | None = None, max_prompt_tokens: int | None = None) -> Self:
        """A pool's, for its own longest answer where no other is wanted. Its reserve takes at most half of what the
        answer leaves: a small window would hold no chat beside it.
        """
        output = pool.max_output_tokens if max_output_tokens is None else max_output_tokens
        return cls(
            context_window=pool.context_window,
            max_output_tokens=output,
            reserve_tokens=min(pool.reserve_tokens, (pool.context_window - output) // 2),
            high_water=pool.high_water,
            low_water=pool.low_water,
            max_prompt_tokens=max_prompt_tokens,
        )

    @property
    def most(self) -> int:
        """What a prompt may take at all, beside the shortest answer."""
        most = self.context_window - min(self.max_output_tokens, MIN_OUTPUT_TOKENS)
        return most if self.max_prompt_tokens is None else min(most, self.max_prompt_tokens)

    def roomy(self, *, system_tokens: int) -> int:
        """What a prompt with history may take: it leaves a full answer and the reserve alone."""
        unused = max(0, self.reserve_tokens - system_tokens)
        return min(self.most, self.context_window - self.max_output_tokens - unused)

    def mark(self, percent: float, *, system_tokens: int) -> int:
        """What a prompt takes whose chat takes so many percent of its part."""
        room = max(0, self.roomy(system_tokens=system_tokens) - system_tokens)
        return system_tokens + int(room * percent / 100)

    def full_above(self, *, system_tokens: int) -> int:
        """What the prompt of a full chat takes more than."""
        return self.mark(self.high_water, system_tokens=system_tokens)

    def folded_to(self, *, system_tokens: int) -> int:
        """What system prompt and turns may take once the oldest turns are summarised: the low-water mark's, or less
        where, beside a summary of full length, they would soon be above the high one again.
        """
        half_way = self.mark((self.high_water + self.low_water) / 2, system_tokens=system_tokens)
        low = self.mark(self.low_water, system_tokens=system_tokens)
        return max(system_tokens, min(low, half_way - self.summary_tokens(system_tokens=system_tokens)))

    def summary_tokens(self, *, system_tokens: int) -> int:
        """How long a summary may be: a sixth of the chat's part, and no more than a page."""
        room = self.roomy(system_tokens=system_tokens) - system_tokens
        return max(32, min(512, room // 6))

    def recalled_tokens(self, *, system_tokens: int) -> int:
        """How much older turns that are quoted may take: a tenth of the chat's part."""
        return max(0, self.roomy(system_tokens=system_tokens) - system_tokens) // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where the chat's last prompt began: with this version of the summary (0 = none) and the message `first_seq`."""

    summary_version: int
    first_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt that fits: its token ids, and how many tokens the answer may have.

    `first_seq` and `last_seq` bound the messages in it; `trimmed` = some are neither in it nor in its summary.
    With more than `full_above` tokens its chat is above the high-water mark; `roomy` is what it might have taken.
    `base` is the prompt that it begins with, where that is stored. `recalled` are the older messages quoted in it,
    which take `recalled_tokens`.
    """

    ids: list[int]
    max_output_tokens: int
    first_seq: int
    last_seq: int
    trimmed: bool
    full_above: int
    roomy: int
    summary_version: int
    system_tokens: int
    summary_tokens: int
    base: PromptBase | None = None
    recalled: tuple[int, ...] = ()
    recalled_tokens: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the chat is above its high-water mark; what is quoted of it is not counted."""
        return self.trimmed or len(self.ids) - self.recalled_tokens > self.full_above

    def snapshot(self) -> dict[str, object]:
        """What is stored with the run. The rest of the prompt is the turns that it has word for word."""
        return {
            "summary_version": self.summary_version,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "trimmed": self.trimmed,
            "full_above": self.full_above,
            "roomy": self.roomy,
            "prompt_tokens": len(self.ids),
            "system_tokens": self.system_tokens,
            "summary_tokens": self.summary_tokens,
            "max_output_tokens": self.max_output_tokens,
        } | self._snapshot_of_recalled()

    def _snapshot_of_recalled(self) -> dict[str, object]:
        """Nothing where nothing is recalled."""
        if not self.recalled:
            return {}
        return {"recalled": list(self.recalled), "recalled_tokens": self.recalled_tokens}


def wants_summary(snapshot: Mapping[str, Any], *, answer_tokens: int) -> bool:
    """Whether a chat's oldest turns are to be summarised, by a prompt's snapshot and the answer to it.

    Its prompt is above the high-water mark; or with the answer it is half way from there to all that it may take, so
    that the next message might have no room. A run without marks is of no chat.
    """
    if "roomy" not in snapshot:
        return False
    size, full_above = snapshot["prompt_tokens"] - snapshot.get("recalled_tokens", 0), snapshot["full_above"]
    nearly_all = (full_above + snapshot["roomy"]) // 2
    return bool(snapshot["trimmed"] or size > full_above or size + answer_tokens > nearly_all)


def assemble(
    *,
    system_prompt: str,
    history: Sequence[PastMessage],
    new: PastMessage,
    tokenizer: ChatTokenizer,
    budget: Budget,
    is_whole: bool = True,
    summary: PastSummary | None = None,
    cut: Cut | None = None,
) -> Prompt:
    """The prompt of a new message: system prompt, summary, the newest turns, the message.

    `history` is oldest first; `is_whole` says whether it has all messages, or lacks old ones that, by their counts,
    would not fit. A turn is kept or left out whole.
    The system prompt is always there, byte-identical. A summary is used where the chat would be above its high-water
    mark without it. The turns begin where they did in the last prompt (`cut`) while they fit; where they do not, they
    are cut down to the low-water mark.

    Raises TooLong when the message alone leaves no room for an answer.
    """
    assembler = _Assembler(
        system_prompt=system_prompt,
        turns=by_turn(history) if is_whole else _whole_turns(history),
        is_whole=is_whole,
        new=new,
        tokenizer=tokenizer,
        budget=budget,
        system_tokens=tokenizer.count(system_prompt),
    )
    if summary is not None:
        prompt = assembler.whole() or assembler.with_summary(summary, cut=cut)
        if prompt is not None:
            return prompt
    return assembler.without_summary(cut=cut)


def extend(
    prompt: Prompt,
    *,
    newest_version: int,
    answer: PastMessage,
    new: PastMessage,
    tokenizer: ChatTokenizer,
    budget: Budget,
    base: PromptBase,
) -> Prompt | None:
    """The prompt of a chat's next turn, made of the last one, which is stored as `base`; as `assemble` would make it.

    None where it must be assembled: it does not fit any more, another summary is to be used, of which `newest_version`
    is the newest, or the model's prompts do not go on from one another.
    """
    ids = tokenizer.extend_chat(
        prompt.ids, answer=ChatTurn("assistant", answer.content, answer.token_ids), new=ChatTurn("user", new.content)
    )
    if ids is None or len(ids) > budget.roomy(system_tokens=prompt.system_tokens):
        return None
    extended = Prompt(
        ids=ids,
        max_output_tokens=min(budget.max_output_tokens, budget.context_window - len(ids)),
        first_seq=prompt.first_seq,
        last_seq=new.seq,
        trimmed=prompt.trimmed,
        full_above=budget.full_above(system_tokens=prompt.system_tokens),
        roomy=budget.roomy(system_tokens=prompt.system_tokens),
        summary_version=prompt.summary_version,
        system_tokens=prompt.system_tokens,
        summary_tokens=prompt.summary_tokens,
        base=base,
    )
    return None if extended.is_full and prompt.summary_version < newest_version else extended


def again(prompt: Prompt, *, newest_version: int, budget: Budget) -> Prompt | None:
    """The prompt that was sent, for another answer to the same message; None where limits have changed too much."""
    roomy = budget.roomy(system_tokens=prompt.system_tokens)
    if len(prompt.ids) > roomy:
        return None
    same = replace(
        prompt,
        max_output_tokens=min(budget.max_output_tokens, budget.context_window - len(prompt.ids)),
        full_above=budget.full_above(system_tokens=prompt.system_tokens),
        roomy=roomy,
        base=None,
    )
    return None if same.is_full and prompt.summary_version < newest_version else same


def room_to_recall(prompt: Prompt, *, budget: Budget, tokenizer: ChatTokenizer) -> int:
    """How many tokens of quotes go into a prompt: what it leaves, and no more than their part."""
    left = budget.roomy(system_tokens=prompt.system_tokens) - len(prompt.ids)
    return min(left, budget.recalled_tokens(system_tokens=prompt.system_tokens)) - tokenizer.count(RECALL_HEADING)


def with_recalled(
    prompt: Prompt,
    *,
    recalled: Sequence[Recalled],
    system_prompt: str,
    history: Sequence[PastMessage],
    new: PastMessage,
    tokenizer: ChatTokenizer,
    budget: Budget,
    summary: PastSummary | None,
) -> Prompt:
    """The prompt with older turns quoted after its summary, oldest first; all else stays as it is.

    `history` has the turns that are in the prompt, and `summary` is what is in it. Quotes that take too much are left
    out, the least near ones first; where none is left, the prompt comes back as it was. It begins like no other prompt.
    """
    content = system_prompt if summary is None else f"{system_prompt}{SUMMARY_HEADING}{summary.content}"
    kept = [message for message in history if message.seq >= prompt.first_seq]
    most = min(
        budget.roomy(system_tokens=prompt.system_tokens) - len(prompt.ids),
        budget.recalled_tokens(system_tokens=prompt.system_tokens),
    )
    quotes = sorted(recalled, key=lambda quote: quote.seqs)
    while quotes:
        quoted = content + RECALL_HEADING + "\n\n".join(quote.text for quote in quotes)
        ids = _encoded(quoted, [*kept, new], tokenizer=tokenizer)
        if len(ids) - len(prompt.ids) <= most:
            return replace(
                prompt,
                ids=ids,
                max_output_tokens=min(budget.max_output_tokens, budget.context_window - len(ids)),
                recalled=tuple(seq for quote in quotes for seq in quote.seqs),
                recalled_tokens=len(ids) - len(prompt.ids),
                base=None,
            )
        quotes.remove(min(quotes, key=lambda quote: quote.score))
    return prompt


def answered(history: Sequence[PastMessage]) -> list[PastMessage]:
    """The history without the user messages that got no answer: user and assistant then take turns."""
    return [message for turn in by_turn(history) if len(turn) == 2 for message in turn]


def to_fold(size: int, *, summary_tokens: int, budget: Budget, system_tokens: int) -> int:
    """How many of so many tokens of turns are to be summarised so that the rest is below the low-water mark.

    0 while all of them, with the summary that there is, are below the high one; and where a summary of full length
    would leave no room for any of them.
    """
    size += system_tokens
    left = budget.folded_to(system_tokens=system_tokens)
    if size + summary_tokens <= budget.full_above(system_tokens=system_tokens) or left <= system_tokens:
        return 0
    return max(0, size - left)


def summary_tokens(summary: PastSummary | None, *, tokenizer: ChatTokenizer) -> int:
    """What a summary takes of a prompt, with its heading."""
    return 0 if summary is None else tokenizer.count(f"{SUMMARY_HEADING}{summary.content}")


def sizes(turns: Sequence[Sequence[PastMessage]], *, tokenizer: ChatTokenizer, most: int) -> list[int]:
    """What each of these turns takes of a prompt in which others follow, in tokens.

    A template may change older answers, and counts may be another tokenizer's: so they are measured, until they are
    more than `most` tokens together. What comes after goes by its counts.
    """
    new = ChatTurn("user", "?")
    found: list[int] = []
    try:
        alone = len(tokenizer.encode_chat([ChatTurn("system", "s"), new]))
        for turn in turns:
            if sum(found) > most:
                break
            said = [ChatTurn(message.role, message.content) for message in turn]
            found.append(len(tokenizer.encode_chat([ChatTurn("system", "s"), *said, new])) - alone)
    except ChatTemplateRefused:
        # It takes no two messages of one side in a row, which a failed answer leaves behind.
        pass
    return found + [counted(turn) for turn in turns[len(found) :]]


def counted(turn: Sequence[PastMessage]) -> int:
    """What messages take of a prompt, by their counts."""
    return sum(message.token_count + _FRAME_TOKENS for message in turn)


def oldest_turns(turns: Sequence[Sequence[PastMessage]], sizes: Sequence[int], *, tokens: int) -> list[PastMessage]:
    """The first of these turns that have so many tokens; without the last one, which may not be whole."""
    found: list[PastMessage] = []
    for turn, size in zip(turns[:-1], sizes[:-1], strict=True):
        if tokens <= 0:
            break
        tokens -= size
        found += turn
    return found


@dataclass(slots=True, kw_only=True)
class _Assembler:
    """One prompt in the making."""

    system_prompt: str
    turns: list[list[PastMessage]]
    is_whole: bool
    new: PastMessage
    tokenizer: ChatTokenizer
    budget: Budget
    system_tokens: int

    def whole(self) -> Prompt | None:
        """The prompt with every turn and no summary, where that is below the high-water mark."""
        most = self.budget.full_above(system_tokens=self.system_tokens)
        if not self.is_whole or self._guess(self.turns) > most:
            return None
        ids = self._encode(self.turns)
        return self._made(ids, kept=self.turns, covered=0) if len(ids) <= most else None

    def with_summary(self, summary: PastSummary, *, cut: Cut | None) -> Prompt | None:
        """The prompt with the summary and the turns that it does not speak of. None where it does not fit.

        Below the low-water mark there is room for turns that it does speak of: word for word, they say more. Of those
        that it does not speak of none is left out that fits.
        """
        content = f"{self.system_prompt}{SUMMARY_HEADING}{summary.content}"
        own = self.tokenizer.count(content) - self.system_tokens
        first = _first(cut, summary.version) or self._first_below(most=summary.last_seq + 1)
        kept, ids = self._fitting(
            [turn for turn in self.turns if turn[0].seq >= first],
            cuts=[first, summary.last_seq + 1],
            system=content,
            own=own,
        )
        if len(ids) > self.budget.roomy(system_tokens=self.system_tokens):
            return None
        return self._made(ids, kept=kept, covered=summary.last_seq, version=summary.version, own=own)

    def _first_below(self, *, most: int) -> int:
        """The message to begin with so that no more turns are in than are left by a fold; `most`, or one before."""
        room = self.budget.folded_to(system_tokens=self.system_tokens) - self._guess([])
        number = _newest_within(self.turns, room=room, frame=_FRAME_TOKENS)
        return min(most, self.turns[len(self.turns) - number][0].seq) if number else most

    def without_summary(self, *, cut: Cut | None) -> Prompt:
        """The prompt with as many of the newest turns as may be. Raises TooLong."""
        kept, ids = self._fitting(self.turns, cuts=[_first(cut, 0)], system=self.system_prompt, own=0)
        if len(ids) > self.budget.most:
            raise TooLong(
                prompt_tokens=len(ids), max_prompt_tokens=self.budget.most, context_window=self.budget.context_window
            )
        return self._made(ids, kept=kept, covered=0)

    def _fitting(
        self, turns: list[list[PastMessage]], *, cuts: Sequence[int], system: str, own: int
    ) -> tuple[list[list[PastMessage]], list[int]]:
        """The turns from the first of these cuts on from which they fit; else the newest below the low-water mark, or
        the newest that fit.
        """
        roomy = self.budget.roomy(system_tokens=self.system_tokens)
        for cut in cuts:
            kept = [turn for turn in turns if turn[0].seq >= cut]
            if self._guess(kept) + own <= roomy * (1 + _DOUBT):
                ids = self._encode(kept, system=system)
                if len(ids) <= roomy:
                    return kept, ids
        low = self.budget.mark(self.budget.low_water, system_tokens=self.system_tokens)
        number, ids = self._most(turns, room=min(roomy, low + own), system=system)
        if number == 0 and turns and low < roomy:
            number, ids = self._most(turns, room=roomy, system=system)
        return turns[len(turns) - number :], ids

    def _most(self, turns: list[list[PastMessage]], *, room: int, system: str) -> tuple[int, list[int]]:
        return _most_that_fit(
            turns,
            encode=lambda number: self._encode(turns[len(turns) - number :], system=system),
            room=room,
            new_tokens=self.new.token_count + self.system_tokens,
        )

    def _made(
        self, ids: list[int], *, kept: list[list[PastMessage]], covered: int, version: int = 0, own: int = 0
    ) -> Prompt:
        left_out = self.turns[: len(self.turns) - len(kept)]
        # Of what was not read, all is older than what was.
        unread = not self.is_whole and (not self.turns or self.turns[0][0].seq > covered + 1)
        trimmed = unread or any(turn[0].seq > covered for turn in left_out)
        return Prompt(
            ids=ids,
            max_output_tokens=min(self.budget.max_output_tokens, self.budget.context_window - len(ids)),
            first_seq=kept[0][0].seq if kept else self.new.seq,
            last_seq=self.new.seq,
            trimmed=trimmed,
            full_above=self.budget.full_above(system_tokens=self.system_tokens),
            roomy=self.budget.roomy(system_tokens=self.system_tokens),
            summary_version=version,
            system_tokens=self.system_tokens,
            summary_tokens=own,
        )

    def _guess(self, turns: list[list[PastMessage]]) -> int:
        """How long a prompt with these turns is, by their counts."""
        counts = sum(message.token_count + _FRAME_TOKENS for turn in turns for message in turn)
        return self.system_tokens + counts + self.new.token_count + _FRAME_TOKENS

    def _encode(self, turns: list[list[PastMessage]], *, system: str | None = None) -> list[int]:
        messages = [*(message for turn in turns for message in turn), self.new]
        return _encoded(self.system_prompt if system is None else system, messages, tokenizer=self.tokenizer)


def _encoded(system: str, messages: Sequence[PastMessage], *, tokenizer: ChatTokenizer) -> list[int]:
    said = (ChatTurn(message.role, message.content, message.token_ids) for message in messages)
    return tokenizer.encode_chat([ChatTurn("system", system), *said])


def _first(cut: Cut | None, version: int) -> int:
    """The message that the turns begin with since the last cut; one that was made for another summary is over."""
    return cut.first_seq if cut is not None and cut.summary_version == version else 0


def by_turn(history: Sequence[PastMessage]) -> list[list[PastMessage]]:
    """Messages grouped by the user message they begin with: a turn is left out whole."""
    turns: list[list[PastMessage]] = []
    for message in history:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _whole_turns(history: Sequence[PastMessage]) -> list[list[PastMessage]]:
    """The same of a history that begins anywhere, without what is there of a turn that it has not from the start."""
    turns = by_turn(history)
    return turns[1:] if turns and turns[0][0].role != "user" else turns


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
