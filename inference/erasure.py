"""Erasing the runs of deleted chats, and what Redis holds of them and of deleted users."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import structlog
from django.db import transaction
from django.db.models import QuerySet

from inference import store
from inference.cell import erasure
from inference.cell.errors import StoreUnavailable
from inference.cell.stream import STREAM_TTL_MS
from inference.models import Run

log = structlog.get_logger(__name__)

# Runs in one script: it stays below a millisecond.
_BATCH = 100


def forget_chat(*, chat_id: UUID, now: datetime) -> None:
    """Erase a deleted chat's runs, none of which may be active, and after the commit their streams.

    Without Redis a stream lasts until it expires: 10 minutes after its end.
    """
    _forget(Run.objects.filter(chat_id=chat_id), now=now)


def forget_user(*, user_id: UUID, now: datetime) -> None:
    """Erase a deleted user's runs, as `forget_chat` does, and after the commit what Redis counts for the user."""
    _forget(Run.objects.filter(owner_id=user_id), now=now)
    transaction.on_commit(partial(_forget_account, user_id=user_id), robust=True)


def _forget(runs: QuerySet[Run], *, now: datetime) -> None:
    over = runs.exclude(status__in=Run.ACTIVE)
    # Older ones have no stream any more, and need not wait for a Redis that is away.
    lately = now - timedelta(milliseconds=STREAM_TTL_MS)
    recent = list(over.filter(finished_at__gt=lately).values_list("id", "chat_id"))
    over.delete()
    if recent:
        streamed, chats = [run_id for run_id, _ in recent], {chat_id for _, chat_id in recent}
        transaction.on_commit(partial(_forget_streams, run_ids=streamed), robust=True)
        transaction.on_commit(partial(_forget_homes, chat_ids=chats), robust=True)


def _forget_account(*, user_id: UUID) -> None:
    try:
        store.connector().run(
            lambda cell: cell.run(lambda client: erasure.forget_user(client, cell.keys, user_id=user_id))
        )
    except StoreUnavailable as error:
        # What stays names nobody, and is another server's business after a restart.
        log.warning("account_not_forgotten", user_id=str(user_id), error=str(error))


def _forget_homes(*, chat_ids: Collection[UUID]) -> None:
    try:
        store.connector().run(
            lambda cell: cell.run(lambda client: erasure.forget_homes(client, cell.keys, chat_ids=chat_ids))
        )
    except StoreUnavailable as error:
        # They expire within the hour, and hold no word.
        log.warning("homes_not_forgotten", chats=len(chat_ids), error=str(error))


def _forget_streams(*, run_ids: Sequence[UUID]) -> None:
    try:
        for start in range(0, len(run_ids), _BATCH):
            some = run_ids[start : start + _BATCH]
            store.connector().run(lambda cell: cell.call(erasure.forget_runs(cell.keys, run_ids=some)))  # noqa: B023
    except StoreUnavailable as error:
        log.warning("streams_not_forgotten", runs=len(run_ids), error=str(error))
