"""Erasing what Redis holds of runs and users that are gone from the database."""

from collections.abc import Collection, Sequence
from itertools import chain
from uuid import UUID

import redis

from inference.cell.keys import Keys
from inference.cell.link import ScriptCall
from inference.cell.stream import SETTLED_TTL_MS, TERMINAL_SEQ

_LAST_EPOCH = 2**32 - 1


def forget_runs(keys: Keys, *, run_ids: Sequence[UUID]) -> ScriptCall:
    """Erase the streams of these runs, for good: no epoch may write to them any more. Replies how many there were."""
    return ScriptCall(
        "forget",
        [
            keys.open_streams(),
            *chain.from_iterable((keys.stream(run_id), keys.stream_state(run_id)) for run_id in run_ids),
        ],
        [
            SETTLED_TTL_MS,
            _LAST_EPOCH,
            TERMINAL_SEQ,
            *chain.from_iterable((str(run_id), keys.events_channel(run_id)) for run_id in run_ids),
        ],
    )


def forget_homes(client: redis.Redis, keys: Keys, *, chat_ids: Collection[UUID]) -> None:
    """Forget which worker answered last in these chats."""
    client.delete(*map(keys.home, chat_ids))


def forget_user(client: redis.Redis, keys: Keys, *, user_id: UUID) -> None:
    """Drop the account of a user who has no runs."""
    client.delete(keys.account(user_id), keys.reservations(user_id), keys.messages(user_id), keys.rebuilder(user_id))
    client.srem(keys.holders(), str(user_id))
