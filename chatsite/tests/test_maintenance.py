"""`manage.py maintenance`."""

from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from conversations import api as conversations

pytestmark = pytest.mark.django_db(transaction=True)


def expected_end() -> datetime:
    shown = conversations.current_banner()
    assert shown is not None
    assert shown.until is not None
    return shown.until


def test_on_begins_and_off_ends_a_maintenance(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("maintenance", "on", "--text", "Back soon.")
    shown = conversations.current_banner()
    assert shown is not None
    assert (shown.maintenance, shown.text, shown.until) == (True, "Back soon.", None)
    call_command("maintenance", "off")
    assert conversations.current_banner() is None
    out, err = capsys.readouterr()
    assert out == ""
    assert "Maintenance is off" in err


def test_off_may_leave_a_banner(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("maintenance", "on")
    call_command("maintenance", "off", "--text", "A new model answers.")
    shown = conversations.current_banner()
    assert shown is not None
    assert (shown.maintenance, shown.text) == (False, "A new model answers.")


@pytest.mark.parametrize(("until", "minutes"), [("+20m", 20), ("+2h", 120)])
def test_the_expected_end_may_be_told_from_now(until: str, minutes: int) -> None:
    before = timezone.now()
    call_command("maintenance", "on", "--until", until)
    assert before <= expected_end() - timedelta(minutes=minutes) <= timezone.now()


@pytest.mark.parametrize(
    "until", ["2999-03-01T12:30Z", "2999-03-01T12:30", "2999-03-01 13:30:00+01:00", "2999-03-01T12:30:00"]
)
def test_the_expected_end_may_be_a_time_in_utc_unless_it_says_otherwise(until: str) -> None:
    call_command("maintenance", "on", "--until", until)
    assert expected_end() == datetime(2999, 3, 1, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["on", "--until", "soon"], "is no time"),
        (["on", "--until", "2020-01-01T00:00Z"], "has passed"),
        (["on", "--text", "x" * 501], "at most 500"),
        (["off", "--until", "+5m"], "goes with `on`"),
        (["perhaps"], "invalid choice"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(arguments: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        call_command("maintenance", *arguments)
    assert conversations.current_banner() is None
