"""Beginning a turn: from a request to an accepted run, once per client_turn_id.

The steps P1–P4 of the turn protocol (docs/turn.md). The database decides between duplicates; what was held for the
loser is given back unless the winner shares it.
"""

import hashlib
import json
from datetime import datetime
from uuid import UUID

from django.db import IntegrityError, transaction
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Limits
from billing.errors import AccountRebuilt
from conversations import context, limits, moderation, selectors
from conversations.contracts import Begun
from conversations.errors import ChatNotFound, TurnConflict
from conversations.models import Chat, Message, Turn
from inference import api as inference
from inference.contracts import Admission, PoolInfo
from inference.errors import AdmissionRefused, ChatBusy, ServiceUnavailable

_TRIES = 3
_TITLE_CHARACTERS = 60


def begin(
    *,
    owner_id: UUID,
    chat_id: UUID,
    content: str,
    client_turn_id: str,
    pool: str | None,
    max_output_tokens: int | None,
    now: datetime,
) -> Begun:
    """Accept a user message and the run that answers it, or find the turn of this client_turn_id again.

    Raises ChatNotFound, InvalidRequest, TurnConflict, Blocked, TooLong; inference's ChatBusy, PoolNotFound,
    AdmissionRefused, ServiceUnavailable. After any of them nothing is stored and nothing is held.
    """
    limits.check_content(content)
    limits.check_turn_id(client_turn_id)
    chat = selectors.chat_for(owner_id=owner_id, chat_id=chat_id)
    fingerprint = _fingerprint(content=content, pool=pool, max_output_tokens=max_output_tokens)
    known = _known(chat, client_turn_id=client_turn_id, fingerprint=fingerprint)
    if known is not None:
        return known
    chosen = inference.pool_for(user_id=owner_id, slug=pool or chat.pool)
    output_tokens = limits.output_tokens(max_output_tokens, most=chosen.max_output_tokens)
    busy = inference.active_run(chat_id=chat.id)
    if busy is not None:
        raise ChatBusy(run_id=busy)
    moderation.check(user_id=owner_id, content=content)
    allowed = billing.limits_for(user_id=owner_id, now=now)
    prompt, notices = _prompt(chat, content=content, pool=chosen, output_tokens=output_tokens, allowed=allowed)
    turn_name = _turn_name(chat_id=chat.id, client_turn_id=client_turn_id)

    generation = 0
    for _ in range(_TRIES):
        try:
            held = inference.admit(
                user_id=owner_id,
                pool=chosen.slug,
                turn=turn_name,
                prompt_tokens=len(prompt.ids),
                max_output_tokens=prompt.max_output_tokens,
                limits=allowed,
                min_generation=generation,
                now=now,
            )
        except AdmissionRefused:
            # The refusal may come from this very turn, accepted a moment ago through another process.
            known = _known(chat, client_turn_id=client_turn_id, fingerprint=fingerprint)
            if known is not None:
                return known
            raise
        try:
            begun = _accept(
                chat,
                content=content,
                client_turn_id=client_turn_id,
                fingerprint=fingerprint,
                turn_name=turn_name,
                held=held,
                pool=chosen,
                prompt=prompt,
                notices=notices,
                now=now,
            )
        except IntegrityError:
            known = _known(chat, client_turn_id=client_turn_id, fingerprint=fingerprint, held=held)
            if known is None:
                inference.release(held)
                raise
            return known
        except AccountRebuilt as error:
            generation = error.current
            continue
        except BaseException:
            inference.release(held)
            raise
        inference.enqueue(run_id=begun.run.id)
        return begun
    raise ServiceUnavailable(reason="the quota account is being rebuilt", retry_after=1)


def _known(chat: Chat, *, client_turn_id: str, fingerprint: str, held: Admission | None = None) -> Begun | None:
    """The turn that was accepted under this name. Gives `held` back unless that turn lives on it."""
    turn = selectors.turn_of(chat_id=chat.id, client_turn_id=client_turn_id)
    if turn is None:
        return None
    run = inference.run_for(owner_id=chat.owner_id, run_id=turn.run_id)
    if held is not None and run.admission_id != held.admission_id:
        inference.release(held)
    if turn.fingerprint != fingerprint:
        raise TurnConflict(client_turn_id=client_turn_id)
    return Begun(run=run, message=selectors.user_message_of(turn), created=False)


