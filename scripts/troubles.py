"""What goes wrong while setting up, said as a cause and a cure."""

import re
from collections.abc import Sequence


class SetupFailed(Exception):
    """Setting up cannot go on. `cause` says why, `cure` what to do about it."""

    def __init__(self, *, cause: str, cure: str) -> None:
        super().__init__(f"{cause}\n{cure}")
        self.cause = cause
        self.cure = cure


# What the tools print, most telling first. pip goes on after a failed connection and then says that it found no
# version: the connection is the cause.
KNOWN: Sequence[tuple[str, str, str]] = (
    (
        r"No space left on device|Errno 28|Disk quota exceeded",
        "The disk is full.",
        "Free some space (`df -h .` shows how much is left; a first set-up takes up to {need}), then run the same "
        "command again: it goes on where it stopped.",
    ),
    (
        r"THESE PACKAGES DO NOT MATCH THE HASHES|Expected sha256",
        "A downloaded package is not the one that was locked: its SHA-256 differs.",
        "Usually a download that a proxy or a mirror changed or cut. Run the same command again; if it fails again, "
        "do not install from that index.",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|NameResolutionError|NewConnectionError"
        r"|Failed to establish a new connection|Connection refused|Network is unreachable|No route to host"
        r"|ConnectTimeout|ConnectionResetError|Read timed out|ReadTimeout|ProxyError|Max retries exceeded"
        r"|Could not resolve|Unable to connect|Connection timed out|Connection broken|IncompleteRead",
        "The package registry cannot be reached.",
        "Check the network and, behind a proxy or a mirror, the variables HTTPS_PROXY and PIP_INDEX_URL; then run the "
        "same command again: it goes on where it stopped.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError|certificate verify failed",
        "The package registry's TLS certificate is not trusted here.",
        "Install the ca-certificates package; behind a proxy that breaks TLS, name its certificate with PIP_CERT.",
    ),
    (
        r"Permission denied|Errno 13|Read-only file system|Errno 30",
        "A file or folder of the project cannot be written.",
        "Make the project's folder yours (`sudo chown -R \"$USER\" .`), or run as the user who owns it.",
    ),
    (
        r"MemoryError|Cannot allocate memory|Killed",
        "The machine ran out of memory.",
        "Setting up takes 2 GB, the embedded engine 4 GB: stop something else, or use a larger machine.",
    ),
)


def explain(*, output: str, doing: str, log: str, need: str = "6 GB") -> SetupFailed:
    """The failure that `output` (of a tool that ended badly while `doing`) tells of."""
    for pattern, cause, cure in KNOWN:
        if re.search(pattern, output):
            return SetupFailed(cause=f"{doing}: {cause}", cure=cure.format(need=need))
    last = "\n".join(f"    {line}" for line in output.strip().splitlines()[-12:])
    return SetupFailed(
        cause=f"{doing} failed. The last lines were:\n{last}",
        cure=f"The whole output is in {log}.",
    )
