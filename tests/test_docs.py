"""The documentation's links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [path for app in ("billing", "chatsite", "conversations", "inference") for path in (ROOT / app).rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_page_that_the_code_names_is_there() -> None:
    named = {name for path in SOURCES for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert named
    assert {name for name in named if not (ROOT / name).exists()} == set()