def _prompt(
    chat: Chat, *, content: str, pool: PoolInfo, output_tokens: int, allowed: Limits
) -> tuple[context.Prompt, list[dict[str, str]]]:
    """The prompt, and what the reader should be told about it."""
    notices = []
    wanted = output_tokens
    if allowed.max_output_tokens is not None:
        wanted = min(wanted, allowed.max_output_tokens)
    prompt = context.assemble(
        system_prompt=pool.system_prompt,
        history=selectors.history(chat=chat, token_budget=pool.context_window),
        new=context.PastMessage(seq=chat.last_seq + 1, role="user", content=content),
        tokenizer=inference.tokenizer_for(pool),
        context_window=pool.context_window,
        max_output_tokens=wanted,
        max_prompt_tokens=allowed.max_prompt_tokens,
    )
    if prompt.trimmed:
        notices.append({"code": "context_trimmed", "text": "The oldest messages of this chat were left out."})
    if prompt.max_output_tokens < output_tokens:
        notices.append(
            {
                "code": "output_capped",
                "text": f"The answer is limited to {prompt.max_output_tokens:,} tokens.",
            }
        )
    return prompt, notices


def _accept(
    chat: Chat,
    *,
    content: str,
    client_turn_id: str,
    fingerprint: str,
    turn_name: str,
    held: Admission,
    pool: PoolInfo,
    prompt: context.Prompt,
    notices: list[dict[str, str]],
    now: datetime,
) -> Begun:
    """Store turn, run and message in one transaction.

    Raises IntegrityError for a turn that exists, AccountRebuilt, ChatBusy, ChatNotFound.
    """
    with transaction.atomic():
        billing.lock_account(user_id=held.user_id, generation=held.generation)
        run_id = uuid7()
        turn = Turn.objects.create(
            chat=chat, client_turn_id=client_turn_id, fingerprint=fingerprint, run_id=run_id, created_at=now
        )
        fresh = Chat.objects.select_for_update().filter(id=chat.id, deleted_at__isnull=True).first()
        if fresh is None:
            raise ChatNotFound
        run = inference.accept_run(
            run_id=run_id,
            chat_id=chat.id,
            turn=turn_name,
            pool=pool.slug,
            held=held,
            prompt_ids=prompt.ids,
            max_output_tokens=prompt.max_output_tokens,
            context=prompt.snapshot() | {"notices": notices},
            now=now,
        )
        fresh.last_seq += 1
        fresh.last_active_at = now
        fresh.title = fresh.title or _title(content)
        fresh.save(update_fields=["last_seq", "last_active_at", "title"])
        message = Message.objects.create(
            chat=chat,
            turn=turn,
            seq=fresh.last_seq,
            role=Message.Role.USER,
            content=content,
            token_count=inference.tokenizer_for(pool).count(content),
            run_id=run_id,
            created_at=now,
        )
    return Begun(run=run, message=selectors.message_info(message), created=True)


def _title(content: str) -> str:
    """The first words, until a better title is made."""
    words = " ".join(content[: 4 * _TITLE_CHARACTERS].split())
    if len(words) <= _TITLE_CHARACTERS:
        return words
    cut = words[:_TITLE_CHARACTERS]
    return (cut.rsplit(" ", 1)[0] or cut) + "…"


def _turn_name(*, chat_id: UUID, client_turn_id: str) -> str:
    """The turn's name in admission: the same for every request of it, before anything is stored."""
    return hashlib.sha256(f"{chat_id}:{client_turn_id}".encode()).hexdigest()[:32]


def _fingerprint(*, content: str, pool: str | None, max_output_tokens: int | None) -> str:
    return hashlib.sha256(json.dumps([content, pool, max_output_tokens]).encode()).hexdigest()
