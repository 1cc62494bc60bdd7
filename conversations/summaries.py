"""Rolling summaries: the oldest turns of a long chat, folded into a few sentences of which the next ones go on.

A version is made of the one before it and of the turns since; once made it is never changed, so that the prompts
between two versions begin alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from conversations import context, quoting, reasoning, selectors
from conversations.context import Budget, PastMessage, PastSummary
from conversations.models import Chat, Summary
from inference import api as inference
from inference.contracts import ChatTokenizer, ChatTurn, PoolInfo

_SYSTEM = (
    "You summarise conversations for an assistant that goes on with them. Keep names, numbers, facts, decisions, "
    "wishes and open questions. Write plain sentences and nothing else."
)
_BEFORE = "The summary so far:\n{summary}\n\n"
_ASK = "{before}The conversation goes on:\n{turns}\n\nWrite the summary of all of it, in at most {words} words."
# Tokens of the turns at least, in a prompt that should have no room for any.
_LEAST = 64
# Messages folded into one version at most; what is left is folded into the next.
_MOST = 400
# Of a turn that is too long for the prompt, each message takes at most this part of what the one before it leaves.
_PART = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A summary to be made: what is asked for it, of which messages, and how much may be written for it, in tokens: of
    that the summary itself may be `summary_tokens` long.
    """

    version: int
    first_seq: int
    last_seq: int
    prompt_ids: list[int]
    summary_tokens: int
    max_output_tokens: int


def fold(chat: Chat, *, answering: PoolInfo, budget: Budget, pool: PoolInfo) -> Fold | None:
    """The next summary of a chat; None where it is not above its high-water mark.

    `budget` is that of the pool that is `answering` the chat: it decides how much is folded. `pool` makes the summary:
    its window decides how much at a time. Raises inference's ServiceUnavailable and ChatTemplateRefused.
    """
    counts = inference.tokenizer_for(answering)
    system_tokens = counts.count(answering.system_prompt)
    last = selectors.summary(chat=chat, version=chat.summary_version)
    after = 0 if last is None else last.last_seq
    turns = context.by_turn(selectors.oldest_after(chat=chat, seq=after, limit=_MOST))
    sizes = context.sizes(turns, tokenizer=counts, most=answering.context_window)
    unread = selectors.size_after(chat=chat, seq=turns[-1][-1].seq) if turns else 0
    excess = context.to_fold(
        sum(sizes) + unread,
        summary_tokens=context.summary_tokens(last, tokenizer=counts),
        budget=budget,
        system_tokens=system_tokens,
    )
    folded = context.oldest_turns(turns, sizes, tokens=excess)
    if not folded:
        return None
    output = min(budget.summary_tokens(system_tokens=system_tokens), pool.max_output_tokens, pool.context_window // 4)
    return _within(last, folded, output=output, pool=pool, tokenizer=inference.tokenizer_for(pool))


def _within(
    last: PastSummary | None, folded: Sequence[PastMessage], *, output: int, pool: PoolInfo, tokenizer: ChatTokenizer
) -> Fold:
    """As many of the messages to fold, from the oldest on, as one prompt has room for; a turn at least."""
    before = ""
    if last is not None:
        # It may be longer than this pool has room for: another one made it.
        most = pool.context_window // 4
        before = _BEFORE.format(summary=quoting.shortened(last.content, most=most, tokenizer=tokenizer))
    words = output * 2 // 3

    def asked(turns: Sequence[str]) -> list[int]:
        ask = _ASK.format(before=before, turns="\n\n".join(turns), words=words)
        return tokenizer.encode_chat([ChatTurn("system", _SYSTEM), ChatTurn("user", ask)], thinking=False)

    alone = asked([])
    summary_tokens = output
    output += reasoning.room(alone, said_before=folded, window=pool.context_window, tokenizer=tokenizer)
    room = max(_LEAST, pool.context_window - output - len(alone))
    quoted: list[str] = []
    end = 0
    for turn in context.by_turn(folded):
        said = [(message.role, reasoning.said(message)) for message in turn]
        texts = [f"{role.capitalize()}: {content}" for role, content in said if content]
        tokens = _tokens(texts, tokenizer=tokenizer)
        if tokens > room:
            # Left whole for the next version, unless it is the first: then it must do.
            if end:
                break
            texts = _shortened(texts, room=room, tokenizer=tokenizer)
            tokens = _tokens(texts, tokenizer=tokenizer)
        room -= tokens
        quoted += texts
        end += len(turn)
    ids = asked(quoted)
    return Fold(
        version=1 if last is None else last.version + 1,
        first_seq=folded[0].seq,
        last_seq=folded[end - 1].seq,
        prompt_ids=ids,
        summary_tokens=summary_tokens,
        max_output_tokens=min(output, pool.context_window - len(ids)),
    )


def _tokens(texts: Sequence[str], *, tokenizer: ChatTokenizer) -> int:
    """Of texts with the line feeds between them."""
    return sum(tokenizer.count(text) + 2 for text in texts)


def _shortened(texts: Sequence[str], *, room: int, tokenizer: ChatTokenizer) -> list[str]:
    """The texts by their beginnings and ends, each in at most a part of the room that those before it leave."""
    found = []
    for text in texts:
        found.append(quoting.shortened(text, most=int(room * _PART), tokenizer=tokenizer))
        room = max(0, room - _tokens(found[-1:], tokenizer=tokenizer))
    return found


def store(
    *,
    chat_id: UUID,
    version: int,
    first_seq: int,
    last_seq: int,
    text: str,
    model: str,
    run_id: UUID,
    now: datetime,
) -> bool:
    """Store a summary that a model made, as the chat's newest. False where it says nothing, or is not of the newest.

    Call it in the transaction that settles its run.
    """
    if not text:
        return False
    # One job of a chat at a time makes its summaries, each of the version that it found.
    newer = Chat.objects.filter(id=chat_id, summary_version=version - 1).update(summary_version=version)
    if newer:
        Summary.objects.create(
            chat_id=chat_id,
            version=version,
            first_seq=first_seq,
            last_seq=last_seq,
            content=text,
            model=model,
            run_id=run_id,
            created_at=now,
        )
    return bool(newer)
