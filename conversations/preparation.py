"""What a turn asks the model: the prompt of its chat within the limits, and what the reader is told about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from uuid import UUID

from billing.contracts import Limits
from conversations import context, context_cache, memory, reasoning, selectors
from conversations.context import Budget, Cut, PastMessage, PastSummary, Prompt
from conversations.context_cache import Remembered
from conversations.memory import Question
from conversations.models import Chat
from inference import api as inference
from inference.contracts import ChatTokenizer, PoolInfo
from inference.errors import ChatTemplateRefused, PoolNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All that a turn is stored with. `content_tokens` counts the message alone; `pool_version` is of `context_cache`.

    `asked_tokens` is the output that was asked for, `capped_by` why the answer may be shorter, if it may. The answer
    begins amid reasoning where the prompt `opens_reasoning`; later prompts have it without where the template
    `drops_reasoning`. `asked_pool` is the slug of the pool that was asked for where `pool`, a smaller one, answers in
    its place; `notice` tells that.
    """

    pool: PoolInfo
    pool_version: str
    revisions: Mapping[str, str]
    prompt: Prompt
    content_tokens: int
    asked_tokens: int
    capped_by: str
    opens_reasoning: bool = False
    drops_reasoning: bool = False
    asked_pool: str | None = None
    notice: str = ""

    @property
    def degraded(self) -> bool:
        """Whether a smaller model answers than was asked for."""
        return self.asked_pool is not None

    def in_place_of(self, asked: PoolInfo, *, notice: str) -> "Ready":
        """The same, as an answer of a smaller model than was asked for."""
        return replace(self, asked_pool=asked.slug, notice=notice)

    def granted(self, output_tokens: int) -> "Ready":
        """The same with the output that was admitted: at most what was prepared for."""
        if output_tokens == self.prompt.max_output_tokens:
            return self
        return replace(
            self,
            prompt=replace(self.prompt, max_output_tokens=output_tokens),
            capped_by="more is not left of your token budget",
        )

    def remember(self, chat: Chat, *, run_id: UUID, revision: int) -> None:
        """Keep the prompt for the chat's next turn, once the turn is stored as this run and the chat is at `revision`;
        `chat` as it was read.

        What is quoted is quoted for this turn alone: no other prompt goes on from it.
        """
        if self.prompt.recalled:
            context_cache.drop(chat_id=chat.id)
            return
        context_cache.remember(
            chat_id=chat.id,
            run_id=run_id,
            revision=revision,
            prompt=self.prompt,
            newest_version=chat.summary_version,
            pool_version=self.pool_version,
        )

    def snapshot(self) -> dict[str, object]:
        """What is stored with the run: the prompt's bounds and what the reader is told.

        And the pool that was asked for, where another one answers: a retry asks for it again.
        """
        notices = []
        if self.degraded:
            notices.append({"code": "faster_model", "text": self.notice})
        if self.prompt.trimmed:
            notices.append(
                {"code": "context_trimmed", "text": "Some of the oldest messages of this chat were left out."}
            )
        if self.prompt.max_output_tokens < self.asked_tokens:
            text = f"The answer is limited to {self.prompt.max_output_tokens:,} tokens: {self.capped_by}."
            notices.append({"code": "output_capped", "text": text})
        asked = {"asked_pool": self.asked_pool} if self.degraded else {}
        reasons = {name: True for name in ("opens_reasoning", "drops_reasoning") if getattr(self, name)}
        return self.prompt.snapshot() | {"notices": notices, "revisions": dict(self.revisions)} | asked | reasons


def pool_or_default(*, plan: str, slug: str) -> PoolInfo:
    """The pool of this name; where it is closed to the plan by now, the default one. Raises PoolNotFound when that is,
    too.
    """
    try:
        return inference.pool_for(plan=plan, slug=slug)
    except PoolNotFound:
        return inference.pool_for(plan=plan, slug=None)


