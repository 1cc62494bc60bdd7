"""Plans, who has them, and what single users may beyond them.

Every limit is a bound on tokens, messages or time of one user. Null means that nothing but the pool bounds it.
"""

from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from uuid_utils.compat import uuid7

MAX_QUEUE_WAIT_S = 14_400
# A hundred years; beyond some thousand, dates end.
MOST_HISTORY_DAYS = 36_500
# More than this would not be counted exactly everywhere: Redis's scripts have doubles.
MOST_TOKENS = 10**12
_MOST = 2**31 - 1
# Of a plan's numbers, and of those that stand in their place for one user. The constraints have most of them too.
_RANGES = {
    "budget_tokens": (1, MOST_TOKENS),
    "refill_per_hour": (1, MOST_TOKENS),
    "output_floor": (1, _MOST),
    "messages_per_hour": (1, _MOST),
    "concurrent_runs": (1, _MOST),
    "max_prompt_tokens": (1, _MOST),
    "max_output_tokens": (1, _MOST),
    "weight": (1, _MOST),
    "queue_wait_s": (1, MAX_QUEUE_WAIT_S),
    "unwatched_tokens": (1, _MOST),
    "unwatched_s": (1, _MOST),
    "history_days": (1, MOST_HISTORY_DAYS),
}


def _at_least_one(field: str) -> Q:
    return Q(**{f"{field}__isnull": True}) | Q(**{f"{field}__gte": 1})


def _wrong_numbers(instance: models.Model) -> dict[str, str]:
    """Field → what is wrong with its number, in words; a number that is none is told by its own field."""
    given = {name: getattr(instance, name) for name in _RANGES if hasattr(instance, name)}
    wrong = {
        name: f"must be between {least} and {most:,}"
        for name, (least, most) in _RANGES.items()
        if given.get(name) is not None and not least <= given[name] <= most
    }
    for name, other in (("budget_tokens", "refill_per_hour"), ("refill_per_hour", "budget_tokens")):
        if given[name] is None and given[other] is not None:
            wrong[name] = "a token budget and what it refills by go together: give both, or neither"
    budget, floor = given["budget_tokens"], given.get("output_floor")
    if budget is not None and floor is not None and floor >= budget and not wrong:
        wrong["output_floor"] = "must leave room for a prompt in the token budget"
    return wrong


