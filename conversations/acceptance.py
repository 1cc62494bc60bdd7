"""Accepting an answer to be given: what sending and retrying share between a request and its commit.

A prompt is made, and tokens are held, before anything is stored; both may be out of date by then. The transaction finds
out, and the request begins again.
"""

import hashlib
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from django.db import Error, IntegrityError, transaction

from billing import api as billing
from billing.errors import AccountRebuilt
from conversations.errors import ChatNotFound
from conversations.models import Chat
from inference.contracts import Admission
from inference.errors import HoldTooSmall, ServiceUnavailable

T = TypeVar("T")

_TRIES = 3


class ChatMoved(Exception):
    """What is said in the chat has changed since the prompt was made, which would lack it."""


class CommitUncertain(Exception):
    """The database failed in the commit itself: it may hold what was asked for or not."""


def turn_name(*, chat_id: UUID, client_turn_id: str) -> str:
    """A turn's name in admission: the same for every request of it, before anything is stored."""
    return hashlib.sha256(f"{chat_id}:{client_turn_id}".encode()).hexdigest()[:32]


def persistently(attempt: Callable[[int], T]) -> T:
    """What `attempt(generation at least)` returns; made again while the chat or the account changes under it.

    And while another request of the same turn holds too little for this one's prompt.

    Raises what it raises, and ServiceUnavailable when that does not end or the database did not confirm a commit.
    """
    generation = 0
    for _ in range(_TRIES):
        try:
            return attempt(generation)
        except AccountRebuilt as error:
            generation = error.current
        except (ChatMoved, HoldTooSmall):
            pass
        except CommitUncertain as error:
            raise ServiceUnavailable(reason="the database did not confirm the message", retry_after=1) from error
    raise ServiceUnavailable(reason="the chat or its owner's account keeps changing", retry_after=1)


def store(held: Admission, write: Callable[[], T]) -> T:
    """What `write` returns, run in one transaction that holds only while the account is as at the admission.

    Raises what `write` raises, AccountRebuilt and CommitUncertain.
    """
    written = False
    try:
        with transaction.atomic():
            billing.lock_account(user_id=held.user_id, generation=held.generation)
            result = write()
            written = True
    except IntegrityError:
        raise
    except Error as error:
        if written:
            raise CommitUncertain from error
        raise
    return result


def lock_chat(chat: Chat) -> Chat:
    """The chat's row, held until the transaction ends. Raises ChatNotFound when it was deleted, and ChatMoved.

    Lock it after the run: a settlement has its run and then wants the chat, and the constraint on active runs makes
    others wait for that settlement. A deleted chat must not be waited for: who erases it has it and wants its runs.
    """
    fresh = Chat.objects.select_for_update().filter(id=chat.id, deleted_at__isnull=True).first()
    if fresh is None:
        raise ChatNotFound
    if fresh.revision != chat.revision:
        raise ChatMoved
    return fresh
