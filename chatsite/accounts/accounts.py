"""Opening accounts: the one place that creates users."""

from datetime import datetime

from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from chatsite.accounts import first_account, invitations, registration
from chatsite.accounts.errors import EmailTaken, RegistrationClosed
from chatsite.accounts.models import Registration, User


def find(*, email: str) -> User | None:
    """The account with this e-mail in any case, active or not."""
    try:
        return User.objects.get_by_natural_key(email)
    except User.DoesNotExist:
        return None


def open_account(*, email: str, password: str | None, name: str = "", administrator: bool = False) -> User:
    """Create a user; without a password the account cannot log in.

    The database's constraint decides between two that open the same one. Raises ValidationError for a
    malformed e-mail, EmailTaken for one that has an account.
    """
    address = User.objects.normalize_email(email)
    validate_email(address)
    try:
        with transaction.atomic():
            return User.objects.create_user(
                email=address, password=password, name=name, is_staff=administrator, is_superuser=administrator
            )
    except IntegrityError as error:
        raise EmailTaken(email=address) from error


def sign_up(*, email: str, password: str, name: str, invitation: str, may_administer: bool, now: datetime) -> User:
    """Open an account for a stranger, if the registration mode lets them.

    With `may_administer` the first account of an empty instance becomes its administrator. Raises as `open_account`,
    and RegistrationClosed, InvitationInvalid.
    """
    with transaction.atomic():
        match registration.mode():
            case Registration.Mode.CLOSED:
                raise RegistrationClosed
            case Registration.Mode.INVITATION:
                user = open_account(email=email, password=password, name=name)
                invitations.redeem(token=invitation, user=user, now=now)
            case Registration.Mode.OPEN:
                user = open_account(email=email, password=password, name=name)
        if may_administer:
            first_account.claim(user=user, now=now)
    return user
