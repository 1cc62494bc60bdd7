"""Beginning a turn: from a request to an accepted run, once per client_turn_id.

The steps P1–P4 of the turn protocol (docs/turn.md). The database decides between duplicates; what was held for the
loser is given back unless the winner shares it.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import Error, IntegrityError, transaction
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.errors import AccountRebuilt
from conversations import limits, moderation, preparation, selectors
from conversations.contracts import Begun
from conversations.errors import ChatNotFound, TurnConflict
from conversations.models import Chat, Message, Turn
from conversations.preparation import Ready
from inference import api as inference
from inference.contracts import Admission, PoolInfo
from inference.errors import AdmissionRefused, ChatBusy, PoolNotFound, ServiceUnavailable

_TRIES = 3
_TITLE_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request for a turn."""

    content: str
    client_turn_id: str
    pool: str | None
    max_output_tokens: int | None
    now: datetime

    @property
    def fingerprint(self) -> str:
        """A digest of what a repeat must ask for, too."""
        return hashlib.sha256(json.dumps([self.content, self.pool, self.max_output_tokens]).encode()).hexdigest()

    def turn_name(self, chat_id: UUID) -> str:
        """The turn's name in admission: the same for every request of it, before anything is stored."""
        return hashlib.sha256(f"{chat_id}:{self.client_turn_id}".encode()).hexdigest()[:32]


class _ChatMoved(Exception):
    """A message was stored in the chat since the prompt was made, which would lack it."""


class _CommitUncertain(Exception):
    """The database failed in the commit itself: it may hold the turn or not."""


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
    AdmissionRefused, ServiceUnavailable, ChatTemplateRefused. After any of them nothing is stored and nothing is held,
    but for a ServiceUnavailable whose commit the database did not confirm: repeating the request finds out.
    """
    limits.check_content(content)
    limits.check_turn_id(client_turn_id)
    limits.check_pool(pool)
    asked = _Asked(
        content=content, client_turn_id=client_turn_id, pool=pool, max_output_tokens=max_output_tokens, now=now
    )
    generation = 0
    for _ in range(_TRIES):
        chat = selectors.chat_for(owner_id=owner_id, chat_id=chat_id)
        known = _known(chat, asked)
        if known is not None:
            return known
        try:
            return _begin_new(chat, asked, generation=generation)
        except (ChatBusy, AdmissionRefused):
            # What is in the way may be this very turn, accepted a moment ago through another process.
            known = _known(chat, asked)
            if known is None:
                raise
            return known
        except AccountRebuilt as error:
            generation = error.current
        except _ChatMoved:
            pass
        except _CommitUncertain as error:
            raise ServiceUnavailable(reason="the database did not confirm the message", retry_after=1) from error
    raise ServiceUnavailable(reason="the chat or its owner's account keeps changing", retry_after=1)


def _known(chat: Chat, asked: _Asked, *, held: Admission | None = None) -> Begun | None:
    """The turn that was accepted under this name. Gives `held` back unless that turn lives on it."""
    turn = selectors.turn_of(chat_id=chat.id, client_turn_id=asked.client_turn_id)
    if turn is None:
        return None
    run = inference.run_for(owner_id=chat.owner_id, run_id=turn.run_id)
    if held is not None and run.admission_id != held.admission_id:
        inference.release(held)
    if turn.fingerprint != asked.fingerprint:
        raise TurnConflict(client_turn_id=asked.client_turn_id)
    return Begun(run=run, message=selectors.user_message_of(turn), created=False)


def _begin_new(chat: Chat, asked: _Asked, *, generation: int) -> Begun:
    """Check, admit and store a turn that is not known. Raises as `begin`, and AccountRebuilt and _ChatMoved."""
    pool = _pool(chat, asked)
    output_tokens = limits.output_tokens(asked.max_output_tokens, most=pool.max_output_tokens)
    busy = inference.active_run(chat_id=chat.id)
    if busy is not None:
        raise ChatBusy(run_id=busy)
    moderation.check(user_id=chat.owner_id, content=asked.content)
    allowed = billing.limits_for(user_id=chat.owner_id, now=asked.now)
    ready = preparation.prepare(chat, content=asked.content, pool=pool, output_tokens=output_tokens, allowed=allowed)
    held = inference.admit(
        user_id=chat.owner_id,
        pool=pool,
        turn=asked.turn_name(chat.id),
        prompt_tokens=len(ready.prompt.ids),
        max_output_tokens=ready.prompt.max_output_tokens,
        limits=allowed,
        min_generation=generation,
        now=asked.now,
    )
    try:
        begun = _store(chat, asked, held=held, ready=ready)
    except (IntegrityError, ChatBusy, ChatNotFound, _ChatMoved) as error:
        known = _known(chat, asked, held=held)
        if known is None:
            inference.release(held)
            if isinstance(error, IntegrityError):
                # What was in the way is gone already: a run that ended between its refusal and our look.
                raise _ChatMoved from error
            raise
        return known
    except (AccountRebuilt, _CommitUncertain):
        # The rebuild dropped the hold, or keeps it for a run that lives on it. An uncertain commit may have made such
        # a run: a repeat of the request finds the hold again, and the reaper what nobody repeats.
        raise
    except BaseException:
        inference.release(held)
        raise
    inference.enqueue(begun.run)
    return begun


def _pool(chat: Chat, asked: _Asked) -> PoolInfo:
    """The pool that was asked for, else the chat's; where that is closed by now, the default one goes on."""
    if asked.pool is not None:
        return inference.pool_for(user_id=chat.owner_id, slug=asked.pool)
    try:
        return inference.pool_for(user_id=chat.owner_id, slug=chat.pool)
    except PoolNotFound:
        return inference.pool_for(user_id=chat.owner_id, slug=None)


