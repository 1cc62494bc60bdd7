"""The broker's transport: kombu's for Redis, which a lost server must not end the process with."""

from typing import Any

import redis
from kombu.transport.redis import Channel, Transport


class LosableChannel(Channel):
    """Closes like any other once its server is gone.

    Celery closes a broken connection twice. Where the first try fails half-way while messages are unacknowledged, the
    second one (kombu 5.7) looks for the server's address to give them back and finds None: an AttributeError, which
    Celery takes for a fault of its own and ends the worker, and with it every answer under way. What is not given back
    are wake-ups, which the reaper sends again.
    """

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        transport: Any = self.connection
        if transport is None or transport.client is None:
            raise redis.ConnectionError("the connection to the broker is closed")
        found: dict[str, Any] = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc] # not in the stubs
        return found


def install() -> None:
    """Have every connection to a Redis broker, whatever its URL's scheme, use this channel."""
    Transport.Channel = LosableChannel
