"""Reads: chats, messages and turns, always of one owner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, Sum

from conversations.context import PastMessage, PastSummary
from conversations.contracts import MessageInfo
from conversations.errors import ChatNotFound
from conversations.models import Chat, Message, Summary, Turn, TurnVectors
from inference import api as inference

# A message takes at least this many tokens of a prompt: its content, and the template around it.
_LEAST_TOKENS = 5
_FIRST_BATCH = 40
_PAST = ("seq", "role", "content", "token_count", "opens_reasoning", "token_ids", "token_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRun:
    """Where to follow the answer that a chat is waiting for."""

    id: UUID
    events_url: str


def events_url(run_id: UUID) -> str:
    return f"/api/v1/runs/{run_id}/events"


def chats_of(*, owner_id: UUID) -> QuerySet[Chat]:
    """The owner's chats."""
    return Chat.objects.filter(owner_id=owner_id, deleted_at__isnull=True)


def chat_for(*, owner_id: UUID, chat_id: UUID) -> Chat:
    """One chat of this owner. Raises ChatNotFound."""
    chat = chats_of(owner_id=owner_id).filter(id=chat_id).first()
    if chat is None:
        raise ChatNotFound
    return chat


def chat_with_run(*, owner_id: UUID, chat_id: UUID, run_id: UUID) -> Chat:
    """One chat of this owner in which the run answers a turn. Raises ChatNotFound."""
    chat = chat_for(owner_id=owner_id, chat_id=chat_id)
    if not Turn.objects.filter(chat=chat, run_id=run_id).exists():
        raise ChatNotFound
    return chat


def recent_chats(*, owner_id: UUID, limit: int) -> list[Chat]:
    """The owner's chats, last active first."""
    return list(chats_of(owner_id=owner_id)[:limit])


def messages_of(*, chat: Chat) -> QuerySet[Message]:
    """The chat's visible messages, newest first."""
    return Message.objects.filter(chat=chat, hidden=False).order_by("-seq").defer("token_ids")


def latest_messages(*, chat: Chat, limit: int) -> list[Message]:
    """The chat's newest messages, newest first."""
    return list(messages_of(chat=chat)[:limit])


def active_run(*, chat: Chat) -> ActiveRun | None:
    """The run that the chat is waiting for."""
    return active_runs(chats=[chat]).get(chat.id)


def active_runs(*, chats: list[Chat]) -> dict[UUID, ActiveRun]:
    """Chat id → the run it is waiting for, for those that wait."""
    found = inference.active_runs(chat_ids=[chat.id for chat in chats])
    return {chat_id: ActiveRun(id=run_id, events_url=events_url(run_id)) for chat_id, run_id in found.items()}


def turn_of(*, chat_id: UUID, client_turn_id: str) -> Turn | None:
    """The chat's turn of this name."""
    return Turn.objects.filter(chat_id=chat_id, client_turn_id=client_turn_id).first()


def turn_answered_by(*, owner_id: UUID, run_id: UUID) -> Turn:
    """The turn that the run answers, with its chat, which is this owner's. Raises ChatNotFound."""
    turn = (
        Turn.objects.select_related("chat")
        .filter(run_id=run_id, chat__owner_id=owner_id, chat__deleted_at__isnull=True)
        .first()
    )
    if turn is None:
        raise ChatNotFound
    return turn


def is_last(turn: Turn, *, message: MessageInfo) -> bool:
    """Whether nothing was sent after the message that began the turn."""
    return not Message.objects.filter(chat_id=turn.chat_id, role=Message.Role.USER, seq__gt=message.seq).exists()


def answer_to(turn: Turn) -> str:
    """The text of the turn's stored answer, hidden or not; empty where there is none."""
    found = Message.objects.filter(turn=turn, role=Message.Role.ASSISTANT).values_list("content", flat=True).first()
    return found or ""


def user_message_of(turn: Turn) -> MessageInfo:
    """The message that began a turn. Raises ChatNotFound when the chat was erased since the turn was read."""
    message = Message.objects.filter(turn=turn, role=Message.Role.USER).first()
    if message is None:
        raise ChatNotFound
    return message_info(message)


def summary(*, chat: Chat, version: int) -> PastSummary | None:
    """That version of the chat's summary; None where there is none, which is version 0."""
    if version == 0:
        return None
    found = Summary.objects.filter(chat=chat, version=version).values_list("last_seq", "content").first()
    return None if found is None else PastSummary(version=version, last_seq=found[0], content=found[1])


def since(*, chat: Chat, after: int, before: int, model: str) -> list[PastMessage]:
    """The first two of the chat's messages between those, oldest first, as `history` gives them."""
    rows = _said(chat).filter(seq__gt=after, seq__lt=before).order_by("seq")
    return [_past(*row, model=model) for row in rows.values_list(*_PAST)[:2]]


