"""What a new turn asks the model: the prompt of its chat within the limits, and what the reader is told about it."""

from collections.abc import Sequence
from dataclasses import dataclass

from billing.contracts import Limits
from conversations import context, selectors
from conversations.models import Chat
from inference import api as inference
from inference.contracts import PoolInfo
from inference.errors import ChatTemplateRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """All that a new turn is stored with. `content_tokens` counts the message alone."""

    pool: PoolInfo
    prompt: context.Prompt
    notices: list[dict[str, str]]
    content_tokens: int


def prepare(chat: Chat, *, content: str, pool: PoolInfo, output_tokens: int, allowed: Limits) -> Ready:
    """Assemble the prompt of `content` in its chat. `output_tokens` is what was asked for; the plan may allow less.

    Raises TooLong, inference's ServiceUnavailable and ChatTemplateRefused.
    """
    wanted = output_tokens
    if allowed.max_output_tokens is not None:
        wanted = min(wanted, allowed.max_output_tokens)
    tokenizer = inference.tokenizer_for(pool)
    content_tokens = tokenizer.count(content)

    def assemble(history: Sequence[context.PastMessage]) -> context.Prompt:
        return context.assemble(
            system_prompt=pool.system_prompt,
            history=history,
            new=context.PastMessage(seq=chat.last_seq + 1, role="user", content=content, token_count=content_tokens),
            tokenizer=tokenizer,
            context_window=pool.context_window,
            max_output_tokens=wanted,
            max_prompt_tokens=allowed.max_prompt_tokens,
        )

    history = selectors.history(chat=chat, token_budget=pool.context_window)
    try:
        prompt = assemble(history)
    except ChatTemplateRefused:
        # Some models take no two messages of one side in a row, which a failed answer leaves behind.
        prompt = assemble(context.answered(history))
    notices = []
    if prompt.trimmed:
        notices.append({"code": "context_trimmed", "text": "The oldest messages of this chat were left out."})
    if prompt.max_output_tokens < output_tokens:
        text = f"The answer is limited to {prompt.max_output_tokens:,} tokens."
        notices.append({"code": "output_capped", "text": text})
    return Ready(pool=pool, prompt=prompt, notices=notices, content_tokens=content_tokens)
