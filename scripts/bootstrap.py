#!/usr/bin/env python3
"""The Makefile's entry: finds a Python that is new enough and hands over to `scripts.commands`.

Written so that a Python from 3.6 on can read it, and say what is wrong.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.14")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def works(candidate: str) -> bool:
    """Whether `candidate` runs at all (a shim may not) and is new enough."""
    check = "import sys; sys.exit(sys.version_info < {})".format(OLDEST)  # noqa: UP032
    try:
        return subprocess.call([candidate, "-c", check], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def main() -> int:
    if sys.version_info[:2] < OLDEST:
        for candidate in CANDIDATES:
            if works(candidate):
                os.execvp(candidate, [candidate] + sys.argv)  # noqa: RUF005
        sys.stderr.write(
            "Chatsite needs Python 3.11 or newer. This is Python {}.{}, and none of {} is on PATH.\n"
            "Install one (Debian, Ubuntu: apt-get install python3 python3-venv; or https://www.python.org/downloads/)"
            " or name it: make run PYTHON=/path/to/python3.\n".format(
                sys.version_info[0], sys.version_info[1], ", ".join(CANDIDATES)
            )
        )
        return 1
    sys.path.insert(0, ROOT)
    from scripts import commands

    return commands.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
