"""Retrying the last answer of a chat: an explicit new attempt of the same run, in place of what it gave.

Step Y of the turn protocol (docs/turn.md). Repeats of the request, at any timing, find the same attempt.
"""

from datetime import datetime
from uuid import UUID

from django.db import IntegrityError

from billing import api as billing
from billing.contracts import Limits
from billing.errors import AccountRebuilt
from conversations import acceptance, banner, chats, placement, preparation, selectors
from conversations.acceptance import ChatMoved, CommitUncertain
from conversations.contracts import Retried
from conversations.errors import ChatNotFound, NotLastTurn, NotRetryable
from conversations.memory import Question
from conversations.models import Turn
from conversations.preparation import Ready
from inference import api as inference
from inference.contracts import Admission, PoolInfo, RunInfo
from inference.errors import AdmissionRefused, ChatBusy, PoolFull, RunNotFound


class _Outdated(Exception):
    """The run is not any more what it was read as: somebody else has retried it."""


def retry(*, owner_id: UUID, run_id: UUID, now: datetime) -> Retried:
    """Answer the chat's last turn anew, from nothing; the answer there is stays hidden until then. Under way: as it is.

    Raises ChatNotFound, NotRetryable, NotLastTurn, Maintenance, TooLong; inference's RunNotFound, ChatBusy,
    PoolNotFound, AdmissionRefused, PoolFull, ServiceUnavailable, ChatTemplateRefused. After any of them nothing has
    changed, but for a ServiceUnavailable whose commit the database did not confirm: repeating the request finds out.
    """

    def attempt(generation: int) -> Retried:
        turn = selectors.turn_answered_by(owner_id=owner_id, run_id=run_id)
        run = inference.run_for(owner_id=owner_id, run_id=run_id)
        if run.is_active:
            return Retried(run=run, created=False)
        try:
            return _begin_anew(turn, run, generation=generation, now=now)
        except (ChatBusy, AdmissionRefused, PoolFull):
            # What is in the way may be this very retry, accepted a moment ago through another process.
            fresh = inference.run_for(owner_id=owner_id, run_id=run_id)
            if fresh.epoch == run.epoch:
                raise
            return Retried(run=fresh, created=False)

    return acceptance.persistently(attempt)


def _begin_anew(turn: Turn, run: RunInfo, *, generation: int, now: datetime) -> Retried:
    """Check, admit and store a new attempt of an ended run. Raises as `retry`, and what makes it begin again."""
    if not run.is_retryable:
        raise NotRetryable(run_status=run.status)
    banner.refuse_during_maintenance(now=now)
    question = selectors.user_message_of(turn)
    # Read before the look for a run: a newer turn comes with its run, which thus shows as what keeps the chat busy.
    is_last = selectors.is_last(turn, message=question)
    busy = inference.active_run(chat_id=turn.chat_id)
    if busy is not None:
        raise ChatBusy(run_id=busy)
    if not is_last:
        raise NotLastTurn
    allowed = billing.limits_for(user_id=run.owner_id, now=now)
    replaced_text = selectors.answer_to(turn)
    # The pool that was asked for then, whichever answered.
    pool = preparation.pool_or_default(plan=allowed.plan, slug=str(run.context.get("asked_pool", run.pool)))
    # What the answer there is holds must not count against the one that replaces it.
    inference.end_admission(run, text=replaced_text)

    asked = Question(content=question.content)

    def prepare(for_pool: PoolInfo) -> Ready:
        # As prompts are made today, of what was asked then: limits, pools and their windows may have changed.
        return preparation.prepare(
            turn.chat,
            question=asked,
            seq=question.seq,
            pool=for_pool,
            output_tokens=turn.max_output_tokens and min(turn.max_output_tokens, pool.max_output_tokens),
            allowed=allowed,
        )

    def admit(ready: Ready) -> Admission:
        return inference.admit(
            user_id=run.owner_id,
            pool=ready.pool,
            turn=acceptance.turn_name(chat_id=turn.chat_id, client_turn_id=turn.client_turn_id),
            base_epoch=run.epoch + 1,
            prompt_tokens=len(ready.prompt.ids),
            max_output_tokens=ready.prompt.max_output_tokens,
            limits=allowed,
            min_generation=generation,
            now=now,
        )

    # Who asks again wants another answer than the first one: no short cut to the smaller model.
    placed = placement.place(pool=pool, allowed=allowed, may_route=False, prepare=prepare, admit=admit)
    held, ready = placed.held, placed.ready

    def write() -> RunInfo:
        return _write(turn, run, held=held, ready=ready, allowed=allowed, text=replaced_text, now=now)

    try:
        retried = acceptance.store(held, write)
    except (_Outdated, IntegrityError, ChatBusy, ChatNotFound, ChatMoved) as error:
        known = _retried_meanwhile(run, held=held)
        if known is not None:
            return known
        if isinstance(error, _Outdated | IntegrityError):
            # What was in the way is gone already: a run that ended between its refusal and our look.
            raise ChatMoved from error
        raise
    except (AccountRebuilt, CommitUncertain):
        # The rebuild dropped the hold, or keeps it for a run that lives on it. An uncertain commit may have made such
        # a run: a repeat of the request finds the hold again, and the reaper what nobody repeats.
        raise
    except BaseException:
        inference.release(held)
        raise
    inference.enqueue(retried)
    ready.remember(turn.chat, run_id=run.id, revision=turn.chat.revision)
    return Retried(run=retried, created=True)


def _write(
    turn: Turn, run: RunInfo, *, held: Admission, ready: Ready, allowed: Limits, text: str, now: datetime
) -> RunInfo:
    """Queue the run and hide its answer. Raises _Outdated, ChatBusy, ChatNotFound, ChatMoved."""
    retried = inference.retry_run(
        run,
        pool=ready.pool,
        held=held,
        prompt_ids=ready.prompt.ids,
        base=ready.prompt.base,
        context=ready.granted(held.max_output_tokens).snapshot(),
        replaced_text=text,
        limits=allowed,
        degraded=ready.degraded,
        now=now,
    )
    if retried is None:
        raise _Outdated
    chats.withdraw_answer(acceptance.lock_chat(turn.chat), turn=turn, now=now)
    return retried


def _retried_meanwhile(run: RunInfo, *, held: Admission) -> Retried | None:
    """The attempt that another request has begun since `run` was read. Gives `held` back unless it lives on it."""
    try:
        fresh = inference.run_for(owner_id=run.owner_id, run_id=run.id)
    except RunNotFound:
        inference.release(held)
        raise
    if fresh.admission_id != held.admission_id:
        inference.release(held)
    return None if fresh.epoch == run.epoch else Retried(run=fresh, created=False)
