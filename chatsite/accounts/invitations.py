"""Invitations: making and redeeming them."""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q

from chatsite.accounts.errors import InvitationInvalid
from chatsite.accounts.models import Invitation, User

LIFETIME = timedelta(days=7)
_TOKEN_BYTES = 32
_FORMAT = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInvitation:
    """An invitation just made: `token` exists nowhere else."""

    invitation: Invitation
    token: str = field(repr=False)


def create(
    *, created_by: User | None, now: datetime, email: str = "", note: str = "", expires_at: datetime | None = None
) -> NewInvitation:
    """Make an invitation, whose token can be shown this once."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    invitation = Invitation.objects.create(
        sha256=_hash(token),
        email=User.objects.normalize_email(email),
        note=note,
        created_by=created_by,
        created_at=now,
        expires_at=expires_at or now + LIFETIME,
    )
    return NewInvitation(invitation=invitation, token=token)


def check(*, token: str, email: str, now: datetime) -> None:
    """Raise InvitationInvalid unless the token could be redeemed for this address now."""
    if not _FORMAT.fullmatch(token) or not Invitation.objects.filter(_valid(token, email, now)).exists():
        raise InvitationInvalid


def redeem(*, token: str, user: User, now: datetime) -> None:
    """Use an invitation up; call it inside the transaction that opens the account.

    Raises InvitationInvalid, also when somebody else was a moment faster: that transaction must then be given up.
    """
    if not _FORMAT.fullmatch(token):
        raise InvitationInvalid
    redeemed = Invitation.objects.filter(_valid(token, user.email, now)).update(used_at=now, used_by=user)
    if redeemed != 1:
        raise InvitationInvalid


def forget(*, user: User) -> None:
    """Remove who this user is from the invitations: from the one that was used, and those that wait for the address."""
    Invitation.objects.filter(used_by=user).update(email="", note="")
    Invitation.objects.filter(email=user.email, used_at=None).delete()


def _valid(token: str, email: str, now: datetime) -> Q:
    meant = Q(email="") | Q(email=User.objects.normalize_email(email))
    return meant & Q(sha256=_hash(token), used_at=None, expires_at__gt=now)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("ascii")).hexdigest()
