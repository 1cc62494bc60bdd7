"""The queue of a pool: runs wait in it until a worker asks for the one it serves best."""

from dataclasses import dataclass
from uuid import UUID

from inference.cell.keys import Keys
from inference.cell.link import Reply, ScriptCall
from inference.cell.stream import STREAM_TTL_MS
from inference.cell.workers import LEASE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticketed:
    """One run at one epoch, as the queue names it."""

    run_id: UUID
    epoch: int

    def __str__(self) -> str:
        return f"{self.run_id}:{self.epoch}"


def enqueue(
    keys: Keys,
    *,
    user_id: UUID,
    pool: str,
    run_id: UUID,
    epoch: int,
    base_epoch: int,
    admission_id: UUID,
    now_ms: int,
) -> ScriptCall:
    """Put an accepted run into the queue. Replies [position, wait in seconds]."""
    return ScriptCall(
        "enqueue",
        [
            keys.reservations(user_id),
            keys.queue(pool),
            keys.leases(pool),
            keys.pace(pool),
            keys.worker_reports(pool),
            keys.stream(run_id),
            keys.stream_state(run_id),
        ],
        [
            keys.events_channel(run_id),
            str(run_id),
            epoch,
            base_epoch,
            str(admission_id),
            now_ms,
            pool,
            STREAM_TTL_MS,
        ],
    )


def claim(keys: Keys, *, pool: str, boot_id: str, now_ms: int) -> ScriptCall:
    """Take and lease the best run for this worker."""
    return ScriptCall(
        "claim", [keys.queue(pool), keys.leases(pool), keys.lease_owners(pool)], [boot_id, now_ms, LEASE_MS]
    )


def read_claim(reply: Reply) -> Ticketed | None:
    """The claimed run in CLAIM's reply, None when nothing waits."""
    if not reply:
        return None
    run_id, _, epoch = str(reply).rpartition(":")
    return Ticketed(run_id=UUID(run_id), epoch=int(epoch))


def unlease(keys: Keys, *, pool: str, run: Ticketed, boot_id: str, held_ms: int) -> ScriptCall:
    """Give a run's lease back; `held_ms` = how long it took, -1 when that tells nothing about the pace."""
    return ScriptCall(
        "unlease", [keys.leases(pool), keys.lease_owners(pool), keys.pace(pool)], [str(run), boot_id, held_ms]
    )


def dequeue(keys: Keys, *, pool: str, run: Ticketed) -> ScriptCall:
    """Take a run that ended unclaimed out of the queue."""
    return ScriptCall("dequeue", [keys.queue(pool)], [str(run)])
