"""`create_api_key` and `create_admin`."""

import getpass
import io
import sys

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from chatsite.accounts import accounts, keys
from chatsite.accounts.models import ApiKey, User
from chatsite.accounts.tests.conftest import PASSWORD

pytestmark = pytest.mark.django_db

Output = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_new_key_stands_alone_on_standard_output(ada: User, capsys: Output) -> None:
    call_command("create_api_key", "ADA@example.org", name="robot")
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert keys.authenticate(secret=out.removesuffix("\n"), now=timezone.now()).user == ada
    assert ApiKey.objects.get().name == "robot"
    assert err == ""


def test_a_key_for_an_unknown_address_opens_an_account_and_says_so(capsys: Output) -> None:
    call_command("create_api_key", "New@example.org")
    out, err = capsys.readouterr()
    user = keys.authenticate(secret=out.strip(), now=timezone.now()).user
    assert user.email == "new@example.org"
    assert not user.has_usable_password()
    assert "new@example.org" in err


def test_every_call_makes_another_key(ada: User, capsys: Output) -> None:
    call_command("create_api_key", "ada@example.org")
    call_command("create_api_key", "ada@example.org")
    first, second = capsys.readouterr().out.split()
    assert first != second


@pytest.mark.parametrize("email", ["nonsense", "", "a@b", "x@example.org,y@example.org"])
def test_a_malformed_address_makes_nothing(email: str, capsys: Output) -> None:
    with pytest.raises(CommandError, match="not an e-mail address"):
        call_command("create_api_key", email)
    assert not User.objects.exists()
    assert capsys.readouterr().out == ""


def test_an_inactive_account_gets_no_key(ada: User, capsys: Output) -> None:
    ada.is_active = False
    ada.save()
    with pytest.raises(CommandError, match="not active"):
        call_command("create_api_key", ada.email)
    assert capsys.readouterr().out == ""


def test_without_a_terminal_the_administrators_password_is_made_and_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    call_command("create_admin", "Root@example.org")
    out, err = capsys.readouterr()
    user = User.objects.get(email="root@example.org")
    assert user.check_password(out.strip())
    assert user.is_staff
    assert user.is_superuser
    assert out.strip() not in err


def test_on_a_terminal_the_password_is_asked_for_and_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: PASSWORD)
    call_command("create_admin", "root@example.org")
    out, err = capsys.readouterr()
    assert User.objects.get().check_password(PASSWORD)
    assert PASSWORD not in out + err


def test_two_different_passwords_make_no_administrator(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([PASSWORD, PASSWORD + "x"])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: next(answers))
    with pytest.raises(CommandError, match="differ"):
        call_command("create_admin", "root@example.org")
    assert not User.objects.exists()


def test_a_script_can_pipe_the_password_in(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PASSWORD + "\n"))
    call_command("create_admin", "root@example.org", password_stdin=True)
    assert User.objects.get().check_password(PASSWORD)
    assert PASSWORD not in "".join(capsys.readouterr())


@pytest.mark.parametrize("weak", ["", "12345678901", "password", "root@example.org"])
def test_a_weak_password_makes_no_administrator(monkeypatch: pytest.MonkeyPatch, weak: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(weak + "\n"))
    with pytest.raises(CommandError, match="password"):
        call_command("create_admin", "root@example.org", password_stdin=True)
    assert not User.objects.exists()


def test_an_existing_account_is_neither_promoted_nor_changed(
    ada: User, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandError, match="already exists"):
        call_command("create_admin", "ADA@example.org")
    ada.refresh_from_db()
    assert not ada.is_staff
    assert ada.check_password(PASSWORD)
    assert capsys.readouterr().out == ""


def test_an_account_opened_meanwhile_is_reported_like_one_that_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_late(prompt: str) -> str:
        if accounts.find(email="root@example.org") is None:
            accounts.open_account(email="root@example.org", password=None)
        return PASSWORD

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", too_late)
    with pytest.raises(CommandError, match="already exists"):
        call_command("create_admin", "root@example.org")
    assert not User.objects.get().is_staff


def test_a_malformed_address_makes_no_administrator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandError, match="email address"):
        call_command("create_admin", "nonsense")
