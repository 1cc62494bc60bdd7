"""`manage.py rebuild_quotas`: what Redis counts of quotas is made of the ledger and the runs anew."""

from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from chatsite.accounts import accounts
from chatsite.accounts.management.prepared import prepared_database
from inference import api as inference
from inference.errors import ServiceUnavailable

# A line of progress each so many accounts.
STEP = 100


class Command(BaseCommand):
    help = "Rebuild the quota counters in Redis from the database. Answers under way go on; it may be repeated."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--user", metavar="EMAIL", help="only this user's account")

    @prepared_database()
    def handle(self, *args: Any, user: str | None, **options: Any) -> None:
        users = inference.quota_users() if user is None else [_user_id(user)]
        for number, user_id in enumerate(users, start=1):
            try:
                inference.rebuild_quota(user_id=user_id, now=timezone.now())
            except ServiceUnavailable as error:
                raise CommandError(f"Redis is away: {number - 1} of {len(users)} accounts are rebuilt.") from error
            if number % STEP == 0 and number < len(users):
                self.stderr.write(f"{number} of {len(users)} accounts are rebuilt.", style_func=str)
        self.stderr.write(f"{len(users)} accounts are rebuilt." if user is None else "Rebuilt.", style_func=str)


def _user_id(email: str) -> UUID:
    user = accounts.find(email=email)
    if user is None:
        raise CommandError(f"There is no account for {email}.")
    return user.pk
