"""`manage.py create_api_key EMAIL`: a new key, alone on standard output."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from chatsite.accounts import accounts, keys
from chatsite.accounts.errors import EmailTaken
from chatsite.accounts.management.prepared import prepared_database


class Command(BaseCommand):
    help = "Make an API key for the account with this e-mail, opened if there is none, and print it, once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email", metavar="EMAIL")
        parser.add_argument("--name", default="command line", help="what the key is for (default: %(default)s)")

    @prepared_database()
    def handle(self, *args: Any, email: str, name: str, **options: Any) -> None:
        user = accounts.find(email=email)
        if user is None:
            try:
                user = accounts.open_account(email=email, password=None)
            except ValidationError as error:
                raise CommandError(f"{email!r} is not an e-mail address.") from error
            except EmailTaken as error:
                raise CommandError(f"An account for {email} was opened a moment ago: ask again.") from error
            note = f"Opened an account for {user.email}, without a password: only the key lets it in."
            self.stderr.write(note, style_func=str)
        if not user.is_active:
            raise CommandError(f"The account {user.email} is not active: its keys would not work.")
        self.stdout.write(keys.create(user=user, name=name[:100], now=timezone.now()).secret)
