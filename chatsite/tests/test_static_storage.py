"""What production serves as static files."""

import os
import re
import subprocess
import sys
from pathlib import Path

from chatsite import env


def test_every_import_of_a_module_names_a_file_with_a_digest(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "chatsite.settings.production",
        "SECRET_KEY": "x" * 60 + "0123456789",
        "ALLOWED_HOSTS": "chat.example.com",
        "STATIC_ROOT_FOR_TEST": str(tmp_path),
    }
    script = (
        "import os, django; from django.conf import settings; from django.core.management import call_command;"
        "settings.STATIC_ROOT = os.environ['STATIC_ROOT_FOR_TEST']; django.setup();"
        "call_command('collectstatic', interactive=False, verbosity=0)"
    )
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=env.BASE_DIR, check=True)
    page = next((tmp_path / "js").glob("chat_page.????????????.mjs"))
    imports = re.findall(r'from\s*"(\./[^"]+)"', page.read_text())
    assert imports
    for name in imports:
        assert re.search(r"\.[0-9a-f]{12}\.mjs$", name), name
        assert (page.parent / name).is_file()
