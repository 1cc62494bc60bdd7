#!/usr/bin/env python3
"""Django's command line; uses the project's virtual environment when the calling Python has no Django."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")
    if find_spec("django") is None:
        own = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
        if not own.exists() or Path(sys.prefix).resolve() == own.parent.parent:
            sys.exit("Django is not installed here. `make run` sets everything up.")
        os.execv(own, [str(own), *sys.argv])
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
