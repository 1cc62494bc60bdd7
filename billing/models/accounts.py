"""Quota accounts.

Reservations (tokens held between admission and settlement) and the level of the token budget live in Redis; a run's row
carries the admission id and the amount held, and the ledger what was charged, from which both can be rebuilt.
"""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q


class Account(models.Model):
    """A user's quota account.

    `quota_gen` counts rebuilds of its Redis counters: an acceptance made under an older generation is void.
    `debt_tokens` is what was charged and not yet refilled at `debt_at`: the ledger up to there need not be read again.
    """

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="quota_account"
    )
    quota_gen = models.PositiveBigIntegerField(default=1)
    debt_tokens = models.PositiveBigIntegerField(default=0)
    debt_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(debt_tokens=0) | Q(debt_at__isnull=False), name="account_debt_has_its_time"
            )
        ]

    def __str__(self) -> str:
        return f"account of {self.user_id}"