def _store(chat: Chat, asked: _Asked, *, held: Admission, ready: Ready) -> Begun:
    """Store turn, run and message in one transaction.

    Raises IntegrityError for a turn that exists, AccountRebuilt, ChatBusy, ChatNotFound, _ChatMoved, _CommitUncertain.
    """
    begun = None
    try:
        with transaction.atomic():
            billing.lock_account(user_id=held.user_id, generation=held.generation)
            begun = _write(chat, asked, held=held, ready=ready)
    except IntegrityError:
        raise
    except Error as error:
        if begun is not None:
            raise _CommitUncertain from error
        raise
    return begun


def _write(chat: Chat, asked: _Asked, *, held: Admission, ready: Ready) -> Begun:
    run_id = uuid7()
    turn = Turn.objects.create(
        chat=chat,
        client_turn_id=asked.client_turn_id,
        fingerprint=asked.fingerprint,
        run_id=run_id,
        created_at=asked.now,
    )
    # Before the chat is locked: where its last run is just being settled, the constraint on active runs waits for
    # that, and the settlement locks the chat.
    run = inference.accept_run(
        run_id=run_id,
        chat_id=chat.id,
        turn=asked.turn_name(chat.id),
        pool=ready.pool,
        held=held,
        prompt_ids=ready.prompt.ids,
        max_output_tokens=ready.prompt.max_output_tokens,
        context=ready.prompt.snapshot() | {"notices": ready.notices},
        now=asked.now,
    )
    fresh = Chat.objects.select_for_update().filter(id=chat.id, deleted_at__isnull=True).first()
    if fresh is None:
        raise ChatNotFound
    if fresh.last_seq != chat.last_seq:
        raise _ChatMoved
    fresh.last_seq += 1
    fresh.last_active_at = asked.now
    fresh.title = fresh.title or _title(asked.content)
    fresh.save(update_fields=["last_seq", "last_active_at", "title"])
    message = Message.objects.create(
        chat=chat,
        turn=turn,
        seq=fresh.last_seq,
        role=Message.Role.USER,
        content=asked.content,
        token_count=ready.content_tokens,
        run_id=run_id,
        created_at=asked.now,
    )
    return Begun(run=run, message=selectors.message_info(message), created=True)


def _title(content: str) -> str:
    """The first words, until a better title is made."""
    words = " ".join(content[: 4 * _TITLE_CHARACTERS].split())
    if len(words) <= _TITLE_CHARACTERS:
        return words
    cut = words[:_TITLE_CHARACTERS]
    return (cut.rsplit(" ", 1)[0] or cut) + "…"
