"""Suspending a user, and lifting it."""

from datetime import datetime

from chatsite.accounts import devices
from chatsite.accounts.models import User
from conversations import api as conversations


def suspend(*, user: User, now: datetime) -> bool:
    """Refuse the user everywhere from now on, and stop the answers that they wait for.

    Sessions and their tokens end; API keys are refused while it lasts. False when the user was suspended before.
    """
    suspended = User.objects.filter(pk=user.pk, is_active=True).update(is_active=False)
    # Also the second time: an answer may have been accepted while the first was at work.
    devices.end_all(user=user)
    conversations.stop_answers(owner_id=user.pk, now=now)
    return suspended == 1


def reinstate(*, user: User) -> bool:
    """Let the user back in. False when they were not suspended, or deleted their account."""
    return User.objects.filter(pk=user.pk, is_active=False, closing_at=None).update(is_active=True) == 1
