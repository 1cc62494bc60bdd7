"""The README's commands, run as they stand there."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.stack import ROOT, Stack

pytestmark = pytest.mark.engine


def commands(heading: str) -> str:
    """The indented lines of one section."""
    text = (ROOT / "README.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))


def test_a_mobile_clients_life_by_curl(stack: Stack, tmp_path: Path) -> None:
    script = commands("A mobile client's life by curl")
    assert "auth/login" in script
    script, replaced = re.subn(r"SITE=\S+", f"SITE={stack.url}", script)
    assert replaced == 1
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert '"email":"phone@example.com"' in done.stdout
    assert "event: completed" in done.stdout
    assert done.stdout.split()[-2:] == ["401", "401"], "logged out, both tokens are refused"
