"""What a turn asks the model: the prompt of its chat within the limits, and what the reader is told about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from billing.contracts import Limits
from conversations import context, selectors
from conversations.models import Chat
from inference import api as inference
from inference.contracts import PoolInfo
from inference.errors import ChatTemplateRefused, PoolNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All that a turn is stored with. `content_tokens` counts the message alone.

    `asked_tokens` is the output that was asked for, `capped_by` why the answer may be shorter, if it may. `asked_pool`
    is the slug of the pool that was asked for where `pool`, a smaller one, answers in its place; `notice` tells that.
    """

    pool: PoolInfo
    prompt: context.Prompt
    content_tokens: int
    asked_tokens: int
    capped_by: str
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

    def snapshot(self) -> dict[str, object]:
        """What is stored with the run: the prompt's bounds and what the reader is told.

        And the pool that was asked for, where another one answers: a retry asks for it again.
        """
        notices = []
        if self.degraded:
            notices.append({"code": "faster_model", "text": self.notice})
        if self.prompt.trimmed:
            notices.append({"code": "context_trimmed", "text": "The oldest messages of this chat were left out."})
        if self.prompt.max_output_tokens < self.asked_tokens:
            text = f"The answer is limited to {self.prompt.max_output_tokens:,} tokens: {self.capped_by}."
            notices.append({"code": "output_capped", "text": text})
        asked = {"asked_pool": self.asked_pool} if self.degraded else {}
        return self.prompt.snapshot() | {"notices": notices} | asked


def pool_or_default(*, plan: str, slug: str) -> PoolInfo:
    """The pool of this name; where it is closed to the plan by now, the default one. Raises PoolNotFound when that is,
    too.
    """
    try:
        return inference.pool_for(plan=plan, slug=slug)
    except PoolNotFound:
        return inference.pool_for(plan=plan, slug=None)


def prepare(chat: Chat, *, content: str, seq: int, pool: PoolInfo, output_tokens: int | None, allowed: Limits) -> Ready:
    """Assemble the prompt of `content`, which is or will be message `seq` of its chat, after those before it.

    `output_tokens` is what was asked for, None = all that the pool gives; pool and plan may allow less. The prompt
    leaves the plan's token budget room for the shortest answer: what is beyond that would never be admitted.

    Raises TooLong, inference's ServiceUnavailable and ChatTemplateRefused.
    """
    asked_tokens = pool.max_output_tokens if output_tokens is None else output_tokens
    given = min(asked_tokens, pool.max_output_tokens)
    wanted = given if allowed.max_output_tokens is None else min(given, allowed.max_output_tokens)
    most = [] if allowed.max_prompt_tokens is None else [allowed.max_prompt_tokens]
    if allowed.budget_tokens is not None:
        most.append(max(0, allowed.budget_tokens - min(allowed.output_floor, wanted)))
    tokenizer = inference.tokenizer_for(pool)
    content_tokens = tokenizer.count(content)

    def assemble(history: Sequence[context.PastMessage]) -> context.Prompt:
        return context.assemble(
            system_prompt=pool.system_prompt,
            history=history,
            new=context.PastMessage(seq=seq, role="user", content=content, token_count=content_tokens),
            tokenizer=tokenizer,
            context_window=pool.context_window,
            max_output_tokens=wanted,
            max_prompt_tokens=min(most, default=None),
        )

    history = selectors.history(chat=chat, before=seq, token_budget=pool.context_window, model=pool.label)
    try:
        prompt = assemble(history)
    except ChatTemplateRefused:
        # Some models take no two messages of one side in a row, which a failed answer leaves behind.
        prompt = assemble(context.answered(history))
    by_plan = prompt.max_output_tokens == wanted < given
    return Ready(
        pool=pool,
        prompt=prompt,
        content_tokens=content_tokens,
        asked_tokens=asked_tokens,
        capped_by="your plan allows no more" if by_plan else "the model has no room for more",
    )
