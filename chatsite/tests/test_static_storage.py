"""What production serves as static files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatsite import env


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that production's collectstatic fills."""
    folder = tmp_path_factory.mktemp("static")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "chatsite.settings.production",
        "SECRET_KEY": "x" * 60 + "0123456789",
        "ALLOWED_HOSTS": "chat.example.com",
        "STATIC_ROOT_FOR_TEST": str(folder),
    }
    script = (
        "import os, django; from django.conf import settings; from django.core.management import call_command;"
        "settings.STATIC_ROOT = os.environ['STATIC_ROOT_FOR_TEST']; django.setup();"
        "call_command('collectstatic', interactive=False, verbosity=0)"
    )
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=env.BASE_DIR, check=True)
    return folder


@pytest.mark.parametrize("module", ["chat_page", "api_docs"])
def test_every_import_of_a_module_names_a_file_with_a_digest(collected: Path, module: str) -> None:
    page = next((collected / "js").glob(f"{module}.????????????.mjs"))
    imports = re.findall(r'from\s*"(\./[^"]+)"', page.read_text())
    assert imports
    for name in imports:
        assert re.search(r"\.[0-9a-f]{12}\.mjs$", name), name
        assert (page.parent / name).is_file()


def test_the_files_of_the_api_page_have_a_digest_and_come_compressed_without_source_maps(collected: Path) -> None:
    folder = collected / "swagger-ui"
    for name in ("swagger-ui-bundle.????????????.js", "swagger-ui.????????????.css"):
        [hashed] = folder.glob(name)
        assert (folder / f"{hashed.name}.gz").stat().st_size < hashed.stat().st_size / 3
    assert {path.suffix for path in folder.iterdir()} == {".js", ".css", ".gz"}
