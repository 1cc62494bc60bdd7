"""Beginning a turn: from a request to an accepted run, once per client_turn_id.

The steps P1–P4 of the turn protocol (docs/turn.md). The database decides between duplicates; what was held for the
loser is given back unless the winner shares it.
"""

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import IntegrityError
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Limits
from billing.errors import AccountRebuilt
from conversations import acceptance, banner, jobs, limits, moderation, placement, preparation, selectors, titles
from conversations.acceptance import ChatMoved, CommitUncertain
from conversations.contracts import Begun
from conversations.errors import ChatNotFound, TurnConflict
from conversations.memory import Question
from conversations.models import Chat, Job, Message, Turn
from conversations.preparation import Ready
from inference import api as inference
from inference.contracts import Admission, PoolInfo
from inference.errors import AdmissionRefused, ChatBusy, PoolFull


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
        return acceptance.turn_name(chat_id=chat_id, client_turn_id=self.client_turn_id)


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

    Raises ChatNotFound, InvalidRequest, TurnConflict, Maintenance, Blocked, TooLong; inference's ChatBusy,
    PoolNotFound, AdmissionRefused, PoolFull, ServiceUnavailable, ChatTemplateRefused. After any of them nothing is
    stored and nothing is held, but for a ServiceUnavailable whose commit the database did not confirm: repeating the
    request finds out.
    """
    limits.check_content(content)
    limits.check_turn_id(client_turn_id)
    limits.check_pool(pool)
    asked = _Asked(
        content=content, client_turn_id=client_turn_id, pool=pool, max_output_tokens=max_output_tokens, now=now
    )

    def attempt(generation: int) -> Begun:
        chat = selectors.chat_for(owner_id=owner_id, chat_id=chat_id)
        known = _known(chat, asked)
        if known is not None:
            return known
        try:
            return _begin_new(chat, asked, generation=generation)
        except (ChatBusy, AdmissionRefused, PoolFull):
            # What is in the way may be this very turn, accepted a moment ago through another process.
            known = _known(chat, asked)
            if known is None:
                raise
            return known

    return acceptance.persistently(attempt)


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
    """Check, admit and store a turn that is not known. Raises as `begin`, and what makes it begin again."""
    banner.refuse_during_maintenance(now=asked.now)
    allowed = billing.limits_for(user_id=chat.owner_id, now=asked.now)
    pool = _pool(chat, asked, plan=allowed.plan)
    limits.check_output_tokens(asked.max_output_tokens, most=pool.max_output_tokens)
    busy = inference.active_run(chat_id=chat.id)
    if busy is not None:
        raise ChatBusy(run_id=busy)
    moderation.check(user_id=chat.owner_id, content=asked.content)

    question = Question(content=asked.content)

    def prepare(for_pool: PoolInfo) -> Ready:
        return preparation.prepare(
            chat,
            question=question,
            seq=chat.last_seq + 1,
            pool=for_pool,
            output_tokens=asked.max_output_tokens,
            allowed=allowed,
        )

    def admit(ready: Ready) -> Admission:
        return inference.admit(
            user_id=chat.owner_id,
            pool=ready.pool,
            turn=asked.turn_name(chat.id),
            prompt_tokens=len(ready.prompt.ids),
            max_output_tokens=ready.prompt.max_output_tokens,
            limits=allowed,
            min_generation=generation,
            now=asked.now,
        )

    # Who names a pool for this very message wants that one, short or not.
    placed = placement.place(pool=pool, allowed=allowed, may_route=asked.pool is None, prepare=prepare, admit=admit)
    held, ready = placed.held, placed.ready
    try:
        begun = acceptance.store(held, lambda: _write(chat, asked, held=held, ready=ready, allowed=allowed))
    except (IntegrityError, ChatBusy, ChatNotFound, ChatMoved) as error:
        known = _known(chat, asked, held=held)
        if known is None:
            inference.release(held)
            if isinstance(error, IntegrityError):
                # What was in the way is gone already: a run that ended between its refusal and our look.
                raise ChatMoved from error
            raise
        return known
    except (AccountRebuilt, CommitUncertain):
        # The rebuild dropped the hold, or keeps it for a run that lives on it. An uncertain commit may have made such
        # a run: a repeat of the request finds the hold again, and the reaper what nobody repeats.
        raise
    except BaseException:
        inference.release(held)
        raise
    inference.enqueue(begun.run)
    ready.remember(chat, run_id=begun.run.id, revision=chat.revision + 1)
    return begun


def _pool(chat: Chat, asked: _Asked, *, plan: str) -> PoolInfo:
    """The pool that was asked for, else the chat's; where that is closed by now, the default one goes on."""
    if asked.pool is not None:
        return inference.pool_for(plan=plan, slug=asked.pool)
    return preparation.pool_or_default(plan=plan, slug=chat.pool)


def _write(chat: Chat, asked: _Asked, *, held: Admission, ready: Ready, allowed: Limits) -> Begun:
    """Store turn, run and message. Raises IntegrityError for a turn that exists, ChatBusy, ChatNotFound, ChatMoved."""
    run_id = uuid7()
    turn = Turn.objects.create(
        chat=chat,
        client_turn_id=asked.client_turn_id,
        fingerprint=asked.fingerprint,
        max_output_tokens=asked.max_output_tokens,
        run_id=run_id,
        created_at=asked.now,
    )
    run = inference.accept_run(
        run_id=run_id,
        chat_id=chat.id,
        turn=asked.turn_name(chat.id),
        pool=ready.pool,
        held=held,
        prompt_ids=ready.prompt.ids,
        base=ready.prompt.base,
        context=ready.granted(held.max_output_tokens).snapshot(),
        limits=allowed,
        degraded=ready.degraded,
        now=asked.now,
    )
    fresh = acceptance.lock_chat(chat)
    fresh.last_seq += 1
    fresh.revision += 1
    fresh.last_active_at = asked.now
    if not fresh.title:
        fresh.title, fresh.title_by = titles.first_words(asked.content), Chat.TitleBy.WORDS
    fresh.save(update_fields=["last_seq", "revision", "last_active_at", "title", "title_by"])
    if ready.prompt.is_full and allowed.long_memory:
        # Before the turns leave the prompt: they are all there when the first of them is looked for.
        jobs.want(chat_id=chat.id, kind=Job.Kind.VECTORS, pool=ready.pool.slug, now=asked.now)
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