class _Past:
    """What was said in a chat before message `before`, for prompts of a pool; read once, when it is first wanted."""

    def __init__(self, chat: Chat, *, before: int, pool: PoolInfo) -> None:
        self._chat = chat
        self._before = before
        self._pool = pool

    @cached_property
    def history(self) -> list[PastMessage]:
        return self._read[0]

    @property
    def is_whole(self) -> bool:
        """Whether `history` has all that was said."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[list[PastMessage], bool]:
        return selectors.history(
            chat=self._chat, before=self._before, token_budget=self._pool.context_window, model=self._pool.label
        )

    @cached_property
    def newest_summary(self) -> PastSummary | None:
        return selectors.summary(chat=self._chat, version=self._chat.summary_version)


def budget_of(pool: PoolInfo, *, allowed: Limits, output_tokens: int | None = None) -> Budget:
    """What a plan's prompts may take of a pool's window beside so much output, None = all that the pool gives."""
    given = pool.max_output_tokens if output_tokens is None else output_tokens
    wanted = given if allowed.max_output_tokens is None else min(given, allowed.max_output_tokens)
    most = [] if allowed.max_prompt_tokens is None else [allowed.max_prompt_tokens]
    if allowed.budget_tokens is not None:
        most.append(max(0, allowed.budget_tokens - min(allowed.output_floor, wanted)))
    return Budget.of(pool, max_output_tokens=wanted, max_prompt_tokens=min(most, default=None))


def prepare(
    chat: Chat, *, question: Question, seq: int, pool: PoolInfo, output_tokens: int | None, allowed: Limits
) -> Ready:
    """Assemble the prompt of `question`, which is or will be message `seq` of its chat, after those before it.

    `output_tokens` is what was asked for, None = all that the pool gives; pool and plan may allow less. The prompt
    leaves the plan's token budget room for the shortest answer: what is beyond that would never be admitted.

    Raises TooLong, inference's ServiceUnavailable and ChatTemplateRefused.
    """
    asked_tokens = pool.max_output_tokens if output_tokens is None else output_tokens
    given = min(asked_tokens, pool.max_output_tokens)
    tokenizer = inference.tokenizer_for(pool)
    new = context.PastMessage(
        seq=seq, role="user", content=question.content, token_count=tokenizer.count(question.content)
    )
    budget = budget_of(pool, allowed=allowed, output_tokens=given)
    version = context_cache.pool_version(pool, tokenizer)
    last = context_cache.recall(
        chat_id=chat.id, pool_version=version, newest_version=chat.summary_version, revision=chat.revision
    )
    past = _Past(chat, before=seq, pool=pool)
    prompt = None if last is None else _going_on(chat, last, new=new, pool=pool, tokenizer=tokenizer, budget=budget)
    if prompt is None:
        prompt = _assembled(chat, last, past=past, new=new, pool=pool, tokenizer=tokenizer, budget=budget)
    # A chat that is whole in its prompt has nothing to be reminded of.
    if allowed.long_memory and (prompt.trimmed or prompt.summary_version):
        prompt = _reminded(
            chat, prompt, past=past, question=question, new=new, pool=pool, tokenizer=tokenizer, budget=budget
        )
    by_plan = prompt.max_output_tokens == budget.max_output_tokens < given
    return Ready(
        pool=pool,
        pool_version=version,
        revisions=inference.revisions_of(pool),
        prompt=prompt,
        content_tokens=new.token_count,
        asked_tokens=asked_tokens,
        capped_by="your plan allows no more" if by_plan else "the model has no room for more",
        opens_reasoning=reasoning.is_open(prompt.ids, tokenizer=tokenizer),
        drops_reasoning=tokenizer.drops_reasoning,
    )


def _going_on(
    chat: Chat, last: Remembered, *, new: PastMessage, pool: PoolInfo, tokenizer: ChatTokenizer, budget: Budget
) -> Prompt | None:
    """The prompt made of the chat's last one, or that one again for a retry; None where it must be assembled."""
    if last.prompt.last_seq == new.seq:
        return context.again(last.prompt, newest_version=chat.summary_version, budget=budget)
    since = selectors.since(chat=chat, after=last.prompt.last_seq, before=new.seq, model=pool.label)
    # Where there is no answer, or none that says anything, the last prompt's opening of one is in the way.
    if [message.role for message in since] != ["assistant"]:
        return None
    try:
        return context.extend(
            last.prompt,
            newest_version=chat.summary_version,
            answer=since[0],
            new=new,
            tokenizer=tokenizer,
            budget=budget,
            base=last.as_base,
        )
    except ChatTemplateRefused:
        return None


def _assembled(
    chat: Chat,
    last: Remembered | None,
    *,
    past: _Past,
    new: PastMessage,
    pool: PoolInfo,
    tokenizer: ChatTokenizer,
    budget: Budget,
) -> Prompt:
    """The prompt made of what the database has. Raises TooLong and inference's ChatTemplateRefused."""
    history, summary = past.history, past.newest_summary
    cut = _cut(chat, last, pool=pool) if history else None

    def assemble(messages: Sequence[PastMessage]) -> Prompt:
        return context.assemble(
            system_prompt=pool.system_prompt,
            history=messages,
            is_whole=past.is_whole,
            new=new,
            tokenizer=tokenizer,
            budget=budget,
            summary=summary,
            cut=cut,
        )

    try:
        return assemble(history)
    except ChatTemplateRefused:
        # Some models take no two messages of one side in a row, which a failed answer leaves behind.
        return assemble(context.answered(history))


def _reminded(
    chat: Chat,
    prompt: Prompt,
    *,
    past: _Past,
    question: Question,
    new: PastMessage,
    pool: PoolInfo,
    tokenizer: ChatTokenizer,
    budget: Budget,
) -> Prompt:
    """The prompt with the older turns that the question is about; as it was where there are none."""
    if not past.is_whole and past.history[0].seq > prompt.first_seq:
        # It was remembered, and by the messages' counts it would not be made again.
        return prompt
    room = context.room_to_recall(prompt, budget=budget, tokenizer=tokenizer)
    recalled = memory.recalled(chat, question=question, before=prompt.first_seq, budget=room, tokenizer=tokenizer)
    if not recalled:
        return prompt

    def quoting(messages: Sequence[PastMessage]) -> Prompt:
        return context.with_recalled(
            prompt,
            recalled=recalled,
            system_prompt=pool.system_prompt,
            history=messages,
            new=new,
            tokenizer=tokenizer,
            budget=budget,
            summary=past.newest_summary if prompt.summary_version else None,
        )

    try:
        return quoting(past.history)
    except ChatTemplateRefused:
        # Then the prompt was made of these, too.
        return quoting(context.answered(past.history))


def _cut(chat: Chat, last: Remembered | None, *, pool: PoolInfo) -> Cut | None:
    """Where the pool's last prompt of the chat began, by what is remembered or was stored with its run."""
    if last is not None:
        return Cut(summary_version=last.prompt.summary_version, first_seq=last.prompt.first_seq)
    stored = inference.last_context(chat_id=chat.id, pool=pool)
    if stored is None:
        return None
    return Cut(summary_version=int(str(stored["summary_version"])), first_seq=int(str(stored["first_seq"])))
