"""Removing what accounts leave behind: sessions and invitations that are over."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db.models import Exists, OuterRef

from chatsite.accounts import closing
from chatsite.accounts.models import Invitation, User

# A log-in writes its session before its device; the rest is for clocks that differ.
_GRACE = timedelta(days=1)
# After its end, an invitation that nobody used is still told from one that never was.
INVITATION_KEPT = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """How much was removed."""

    sessions: int
    devices: int
    invitations: int
    accounts: int


def tidy(*, now: datetime) -> Tidied:
    """Remove expired sessions (tokens of apps are within them), the devices that had them, and invitations that ran
    out unused long ago; finish closed accounts whose last answer could not. Doing it again removes nothing more."""
    sessions, _ = Session.objects.filter(expire_date__lt=now).delete()
    living = Session.objects.filter(session_key=OuterRef("session_key"))
    devices, _ = UserSession.objects.filter(~Exists(living), last_seen_at__lt=now - _GRACE).delete()
    invitations, _ = Invitation.objects.filter(used_at__isnull=True, expires_at__lt=now - INVITATION_KEPT).delete()
    left = list(User.objects.filter(closing_at__isnull=False).values_list("pk", flat=True))
    finished = [closing.finish(user_id=user_id, now=now) for user_id in left]
    return Tidied(sessions=sessions, devices=devices, invitations=invitations, accounts=sum(finished))