class Plan(models.Model):
    """A tier: what its subscribers may use. Tokens are prompt plus output tokens.

    The token budget is a bucket of `budget_tokens` that refills by `refill_per_hour` until it is full again.
    """

    class Overflow(models.TextChoices):
        SMALLER = "smaller", "a smaller model, said so"
        REFUSE = "refuse", "no answer rather than a smaller model's"

    class Unwatched(models.TextChoices):
        """What becomes of an answer that nobody follows any more."""

        FINISH = "finish", "goes on to its end"
        SHORTEN = "shorten", "ends after so many more tokens"
        STOP = "stop", "ends after so many seconds"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=80)
    is_default = models.BooleanField(default=False, help_text="Given to users without a subscription.")
    budget_tokens = models.PositiveBigIntegerField(
        "token budget",
        null=True,
        blank=True,
        help_text="What may be used at once, prompt and output together; empty = no budget.",
    )
    refill_per_hour = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="Tokens that come back to the budget in an hour."
    )
    output_floor = models.PositiveIntegerField(
        default=64, help_text="An answer is shortened to what is left of the budget, but never below so many tokens."
    )
    messages_per_hour = models.PositiveIntegerField(
        null=True, blank=True, help_text="Within any 60 minutes; empty = no limit."
    )
    concurrent_runs = models.PositiveIntegerField(default=2, help_text="Answers one user may have in progress.")
    max_prompt_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Per answer; empty = whatever fits the pool's window."
    )
    max_output_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="Per answer; empty = the pool's maximum."
    )
    weight = models.PositiveIntegerField(default=1, help_text="Share of a busy pool relative to other plans.")
    is_free = models.BooleanField(
        "gives way first",
        default=False,
        help_text="When a pool is full: refused before others are, but never squeezed below the pool's floor.",
    )
    queue_wait_s = models.PositiveIntegerField(
        "queue wait (s)",
        null=True,
        blank=True,
        help_text="How long a message may wait for a worker before it fails; empty, or longer: the pool's bound.",
    )
    overflow = models.CharField(
        max_length=16,
        choices=Overflow,
        default=Overflow.SMALLER,
        help_text="What a full pool with a smaller one to fall back on gives.",
    )
    unwatched = models.CharField(
        "unwatched answer", max_length=16, choices=Unwatched, default=Unwatched.FINISH, help_text="Nobody follows it."
    )
    unwatched_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="For one that is shortened.")
    unwatched_s = models.PositiveIntegerField(
        "unwatched (s)", null=True, blank=True, help_text="For one that is stopped."
    )
    history_days = models.PositiveIntegerField(
        null=True, blank=True, help_text="Chats unused for so many days are deleted; empty = kept."
    )
    long_memory = models.BooleanField(
        default=False,
        help_text="Older turns that a chat's prompt has no room for are looked up again where a message is about them. "
        "It costs prompt tokens and waiting time, and needs MEMORY to be on (docs/context.md).",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-weight", "slug"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="plan_one_default"),
            models.CheckConstraint(
                # A comparison with null refuses nothing: what may be null is asked for by itself.
                condition=Q(budget_tokens__isnull=True, refill_per_hour__isnull=True)
                | Q(
                    budget_tokens__isnull=False,
                    budget_tokens__gte=1,
                    refill_per_hour__isnull=False,
                    refill_per_hour__gte=1,
                ),
                name="plan_budget_refills",
            ),
            models.CheckConstraint(condition=Q(output_floor__gte=1), name="plan_output_floor_positive"),
            models.CheckConstraint(condition=_at_least_one("messages_per_hour"), name="plan_messages_positive"),
            models.CheckConstraint(condition=Q(concurrent_runs__gte=1), name="plan_concurrent_runs_positive"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="plan_weight_positive"),
            models.CheckConstraint(condition=_at_least_one("max_output_tokens"), name="plan_max_output_positive"),
            models.CheckConstraint(condition=_at_least_one("max_prompt_tokens"), name="plan_max_prompt_positive"),
            models.CheckConstraint(
                condition=Q(queue_wait_s__isnull=True) | Q(queue_wait_s__gte=1, queue_wait_s__lte=MAX_QUEUE_WAIT_S),
                name="plan_queue_wait",
            ),
            models.CheckConstraint(
                condition=Q(unwatched="finish")
                | Q(unwatched="shorten", unwatched_tokens__isnull=False, unwatched_tokens__gte=1)
                | Q(unwatched="stop", unwatched_s__isnull=False, unwatched_s__gte=1),
                name="plan_unwatched_has_its_bound",
            ),
            models.CheckConstraint(
                condition=Q(history_days__isnull=True) | Q(history_days__gte=1, history_days__lte=MOST_HISTORY_DAYS),
                name="plan_history_bounded",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError saying, at each field, what the constraints would refuse."""
        wrong = _wrong_numbers(self)
        if self.unwatched == self.Unwatched.SHORTEN and self.unwatched_tokens is None:
            wrong["unwatched_tokens"] = "an answer that is shortened needs a number of tokens"
        if self.unwatched == self.Unwatched.STOP and self.unwatched_s is None:
            wrong["unwatched_s"] = "an answer that is stopped needs a number of seconds"
        if wrong:
            raise ValidationError(wrong)


class Subscription(models.Model):
    """A user has a plan from `starts_at` until `ends_at` (open when null). No two of a user overlap: the database
    refuses them, by an exclusion constraint on PostgreSQL and triggers on SQLite (migration 0005).
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="subscriptions")
    # Its index is `subscription_plan`.
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="subscriptions", db_index=False)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-starts_at"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")),
                name="subscription_ends_after_start",
            ),
            models.UniqueConstraint(
                fields=["user"],
                condition=Q(ends_at__isnull=True),
                name="subscription_one_open_per_user",
                violation_error_message="The user has a subscription without an end: end that one first.",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["plan", "id"], name="subscription_plan")]

    def __str__(self) -> str:
        return f"{self.plan} from {self.starts_at:%Y-%m-%d}"

    def clean(self) -> None:
        """Raise ValidationError for an end that does not come after the start."""
        # None where a form was given no time.
        starts_at: Any = self.starts_at
        if None not in (starts_at, self.ends_at) and self.ends_at <= starts_at:
            raise ValidationError({"ends_at": "must be after the start"})


class LimitOverride(models.Model):
    """What one user may in place of the plan's numbers; an empty field leaves the plan's."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="limit_override"
    )
    budget_tokens = models.PositiveBigIntegerField("token budget", null=True, blank=True)
    refill_per_hour = models.PositiveBigIntegerField(null=True, blank=True)
    messages_per_hour = models.PositiveIntegerField(null=True, blank=True)
    concurrent_runs = models.PositiveIntegerField(null=True, blank=True)
    max_prompt_tokens = models.PositiveIntegerField(null=True, blank=True)
    max_output_tokens = models.PositiveIntegerField(null=True, blank=True)
    until = models.DateTimeField(null=True, blank=True, help_text="Empty = for good.")
    note = models.CharField(max_length=300, blank=True, help_text="Why; the user does not see it.")

    class Meta:
        ordering: ClassVar[list[str]] = ["-user"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            *(
                models.CheckConstraint(condition=_at_least_one(name), name=f"override_{name}_positive")
                for name in (
                    "budget_tokens",
                    "refill_per_hour",
                    "messages_per_hour",
                    "concurrent_runs",
                    "max_prompt_tokens",
                    "max_output_tokens",
                )
            ),
            models.CheckConstraint(
                condition=Q(budget_tokens__isnull=True, refill_per_hour__isnull=True)
                | Q(budget_tokens__isnull=False, refill_per_hour__isnull=False),
                name="override_budget_refills",
            ),
        ]

    def __str__(self) -> str:
        return f"limits of {self.user_id}"

    def clean(self) -> None:
        """Raise ValidationError saying, at each field, what the constraints would refuse."""
        if wrong := _wrong_numbers(self):
            raise ValidationError(wrong)
