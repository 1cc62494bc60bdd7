"""Deleting an account: its owner is gone at once, its content with the last answer under way, usage stays unnamed."""

from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.db import transaction
from django.db.models import QuerySet

from billing import api as billing
from chatsite.accounts import devices, invitations
from chatsite.accounts.errors import LastAdministrator
from chatsite.accounts.models import ApiKey, User
from conversations import api as conversations
from inference import api as inference
from inference.contracts import SettledRun
from inference.signals import run_settled


def close(*, user: User, now: datetime) -> None:
    """Delete an account. Nobody gets in any more and nothing names its owner when this returns; rows that an answer
    under way still needs go when it has ended, which stopping it brings about within seconds.

    Raises LastAdministrator.
    """
    with transaction.atomic():
        ensure_not_last(user=user)
        invitations.forget(user=user)
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
    finish(user_id=user.pk, now=now)


def ensure_not_last(*, user: User) -> None:
    """Raises LastAdministrator. Holds all administrators until the transaction ends: of two that leave at the same
    time, the second finds itself the last.
    """
    if _is_alone(user, among=_administrators().select_for_update().order_by("pk")):
        raise LastAdministrator


def is_last_administrator(user: User) -> bool:
    """Whether nobody else could administer the site: such an account is neither deleted nor demoted."""
    return _is_alone(user, among=_administrators()[:2])


def _administrators() -> QuerySet[User]:
    return User.objects.filter(is_superuser=True, is_active=True)


def _is_alone(user: User, *, among: QuerySet[User]) -> bool:
    return [other.pk for other in among] == [user.pk]


def finish(*, user_id: UUID, now: datetime) -> bool:
    """Remove the rows of a closed account, unless an answer of it is still under way: its end does it then."""
    closed = User.objects.filter(pk=user_id, closing_at__isnull=False)
    # First without a transaction: every answer that ends asks, and on SQLite a transaction takes the write lock.
    if not closed.exists():
        return False
    with transaction.atomic():
        # In the order of all who write rows of a user under the account's lock.
        billing.hold_account(user_id=user_id)
        user = closed.select_for_update().first()
        if user is None or conversations.awaits_answers(owner_id=user_id):
            return False
        billing.complete_days(user_id=user_id)
        # Before the rows go with their user: streams go with their runs.
        inference.forget_user(user_id=user_id, now=now)
        user.delete()
    return True


def connect() -> None:
    run_settled.connect(_on_run_settled, dispatch_uid="accounts.finish_closing")


def _on_run_settled(*, settled: SettledRun, **_: Any) -> None:
    # Robust: what follows the settlement must not fail with it.
    transaction.on_commit(partial(finish, user_id=settled.owner_id, now=settled.finished_at), robust=True)
