"""Opening accounts: the one place that creates users."""

from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from chatsite.accounts.errors import EmailTaken
from chatsite.accounts.models import User


def find(*, email: str) -> User | None:
    """The account with this e-mail in any case, active or not."""
    try:
        return User.objects.get_by_natural_key(email)
    except User.DoesNotExist:
        return None


def open_account(*, email: str, password: str | None, administrator: bool = False) -> User:
    """Create a user; without a password the account cannot log in.

    The database's constraint decides between two that open the same one. Raises ValidationError for a
    malformed e-mail, EmailTaken for one that has an account.
    """
    address = User.objects.normalize_email(email)
    validate_email(address)
    try:
        with transaction.atomic():
            return User.objects.create_user(
                email=address, password=password, is_staff=administrator, is_superuser=administrator
            )
    except IntegrityError as error:
        raise EmailTaken(email=address) from error
