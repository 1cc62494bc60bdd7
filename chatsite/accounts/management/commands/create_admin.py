"""`manage.py create_admin EMAIL`: the first administrator."""

import getpass
import secrets
import sys
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatsite.accounts import accounts
from chatsite.accounts.errors import EmailTaken
from chatsite.accounts.management.prepared import prepared_database
from chatsite.accounts.models import User


class Command(BaseCommand):
    help = "Create an administrator. Asks for a password on a terminal; elsewhere makes one, shown once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email", metavar="EMAIL")
        parser.add_argument(
            "--password-stdin", action="store_true", help="read the password from standard input, one line"
        )

    @prepared_database()
    def handle(self, *args: Any, email: str, password_stdin: bool, **options: Any) -> None:
        if accounts.find(email=email) is not None:
            raise CommandError(_taken(email))
        generated = None
        if password_stdin:
            password = sys.stdin.readline().rstrip("\r\n")
        elif sys.stdin.isatty():
            password = _ask()
        else:
            password = generated = secrets.token_urlsafe(18)
        try:
            if generated is None:
                validate_password(password, User(email=email))
            user = accounts.open_account(email=email, password=password, administrator=True)
        except EmailTaken as error:
            raise CommandError(_taken(email)) from error
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stderr.write(f"Created the administrator {user.email}.", style_func=str)
        if generated is not None:
            self.stderr.write("Its password follows. It is shown this once:", style_func=str)
            self.stdout.write(generated)


def _ask() -> str:
    password = getpass.getpass("Password: ")
    if getpass.getpass("Password (again): ") != password:
        raise CommandError("The passwords differ.")
    return password


def _taken(email: str) -> str:
    return f"An account with the e-mail {email} already exists; it was left as it is."
