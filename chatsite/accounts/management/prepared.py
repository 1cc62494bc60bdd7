"""One-off commands on a database that may not be there yet."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import OperationalError, ProgrammingError


@contextmanager
def prepared_database() -> Iterator[None]:
    """Turn a database without tables, or none at all, into a CommandError that says how it is made."""
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        raise CommandError(
            f"The database cannot be used ({error}). `make run` prepares it, and so does `python3 manage.py migrate`."
        ) from None
