"""`manage.py maintenance on|off`: what a deploy does before and after."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from chatsite.accounts.management.prepared import prepared_database
from conversations import api as conversations
from conversations.errors import InvalidRequest

_FROM_NOW = re.compile(r"\+(\d{1,5})([mh])", re.ASCII)


class Command(BaseCommand):
    help = "Refuse new messages on the whole site, or take them again. Reading goes on, and so do running answers."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("state", choices=("on", "off"))
        parser.add_argument(
            "--text",
            help="what pages and refusals say; `on` without it keeps the banner's text, `off` without it removes it",
        )
        parser.add_argument(
            "--until",
            metavar="TIME",
            help="when it should be over: +20m, +2h, or 2026-03-01T12:30Z (UTC unless it says otherwise)",
        )

    @prepared_database()
    def handle(self, *args: Any, state: str, text: str | None, until: str | None, **options: Any) -> None:
        now = timezone.now()
        try:
            if state == "on":
                expected = None if until is None else _time(until, now=now)
                conversations.begin_maintenance(text=text, until=expected, now=now)
            elif until is not None:
                raise CommandError("--until goes with `on`.")
            else:
                conversations.end_maintenance(text=text, now=now)
        except InvalidRequest as error:
            raise CommandError(f"--{error}") from error
        self.stderr.write(f"Maintenance is {state}; every process knows within two seconds.", style_func=str)


def _time(text: str, *, now: datetime) -> datetime:
    from_now = _FROM_NOW.fullmatch(text)
    if from_now is not None:
        return now + timedelta(minutes=int(from_now.group(1)) * (60 if from_now.group(2) == "h" else 1))
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"--until: {text!r} is no time; write +20m, +2h or 2026-03-01T12:30Z.") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
