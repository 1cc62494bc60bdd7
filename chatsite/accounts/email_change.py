"""Changing the e-mail address of an account: the new one counts once its owner has opened the link sent there.

allauth can do this too, but first removes an address that was never confirmed, and leaves the account without any.
"""

from dataclasses import dataclass
from datetime import timedelta

from allauth.account.models import EmailAddress
from django.core import signing
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from chatsite.accounts.errors import EmailTaken, LinkInvalid
from chatsite.accounts.models import User

LIFETIME = timedelta(days=1)
_SALT = "chatsite.accounts.email_change"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a link asks for."""

    user: User
    email: str


def token_for(*, user: User, email: str) -> str:
    """What the link to the new address holds, signed. Raises ValidationError for a malformed address.

    Whether somebody has the address already is found when the link is opened, by whoever reads mail there.
    """
    address = User.objects.normalize_email(email)
    validate_email(address)
    return signing.dumps([str(user.pk), user.email, address], salt=_SALT)


def read(*, token: str) -> Change:
    """The change that a link asks for. Raises LinkInvalid: expired, made up, used, or the account is gone."""
    try:
        user_id, before, address = signing.loads(token, salt=_SALT, max_age=LIFETIME)
    except signing.BadSignature as error:
        raise LinkInvalid from error
    user = User.objects.filter(pk=user_id, email=before, is_active=True).first()
    if user is None:
        raise LinkInvalid
    return Change(user=user, email=address)


def apply(*, change: Change) -> None:
    """Give the account its new address, confirmed. Raises EmailTaken, and LinkInvalid when another was faster."""
    try:
        with transaction.atomic():
            changed = User.objects.filter(pk=change.user.pk, email=change.user.email).update(email=change.email)
            if not changed:
                raise LinkInvalid
            keep_only(user=change.user, email=change.email, verified=True)
    except IntegrityError as error:
        raise EmailTaken(email=change.email) from error


def keep_only(*, user: User, email: str, verified: bool) -> None:
    """Make this the one address that allauth knows of the user: each that it knows lets them log in."""
    EmailAddress.objects.filter(user=user).delete()
    EmailAddress.objects.create(user=user, email=email, verified=verified, primary=True)
