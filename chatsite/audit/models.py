"""The audit trail as stored: append-only, and without keys to what it speaks of, so that it outlives all of it."""

from typing import Any, ClassVar, NoReturn

from django.db import models
from uuid_utils.compat import uuid7

from chatsite.audit.errors import TrailIsAppendOnly


class _Trail(models.QuerySet["AuditEntry"]):
    """Reads and inserts."""

    def update(self, **kwargs: Any) -> NoReturn:
        """Never. Raises TrailIsAppendOnly."""
        raise TrailIsAppendOnly

    def delete(self) -> NoReturn:
        """Never. Raises TrailIsAppendOnly."""
        raise TrailIsAppendOnly


class AuditEntry(models.Model):
    """One act of one member of staff on one object, or on a list, which has no id.

    The actor's address is kept as it was. Of the object only type and id are: its name may be what somebody wrote,
    or an address that its owner is free to have deleted. `detail` names what is configured (a pool's slug, the fields
    of a form), never what anybody wrote.
    """

    class Action(models.TextChoices):
        ADD = "add"
        CHANGE = "change"
        DELETE = "delete"
        SUSPEND = "suspend"
        REINSTATE = "reinstate"
        CANCEL = "cancel"
        REVOKE = "revoke"
        OPEN = "open"
        CLOSE = "close"
        # What a pool takes: its modes.
        NORMAL = "normal", "back to normal"
        SHED_FREE = "shed_free", "shed free plans"
        DRAIN = "drain"
        VIEW = "view", "view content"
        EXPORT = "export"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    at = models.DateTimeField()
    actor_id = models.UUIDField()
    actor_email = models.CharField("who", max_length=254)
    action = models.CharField(max_length=16, choices=Action)
    object_type = models.CharField(max_length=100, help_text="As in `inference.run`.")
    object_id = models.CharField(max_length=64)
    detail = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=64, blank=True, help_text="As in the log's lines.")

    objects = _Trail.as_manager()

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        verbose_name_plural = "audit entries"
        default_permissions = ("view",)
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["actor_id", "id"], name="audit_actor"),
            models.Index(fields=["actor_email", "id"], name="audit_actor_email"),
            models.Index(fields=["object_id", "id"], name="audit_object"),
            models.Index(fields=["action", "id"], name="audit_action"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.object_type} {self.object_id}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert only. Raises TrailIsAppendOnly for an entry that exists."""
        if not self._state.adding:
            raise TrailIsAppendOnly
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Never. Raises TrailIsAppendOnly."""
        raise TrailIsAppendOnly
