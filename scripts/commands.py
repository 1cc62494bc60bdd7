"""What the Makefile asks for: `run` sets up and serves, `setup` and `dev` only set up."""

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from scripts import checks, running, troubles
from scripts.installation import PYTHON, ROOT, Installation, setting
from scripts.troubles import SetupFailed

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bootstrap.py", description=__doc__)
    parser.add_argument("command", choices=("run", "setup", "dev"))
    command = parser.parse_args(arguments).command
    try:
        if command == "run":
            run()
        else:
            Installation(dev=command == "dev").run()
    except SetupFailed as failure:
        return tell(failure)
    except OSError as error:
        return tell(troubles.explain(output=str(error), doing="Setting up", log="var/log", known=troubles.LOCAL))
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130
    return 0


def tell(failure: SetupFailed) -> int:
    """Say cause and cure; the exit status of a failure."""
    print(f"\n{failure.cause}\n→ {failure.cure}", file=sys.stderr)
    return 1


def run() -> None:
    """Set up, migrate and become the supervisor. What would stop it in the end is looked at first."""
    installation = Installation(dev=False)
    checks.not_running(state=installation.state)
    checks.port_is_free(host=setting("HOST") or "127.0.0.1", port=setting("PORT") or "8000")
    installation.run()
    database = installation.state / "db.sqlite3"
    is_new = setting("DATABASE_URL") is None and not database.exists()
    running.run(
        [str(PYTHON), "manage.py", "migrate", "--no-input"],
        title="Preparing the database",
        log=installation.log,
        folder=ROOT,
        known=troubles.DATABASE if setting("DATABASE_URL") else troubles.LOCAL,
    )
    if (setting("DJANGO_SETTINGS_MODULE") or "").endswith(".production"):
        command = [str(PYTHON), "manage.py", "collectstatic", "--no-input"]
        running.run(command, title="Collecting static files", log=installation.log, folder=ROOT, known=troubles.LOCAL)
    if is_new:
        print(
            "  Nobody can log in yet. In another terminal: python3 manage.py create_admin YOU@EXAMPLE.ORG\n"
            "  and, for a key to the API: python3 manage.py create_api_key YOU@EXAMPLE.ORG",
            flush=True,
        )
    if "MAKELEVEL" in os.environ and sys.platform == "linux":
        # Should make be killed, stop in order as Ctrl-C would, and do not run on unseen.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.chdir(ROOT)
    os.execv(PYTHON, [str(PYTHON), "manage.py", "serve"])
