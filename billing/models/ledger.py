"""The append-only ledger: a row for each settled attempt, and signed adjustments that people make."""

from typing import Any, ClassVar, NoReturn, TypeVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from uuid_utils.compat import uuid7

from billing.errors import LedgerIsAppendOnly

Row = TypeVar("Row", bound=models.Model)

# Of one adjustment, either way.
MOST_TOKENS = 10**12
MOST_COST = 10**15


class _Ledger(models.QuerySet[Row]):
    """Reads and inserts. (A deleted user's rows are anonymised by Django itself, past this.)"""

    def update(self, **kwargs: Any) -> NoReturn:
        """Never. Raises LedgerIsAppendOnly."""
        raise LedgerIsAppendOnly

    def delete(self) -> NoReturn:
        """Never. Raises LedgerIsAppendOnly."""
        raise LedgerIsAppendOnly


class _AppendOnly(models.Model):
    """A row that is written once and never changed."""

    objects = _Ledger.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert only. Raises LedgerIsAppendOnly for a row that exists."""
        if not self._state.adding:
            raise LedgerIsAppendOnly
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Never. Raises LedgerIsAppendOnly."""
        raise LedgerIsAppendOnly


class UsageEntry(_AppendOnly):
    """One settled attempt's tokens; written once, never changed.

    `prompt_tokens` (cached ones included) stand on the run's terminal row only; `output_tokens` are this epoch's
    own tokens that are part of the answer; `wasted_tokens` were computed and are paid by nobody. The prices are the
    pool's at settlement, in millionths of the currency for a million tokens; `cost` is in millionths of the currency.
    Without a user: the system's own work, by its `purpose`, or a deleted user's answers.
    """

    class Purpose(models.TextChoices):
        """Answers are charged to their users; what the system has computed for a chat is charged to nobody."""

        TURN = "turn", "answer"
        SUMMARY = "summary"
        TITLE = "title"

    class Reason(models.TextChoices):
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"
        FAILED = "failed"
        LOST = "lost"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # Its index is `usage_user_created`.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="usage_entries", db_index=False
    )
    run_id = models.UUIDField()
    epoch = models.PositiveIntegerField()
    admission_id = models.UUIDField()
    pool = models.SlugField()
    reason = models.CharField(max_length=16, choices=Reason)
    purpose = models.CharField(
        max_length=16,
        choices=Purpose,
        default=Purpose.TURN,
        db_default=Purpose.TURN.value,
        help_text="What it was for.",
    )
    prompt_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    wasted_tokens = models.PositiveIntegerField(default=0)
    prompt_price = models.PositiveBigIntegerField(default=0)
    cached_price = models.PositiveBigIntegerField(default=0)
    output_price = models.PositiveBigIntegerField(default=0)
    cost = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        verbose_name_plural = "usage entries"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run_id", "epoch"], name="usage_one_row_per_attempt"),
            models.CheckConstraint(
                condition=Q(cached_tokens__lte=F("prompt_tokens")), name="usage_cached_within_prompt"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["user", "created_at"], name="usage_user_created"),
            models.Index(fields=["admission_id"], name="usage_admission"),
            models.Index(fields=["created_at"], name="usage_created"),
            models.Index(fields=["reason", "created_at"], name="usage_reason_created"),
            models.Index(fields=["pool", "created_at"], name="usage_pool_created"),
            models.Index(fields=["purpose", "created_at"], name="usage_purpose_created"),
            models.Index(fields=["pool", "reason", "created_at"], name="usage_pool_reason"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch}: {self.reason}"


class Adjustment(_AppendOnly):
    """Tokens and cost that somebody added to what a user is charged, or took off it (negative), and why.

    Who made it stays readable when that account is gone. Bounded, so that no sum of any of them is beyond 64 bits.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # Its index is `adjustment_user_created`.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="usage_adjustments", db_index=False
    )
    tokens = models.BigIntegerField(default=0, help_text="Added to what was used; negative gives tokens back.")
    cost = models.BigIntegerField(default=0, help_text="Millionths of the currency; negative gives back.")
    reason = models.CharField(max_length=300)
    author_id = models.UUIDField(null=True, editable=False)
    author_email = models.CharField("author", max_length=254, editable=False)
    created_at = models.DateTimeField(editable=False)

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=~Q(tokens=0, cost=0), name="adjustment_changes_something"),
            models.CheckConstraint(condition=~Q(reason=""), name="adjustment_has_a_reason"),
            models.CheckConstraint(
                condition=Q(tokens__gte=-MOST_TOKENS, tokens__lte=MOST_TOKENS), name="adjustment_tokens_bounded"
            ),
            models.CheckConstraint(
                condition=Q(cost__gte=-MOST_COST, cost__lte=MOST_COST), name="adjustment_cost_bounded"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["user", "created_at"], name="adjustment_user_created"),
            models.Index(fields=["created_at"], name="adjustment_created"),
        ]

    def __str__(self) -> str:
        return f"{self.tokens:+} tokens, {self.cost:+} of cost: {self.id}"

    def clean(self) -> None:
        """What the constraints say, in words and at the field. A number that is none is told by its own field."""
        # None where a form was given no number.
        given: dict[str, int | None] = {"tokens": self.tokens, "cost": self.cost}
        wrong = {
            name: f"must be between -{most:,} and {most:,}"
            for name, most in (("tokens", MOST_TOKENS), ("cost", MOST_COST))
            if abs(given[name] or 0) > most
        }
        if set(given.values()) == {0}:
            wrong["tokens"] = "tokens or cost must be something other than 0"
        if wrong:
            raise ValidationError(wrong)