def history(*, chat: Chat, before: int, token_budget: int, model: str) -> tuple[list[PastMessage], bool]:
    """The newest of the chat's messages before `before` that could fit `token_budget`, and one more, oldest first.

    And whether those are all there are. Answers that `model` gave come with their own token ids. Reads no more of a
    long chat than that, so that sending does not slow down as a chat grows.
    """
    newest_first = _said(chat).filter(seq__lt=before).values_list(*_PAST)
    found: list[PastMessage] = []
    # One query nearly always. The batches grow, so that a chat of very short messages takes few, but never beyond
    # what the rest of the budget can hold.
    batch = _FIRST_BATCH
    while True:
        page = [_past(*row, model=model) for row in newest_first[len(found) : len(found) + batch]]
        for number, message in enumerate(page):
            found.append(message)
            token_budget -= max(message.token_count, _LEAST_TOKENS)
            if token_budget < 0:
                return found[::-1], number + 1 == len(page) < batch
        if len(page) < batch:
            return found[::-1], True
        batch = min(4 * batch, token_budget // _LEAST_TOKENS + 1)


def size_after(*, chat: Chat, seq: int) -> int:
    """How many tokens the chat's messages after that have, by their counts."""
    return int(_said(chat).filter(seq__gt=seq).aggregate(tokens=Sum("token_count", default=0))["tokens"])


def oldest_after(*, chat: Chat, seq: int, limit: int) -> list[PastMessage]:
    """The chat's first messages after `seq`, at most `limit` of them, oldest first, without their ids."""
    rows = _said(chat).filter(seq__gt=seq).order_by("seq").values_list(*_PAST)
    return [_past(*row, model="") for row in rows[:limit]]


def turns_at(*, chat: Chat, seqs: Sequence[int]) -> dict[int, list[PastMessage]]:
    """The turns that begin with these messages: by its number each one's question and answer, as far as they say
    something. Without their ids.
    """
    # Nothing is said between a message and its answer: the chat is busy.
    wanted = {number for seq in seqs for number in (seq, seq + 1)}
    turns: dict[int, list[PastMessage]] = {}
    for row in _said(chat).filter(seq__in=wanted).order_by("seq").values_list(*_PAST):
        message = _past(*row, model="")
        if message.role == Message.Role.USER:
            turns[message.seq] = [message]
        elif message.seq - 1 in turns:
            turns[message.seq - 1].append(message)
    return {seq: turns[seq] for seq in seqs if seq in turns}


def first_answered(*, chat: Chat) -> list[PastMessage]:
    """The chat's first question that got an answer, and that. Without their ids; empty where there is none."""
    turn_id = _said(chat).filter(role=Message.Role.ASSISTANT).order_by("seq").values_list("turn_id", flat=True).first()
    if turn_id is None:
        return []
    rows = list(_said(chat).filter(turn_id=turn_id).order_by("seq").values_list(*_PAST))
    # A retry may have begun meanwhile, which hides the answer.
    return [_past(*row, model="") for row in rows] if len(rows) == 2 else []


def turn_vectors(*, chat: Chat, before: int, model: str, limit: int) -> list[tuple[int, bytes]]:
    """Of the chat's turns before message `before` the newest `limit` that have vectors of this model: where they begin,
    and the vectors.
    """
    rows = TurnVectors.objects.filter(chat=chat, seq__lt=before, model=model).order_by("-seq")
    return [(seq, bytes(vectors)) for seq, vectors in rows.values_list("seq", "vectors")[:limit]]


def turns_without_vectors(*, chat_id: UUID, model: str, limit: int) -> list[int]:
    """Where those of the chat's newest `limit` turns begin that have no vectors of this model, newest first.

    Without the last turn, whose answer a retry may still replace.
    """
    asked = Message.objects.filter(chat_id=chat_id, role=Message.Role.USER).order_by("-seq")
    made = set(TurnVectors.objects.filter(chat_id=chat_id, model=model).values_list("seq", flat=True))
    return [seq for seq in asked.values_list("seq", flat=True)[1 : limit + 1] if seq not in made]


def _said(chat: Chat) -> QuerySet[Message]:
    """The visible messages that say something, newest first."""
    return messages_of(chat=chat).exclude(role=Message.Role.ASSISTANT, content="")


def _past(
    seq: int,
    role: str,
    content: str,
    token_count: int,
    opens_reasoning: bool,
    token_ids: Any,
    token_model: str,
    *,
    model: str,
) -> PastMessage:
    own = bytes(token_ids) if token_ids and token_model == model else b""
    return PastMessage(
        seq=seq, role=role, content=content, token_count=token_count, opens_reasoning=opens_reasoning, token_ids=own
    )


def message_info(message: Message) -> MessageInfo:
    return MessageInfo(
        id=message.id,
        chat_id=message.chat_id,
        seq=message.seq,
        role=message.role,
        content=message.content,
        state=message.state,
        code=message.code,
        degraded=message.degraded,
        run_id=message.run_id,
        created_at=message.created_at,
    )
