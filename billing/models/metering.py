"""Usage per user, pool and day, summed from the ledger, and the events that say which sums are out of date."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from uuid_utils.compat import uuid7


class DailyUsage(models.Model):
    """What one user used in one pool on one day of UTC. Always what the ledger's rows of that day add up to; a deleted
    user's days stay without a name.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # Its index is `daily_usage_once`.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="usage_days", db_index=False
    )
    day = models.DateField()
    pool = models.SlugField()
    runs = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    wasted_tokens = models.PositiveBigIntegerField(default=0)
    cost = models.PositiveBigIntegerField(default=0, help_text="Millionths of the currency.")

    class Meta:
        ordering: ClassVar[list[str]] = ["-day", "pool"]
        verbose_name_plural = "daily usage"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["user", "day", "pool"], name="daily_usage_once")
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["day", "pool"], name="daily_usage_day")]

    def __str__(self) -> str:
        return f"{self.user_id} on {self.day} in {self.pool}"


class UsageEvent(models.Model):
    """A row of the ledger was written, in the same transaction: the day's sums are to be made anew.

    It names no row and says no amount, so that one that comes late or twice does no harm. Without a pool it means all.
    """

    id = models.BigAutoField(primary_key=True)
    user_id = models.UUIDField()
    day = models.DateField()
    pool = models.SlugField()

    class Meta:
        ordering: ClassVar[list[str]] = ["id"]
        # Whoever reads a user's days asks which of them are out of date.
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["user_id", "day"], name="usage_event_user_day")]

    def __str__(self) -> str:
        return f"{self.user_id} on {self.day} in {self.pool}"
