"""The first account of an empty instance, which becomes its administrator.

Only while the server is bound to loopback, and only for a request that came straight from this machine: whoever
started the site is then the only one who can be first. Elsewhere `manage.py create_admin` makes the administrator.
"""

from datetime import datetime

from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import HttpRequest

from chatsite import env
from chatsite.accounts.models import FirstAdministrator, User

# A proxy on this machine would make strangers look local. Those that pass on requests for others say so.
_FORWARDED = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_HOST", "HTTP_X_REAL_IP", "HTTP_VIA")


def may_be_claimed(request: HttpRequest) -> bool:
    """Whether who asks can only be somebody at this machine."""
    return (
        bool(settings.FIRST_ACCOUNT_IS_ADMINISTRATOR)
        and env.is_loopback(request.META.get("REMOTE_ADDR", ""))
        and env.is_loopback(request.get_host().rpartition(":")[0] or request.get_host())
        and not any(header in request.META for header in _FORWARDED)
    )


def claim(*, user: User, now: datetime) -> bool:
    """Make a new user administrator if the instance was empty and nobody ever was first.

    Call it inside the transaction that creates the user. Two that race each see an empty instance; both insert the
    one row there can be, the second waits for the first's commit, and the constraint refuses it.
    """
    if User.objects.exclude(pk=user.pk).exists():
        return False
    try:
        # A savepoint: the refusal must not take the account along.
        with transaction.atomic():
            FirstAdministrator.objects.create(user=user, claimed_at=now)
    except IntegrityError:
        return False
    user.is_staff = user.is_superuser = True
    user.save(update_fields=["is_staff", "is_superuser"])
    return True
