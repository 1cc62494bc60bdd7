"""Starting under each settings module, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chatsite.env import BASE_DIR

PRODUCTION = {
    "DJANGO_SETTINGS_MODULE": "chatsite.settings.production",
    "SECRET_KEY": "kV9#mP2$xL7@qR4&wN8!zT3^yB6*uH1%jF5(cD0)gS-Wa6eXo_pZ0tEi",
    "ALLOWED_HOSTS": "chat.example.org",
}


def python(*arguments: str, state_dir: Path, without: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(state_dir), **PRODUCTION, **variables}
    environment.pop(without, None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=BASE_DIR,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_production_passes_the_deployment_checks(tmp_path: Path) -> None:
    result = python("manage.py", "check", "--deploy", "--fail-level", "WARNING", state_dir=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "no issues (0 silenced)" in result.stdout


@pytest.mark.parametrize("name", ["SECRET_KEY", "ALLOWED_HOSTS"])
@pytest.mark.parametrize("value", [None, ""])
def test_production_does_not_start_without(name: str, value: str | None, tmp_path: Path) -> None:
    result = python(
        "manage.py", "check", state_dir=tmp_path, without=name if value is None else "", **{name: value or ""}
    )
    assert result.returncode != 0
    assert f"ImproperlyConfigured: Set {name}" in result.stderr


def test_production_never_shows_debug_pages(tmp_path: Path) -> None:
    assert setting("DEBUG", state_dir=tmp_path, DEBUG="true") == "False"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SESSION_COOKIE_SECURE", "True"),
        ("CSRF_COOKIE_SECURE", "True"),
        ("SECURE_SSL_REDIRECT", "True"),
        ("SECURE_HSTS_SECONDS", "3600"),
    ],
)
def test_production_is_https_only(name: str, value: str, tmp_path: Path) -> None:
    assert setting(name, state_dir=tmp_path) == value


def test_no_proxy_is_trusted_unasked(tmp_path: Path) -> None:
    has_it = "__dict__.get('SECURE_PROXY_SSL_HEADER')"
    assert setting(has_it, state_dir=tmp_path) == "None"


def test_a_tls_proxy_is_trusted_when_the_operator_says_so(tmp_path: Path) -> None:
    shown = setting("SECURE_PROXY_SSL_HEADER", state_dir=tmp_path, BEHIND_TLS_PROXY="yes")
    assert shown == "('HTTP_X_FORWARDED_PROTO', 'https')"


@pytest.mark.parametrize(
    ("variables", "hosts"),
    [
        ({"ALLOWED_HOSTS": ""}, "['127.0.0.1', 'localhost', '[::1]']"),
        ({"ALLOWED_HOSTS": "", "HOST": "192.0.2.7"}, "['192.0.2.7', 'localhost', '127.0.0.1', '[::1]']"),
        ({"ALLOWED_HOSTS": "chat.lan"}, "['chat.lan']"),
    ],
)
def test_local_settings_serve_loopback_unless_told_otherwise(
    variables: dict[str, str], hosts: str, tmp_path: Path
) -> None:
    local = {"DJANGO_SETTINGS_MODULE": "chatsite.settings.local"}
    assert setting("ALLOWED_HOSTS", state_dir=tmp_path, **local, **variables) == hosts


def test_local_settings_need_no_variable_at_all_and_touch_no_file(tmp_path: Path) -> None:
    result = python(
        "manage.py",
        "check",
        state_dir=tmp_path,
        without="SECRET_KEY",
        DJANGO_SETTINGS_MODULE="chatsite.settings.local",
    )
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_models_and_migrations_agree(tmp_path: Path) -> None:
    result = python("manage.py", "makemigrations", "--check", "--dry-run", "accounts", state_dir=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def setting(name: str, *, state_dir: Path, **variables: str) -> str:
    """`repr` of one setting, read without starting Django."""
    code = f"import os, importlib; print(importlib.import_module(os.environ['DJANGO_SETTINGS_MODULE']).{name})"
    result = python("-c", code, state_dir=state_dir, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
