"""What goes wrong while setting up, said as a cause and a cure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


class SetupFailed(Exception):
    """Setting up cannot go on: `cause` says why, `cure` what to do, `output` what a failed tool printed."""

    def __init__(self, *, cause: str, cure: str, output: str = "") -> None:
        super().__init__(f"{cause}\n{cure}")
        self.cause = cause
        self.cure = cure
        self.output = output

    def says(self, pattern: str) -> bool:
        """Whether the failed tool printed something like `pattern`."""
        return re.search(pattern, self.output) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A failure known by what the tools print."""

    pattern: str
    cause: str
    cure: str


# The first that fits is told. pip goes on after a failed connection and ends by saying that it found no
# version: the connection is the cause.
FULL_DISK = Trouble(
    pattern=r"No space left on device|Errno 28|Disk quota exceeded|database or disk is full",
    cause="The disk is full.",
    cure=(
        "Free some space (`df -h .` shows how much is left; a first set-up takes up to 6 GB), then run the "
        "same command again: it goes on where it stopped."
    ),
)
WRONG_HASH = Trouble(
    pattern=r"THESE PACKAGES DO NOT MATCH THE HASHES|Expected sha256",
    cause="A downloaded package is not the one that was locked: its SHA-256 differs.",
    cure=(
        "Usually a proxy or mirror changed the download or cut it short. Run the same command again; if it "
        "fails again, do not install from that index."
    ),
)
NO_TRUST = Trouble(
    pattern=r"CERTIFICATE_VERIFY_FAILED|SSLError|certificate verify failed",
    cause="The package registry's TLS certificate is not trusted here.",
    cure="Install the ca-certificates package; behind a TLS proxy, set PIP_CERT to its certificate.",
)
NO_REGISTRY = Trouble(
    pattern=(
        r"Temporary failure in name resolution|Name or service not known|NameResolutionError"
        r"|NewConnectionError|Failed to establish a new connection|Connection refused"
        r"|Network is unreachable|No route to host"
        r"|ConnectTimeout|ConnectionResetError|[Rr]ead timed out|ReadTimeout|ProxyError|Max retries exceeded"
        r"|Could not resolve|Unable to connect|Connection timed out|Connection broken|IncompleteRead"
        r"|Temporary failure resolving|Could not connect"
    ),
    cause="The package registry cannot be reached.",
    cure=(
        "Check the network and, behind a proxy or a mirror, HTTPS_PROXY and PIP_INDEX_URL; then run the same "
        "command again: it goes on where it stopped."
    ),
)
NOT_ALLOWED = Trouble(
    pattern=r"Permission denied|Errno 13|Read-only file system|Errno 30",
    cause="A file or folder of the project cannot be written.",
    cure='Make the folder yours (sudo chown -R "$USER" .), or run this as the user who owns it.',
)
NO_MEMORY = Trouble(
    pattern=r"MemoryError|Cannot allocate memory|^Killed$",
    cause="The machine ran out of memory.",
    cure="Setting up takes 2 GB, the embedded engine 4 GB: stop something else, or use a larger machine.",
)
NO_DATABASE = Trouble(
    pattern=r"OperationalError|ConnectionTimeout|PoolTimeout|could not connect|authentication failed",
    cause="The database named by DATABASE_URL does not answer, or not to this user.",
    cure=(
        "Start it, or correct DATABASE_URL (postgres://user:password@host:5432/name). Unset, a SQLite file "
        "in the state folder is used."
    ),
)
TOOLS: Sequence[Trouble] = (FULL_DISK, WRONG_HASH, NO_TRUST, NO_REGISTRY, NOT_ALLOWED, NO_MEMORY)
DATABASE: Sequence[Trouble] = (FULL_DISK, NO_DATABASE)
LOCAL: Sequence[Trouble] = (FULL_DISK, NOT_ALLOWED, NO_MEMORY)


def explain(*, output: str, doing: str, log: str, known: Sequence[Trouble] = TOOLS) -> SetupFailed:
    """The failure that `output`, of a tool that ended badly while `doing`, tells of."""
    for trouble in known:
        if re.search(trouble.pattern, output, re.MULTILINE):
            return SetupFailed(cause=f"{doing}: {trouble.cause}", cure=trouble.cure, output=output)
    last = "\n".join(f"    {line}" for line in output.strip().splitlines()[-12:])
    return SetupFailed(
        cause=f"{doing} failed. Its last words were:\n{last}",
        cure=f"The whole output is in {log}.",
        output=output,
    )
