"""The names of all keys and channels of a cell.

Every name carries the cell's hash tag, so that one script may touch several, and the incarnation of Redis, so that
a restarted or rolled-back server reads as an empty one.
"""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names in one incarnation of one cell."""

    incarnation: str
    tag: str = "c0"

    def _name(self, *parts: object) -> str:
        return ":".join((f"{{{self.tag}}}", self.incarnation, *map(str, parts)))

    def account(self, user_id: UUID) -> str:
        """Hash: gen, used."""
        return self._name("account", user_id)

    def reservations(self, user_id: UUID) -> str:
        """Hash: admission id → turn|base|tokens|state|made at (ms); state 0 = unconfirmed, 1 = confirmed, 2 shared."""
        return self._name("reservations", user_id)

    def rebuilder(self, user_id: UUID) -> str:
        """String that expires: somebody rebuilds the account right now."""
        return self._name("rebuilder", user_id)

    def holders(self) -> str:
        """Set of user ids that may have reservations."""
        return self._name("holders")

    def queue(self, pool: str) -> str:
        """Sorted set: run:epoch → time of entry (ms)."""
        return self._name("queue", pool)

    def leases(self, pool: str) -> str:
        """Sorted set: run:epoch → expiry (ms)."""
        return self._name("leases", pool)

    def lease_owners(self, pool: str) -> str:
        """Hash: run:epoch → boot id of the worker."""
        return self._name("lease-owners", pool)

    def stream(self, run_id: UUID) -> str:
        """Stream of a run's events."""
        return self._name("stream", run_id)

    def stream_state(self, run_id: UUID) -> str:
        """Hash: epoch, mode (wait, open, sealed, closed), last (id of the last content entry)."""
        return self._name("stream-state", run_id)

    def workers(self, pool: str) -> str:
        """Sorted set: boot id → last heartbeat (ms)."""
        return self._name("workers", pool)

    def worker_reports(self, pool: str) -> str:
        """Hash: boot id → JSON report."""
        return self._name("worker-reports", pool)

    def pace(self, pool: str) -> str:
        """Hash: run_ms, the moving average of how long a run holds its slot."""
        return self._name("pace", pool)

    def events_channel(self, run_id: UUID) -> str:
        """Pub/sub channel of a run's new entries."""
        return self._name("events", run_id)

    def control_channel(self, boot_id: str) -> str:
        """Pub/sub channel of orders to one worker."""
        return self._name("control", boot_id)
