"""Deleting an account: its owner is gone at once, its content with the last answer under way, usage stays unnamed."""

from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.db import transaction

from chatsite.accounts import devices
from chatsite.accounts.errors import LastAdministrator
from chatsite.accounts.models import ApiKey, User
from conversations import api as conversations
from inference.contracts import SettledRun
from inference.signals import run_settled


def close(*, user: User, now: datetime) -> None:
    """Delete an account. Nobody gets in any more and nothing names its owner when this returns; rows that an answer
    under way still needs go when it has ended, which stopping it brings about within seconds.

    Raises LastAdministrator.
    """
    with transaction.atomic():
        # All administrators: of two that leave at the same time, the second finds itself the last.
        administrators = list(User.objects.select_for_update().filter(is_superuser=True, is_active=True).order_by("pk"))
        if [administrator.pk for administrator in administrators] == [user.pk]:
            raise LastAdministrator
        nobody = User(pk=user.pk)
        nobody.set_unusable_password()
        User.objects.filter(pk=user.pk).update(
            email=f"deleted-{user.pk}@invalid",
            name="",
            password=nobody.password,
            is_active=False,
            is_staff=False,
            is_superuser=False,
            closing_at=now,
        )
        ApiKey.objects.filter(user=user).delete()
        EmailAddress.objects.filter(user=user).delete()
        Authenticator.objects.filter(user=user).delete()
    devices.end_all(user=user)
    conversations.erase(owner_id=user.pk, now=now)
    finish(user_id=user.pk)


def finish(*, user_id: UUID) -> bool:
    """Remove the rows of a closed account, unless an answer of it is still under way: its end does it then."""
    closed = User.objects.filter(pk=user_id, closing_at__isnull=False)
    # First without a transaction: every answer that ends asks, and on SQLite a transaction takes the write lock.
    if not closed.exists():
        return False
    with transaction.atomic():
        user = closed.select_for_update().first()
        if user is None or conversations.awaits_answers(owner_id=user_id):
            return False
        user.delete()
    return True


def connect() -> None:
    run_settled.connect(_on_run_settled, dispatch_uid="accounts.finish_closing")


def _on_run_settled(*, settled: SettledRun, **_: Any) -> None:
    # Robust: what follows the settlement must not fail with it.
    transaction.on_commit(partial(finish, user_id=settled.owner_id), robust=True)
