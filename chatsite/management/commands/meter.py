"""`manage.py meter`: what beat has done every few seconds, at once and to the end."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from billing import api as billing
from chatsite.accounts.management.prepared import prepared_database

# How often it says how far it is: some ten thousand events.
_TELL_EVERY = 20


class Command(BaseCommand):
    help = "Bring daily usage up to date with the ledger. May run beside the site, and twice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--rebuild", action="store_true", help="make the days of everybody anew, not only new ones")

    @prepared_database()
    def handle(self, *args: Any, rebuild: bool, **options: Any) -> None:
        if rebuild:
            for day, users in billing.remeter():
                self._tell(f"{day}: {users:,} to be metered")
        done = batches = 0
        while worked_off := billing.meter():
            done += worked_off
            batches += 1
            if batches % _TELL_EVERY == 0:
                self._tell_how_far(done)
        self._tell_how_far(done)

    def _tell_how_far(self, done: int) -> None:
        self._tell(f"{done:,} events worked off, {billing.metering_backlog():,} left")

    def _tell(self, text: str) -> None:
        self.stderr.write(text, style_func=str)
