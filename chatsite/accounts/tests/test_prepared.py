"""Commands on a database that nobody has prepared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chatsite import env


@pytest.mark.parametrize("command", ["create_admin", "create_api_key"])
def test_a_database_without_tables_is_said_to_need_preparing(command: str, tmp_path: Path) -> None:
    environment = {**os.environ, "STATE_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "chatsite.settings.local"}
    environment.pop("DATABASE_URL", None)
    done = subprocess.run(
        [sys.executable, "manage.py", command, "ada@example.org"],
        cwd=env.BASE_DIR,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "manage.py migrate" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
