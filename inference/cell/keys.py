"""The names of all keys and channels of a cell.

Every name carries the cell's hash tag, so that one script may touch several, and the incarnation of Redis and the
layout of what is stored, so that a restarted or rolled-back server, or one that another release wrote to, reads as an
empty one. Scripts that get one name of a pool's make the others themselves, in lua/_names.lua.
"""

from dataclasses import dataclass
from uuid import UUID

# To be raised whenever what is stored under some name changes its form.
LAYOUT = 3


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names in one incarnation of one cell."""

    incarnation: str
    tag: str = "c0"

    @property
    def cell(self) -> str:
        """What all keys of the cell begin with, whichever the incarnation."""
        return f"{{{self.tag}}}:"

    @property
    def prefix(self) -> str:
        """What all keys of this incarnation and layout begin with."""
        return f"{self.cell}{self.incarnation}:{LAYOUT}:"

    def _name(self, *parts: object) -> str:
        return self.prefix + ":".join(map(str, parts))

    def account(self, user_id: UUID) -> str:
        """Hash: gen; used, all tokens ever charged; debt, tokens charged and not refilled at debt_at (ms); rate, tokens
        refilled in an hour, empty without a budget; out:pool, output tokens of an answer, a moving average;
        tag:pool:tier, the start tag of the next run there."""
        return self._name("account", user_id)

    def accounts(self) -> str:
        """What the names of all users' accounts begin with."""
        return self._name("account", "")

    def reservations(self, user_id: UUID) -> str:
        """Hash: admission id → turn|base|tokens|state|made at (ms); state 0 = unconfirmed, 1 = confirmed, 2 shared."""
        return self._name("reservations", user_id)

    def messages(self, user_id: UUID) -> str:
        """Sorted set: admission id → when it was admitted (ms), of the last 60 minutes at least."""
        return self._name("messages", user_id)

    def rebuilder(self, user_id: UUID) -> str:
        """String that expires: somebody rebuilds the account right now."""
        return self._name("rebuilder", user_id)

    def restored(self) -> str:
        """String: up to which user id, in their order, the accounts of a lost Redis are back; `all` at the end."""
        return self._name("restored")

    def holders(self) -> str:
        """Set of user ids that may have reservations."""
        return self._name("holders")

    def pool(self, pool: str) -> str:
        """String: what the scheduler knows of the pool as a whole, packed; see _pool.lua."""
        return self._name("pool", pool)

    def queue(self, pool: str) -> str:
        """Beginning of the names of what waits, by tier and user; see _pool.lua."""
        return self._name("queue", pool)

    def places(self, pool: str) -> str:
        """Sorted set: admission id → when (ms) it got a place in the queue that its run has not taken yet."""
        return self._name("places", pool)

    def room(self, pool: str) -> str:
        """Sorted set: boot id → how many more runs the worker can take."""
        return self._name("room", pool)

    def worker_facts(self, pool: str) -> str:
        """Hash: boot id of a live worker → runs it holds at a time|tokens its engine has memory for|has computed."""
        return self._name("worker-facts", pool)

    def home(self, chat_id: UUID) -> str:
        """String that expires: boot id of the worker that answered last|tokens of the chat|it had computed by then."""
        return self._name("home", chat_id)

    def leases(self, pool: str) -> str:
        """Sorted set: run:epoch → expiry (ms)."""
        return self._name("leases", pool)

    def lease_owners(self, pool: str) -> str:
        """Hash: run:epoch → boot id of the worker|what the run was charged; see _pool.lua."""
        return self._name("lease-owners", pool)

    def streams(self) -> tuple[str, str, str]:
        """What the names of all runs' streams, stream states and event channels begin with."""
        return self._name("stream", ""), self._name("stream-state", ""), self._name("events", "")

    def stream(self, run_id: UUID) -> str:
        """Stream of a run's events."""
        return self._name("stream", run_id)

    def stream_state(self, run_id: UUID) -> str:
        """String: epoch|mode (wait, open, sealed, closed)|last, id of the last entry|first, when (ms) the answer was
        first shown, or nothing."""
        return self._name("stream-state", run_id)

    def open_streams(self) -> str:
        """Set of run ids whose stream has no terminal event yet."""
        return self._name("open-streams")

    def workers(self, pool: str) -> str:
        """Sorted set: boot id → last heartbeat (ms)."""
        return self._name("workers", pool)

    def worker_reports(self, pool: str) -> str:
        """Hash: boot id → JSON report."""
        return self._name("worker-reports", pool)

    def counts(self, pool: str) -> str:
        """Hash: what|tier|reason → how often it happened to a turn that asked for the pool."""
        return self._name("counts", pool)

    def events_channel(self, run_id: UUID) -> str:
        """Pub/sub channel of a run's new entries."""
        return self._name("events", run_id)

    def control_channel(self, boot_id: str) -> str:
        """Pub/sub channel of orders to one worker."""
        return self._name("control", boot_id)
