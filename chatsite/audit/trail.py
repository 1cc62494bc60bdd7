"""Writing and reading the audit trail."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import Model, QuerySet

from chatsite.accounts.models import User
from chatsite.audit.models import AuditEntry

DETAIL_LENGTH = 500


def record(
    *,
    actor: User,
    action: str,
    objects: Iterable[Model],
    now: datetime,
    detail: str = "",
    request_id: str = "",
) -> list[AuditEntry]:
    """Append one entry for each object; write it before the act, so that nothing is done unrecorded.

    Raises ValueError for an action that the trail does not know.
    """
    known = AuditEntry.Action(action)
    return AuditEntry.objects.bulk_create(
        [
            AuditEntry(
                at=now,
                actor_id=actor.pk,
                actor_email=actor.email,
                action=known,
                object_type=one._meta.label_lower,
                object_id=str(one.pk),
                detail=_joined(_configured_name(one), detail)[:DETAIL_LENGTH],
                request_id=request_id,
            )
            for one in objects
        ]
    )


def record_export(*, actor: User, model: type[Model], detail: str, now: datetime, request_id: str = "") -> AuditEntry:
    """Append one entry for a list that goes out as a file: what is exported is no one object."""
    return AuditEntry.objects.create(
        at=now,
        actor_id=actor.pk,
        actor_email=actor.email,
        action=AuditEntry.Action.EXPORT,
        object_type=model._meta.label_lower,
        detail=detail[:DETAIL_LENGTH],
        request_id=request_id,
    )


def of_object(*, instance: Model) -> QuerySet[AuditEntry]:
    """What was done to one object, newest first."""
    return AuditEntry.objects.filter(object_id=str(instance.pk), object_type=instance._meta.label_lower)


def _configured_name(instance: Model) -> str:
    """What an operator calls a pool or a plan. Other objects are known by their ids: their names are somebody's."""
    return str(getattr(instance, "slug", ""))


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
