"""Model pools, runs and their attempts. Only `inference.runs` writes runs and attempts."""

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from uuid_utils.compat import uuid7

from inference.worker import engine_options

# One of the currency for each token. What a run costs stays far below 64 bits, so that its settlement can be stored.
MAX_PRICE = 10**12
# Of a pool's numbers; the constraints have them too.
_RANGES = {
    "max_concurrent_runs": (1, 2**31 - 1),
    "queue_wait_s": (1, 14_400),
    "generation_s": (1, 14_400),
    "max_epochs": (1, 20),
    "stall_s": (1, 3_600),
    "temperature": (0, 2),
    "prompt_price": (0, MAX_PRICE),
    "cached_price": (0, MAX_PRICE),
    "output_price": (0, MAX_PRICE),
    "queue_depth": (1, 1_000_000),
    "free_floor": (0, 90),
    "affinity_delay_ms": (0, 60_000),
    "fairness_slack": (0, 10_000_000),
    "prompt_weight": (0, 1_000),
    "output_weight": (1, 1_000),
    "short_prompt_tokens": (0, 2**31 - 1),
    "high_water": (1, 100),
    "low_water": (1, 100),
}


class ModelPool(models.Model):
    """A served LLM: its weights, limits and engine settings. `slug` names it in the API and in its Celery queue.

    How its queue is served (docs/scheduler.md): plans share it by their weights, or by a `PoolWeight`.
    """

    class Mode(models.TextChoices):
        """What a pool takes."""

        NORMAL = "normal", "normal"
        SHED_FREE = "shed_free", "free plans go elsewhere"
        DRAIN = "drain", "nothing new"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=80)
    model = models.CharField(
        max_length=300, blank=True, help_text="Folder or Hugging Face name; empty = the MODEL setting."
    )
    is_default = models.BooleanField(default=False)
    is_open = models.BooleanField(default=True, help_text="Closed pools take no new messages.")
    context_window = models.PositiveIntegerField(default=4096, help_text="Tokens, prompt and output together.")
    max_output_tokens = models.PositiveIntegerField(default=1024, help_text="Tokens per answer.")
    reserve_tokens = models.PositiveIntegerField(
        default=512, help_text="Kept of the window for system prompt and tools, or as many as those take if more."
    )
    high_water = models.PositiveIntegerField(
        "high-water mark (%)",
        default=75,
        help_text="A chat that takes more of what is left of the window gets its oldest turns summarised.",
    )
    low_water = models.PositiveIntegerField(
        "low-water mark (%)",
        default=40,
        help_text="So much of it the newest turns may take, word for word, once the older ones are summarised.",
    )
    max_concurrent_runs = models.PositiveIntegerField(default=32, help_text="Answers one worker generates at a time.")
    queue_wait_s = models.PositiveIntegerField(
        "queue wait (s)", default=300, help_text="How long a message may wait for a worker before it fails."
    )
    generation_s = models.PositiveIntegerField(
        "generation deadline (s)",
        default=900,
        help_text="From the first worker's start to the end, changes of worker included; then the answer breaks off.",
    )
    max_epochs = models.PositiveIntegerField(
        "attempts", default=3, help_text="Workers that may be lost over one answer before it breaks off."
    )
    stall_s = models.PositiveIntegerField(
        "stall bound (s)",
        default=20,
        help_text="An engine that has work and finishes no step for so long is replaced; above its longest step.",
    )
    mode = models.CharField(
        max_length=16, choices=Mode, default=Mode.NORMAL, help_text="What waits or runs is served in any mode."
    )
    overflow_to = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="overflows_of",
        help_text="A smaller model's pool, which answers, and says so, what this one has no room for.",
    )
    short_prompt_tokens = models.PositiveIntegerField(
        default=0, help_text="Prompts of at most so many tokens are answered by the overflow pool; 0 = none."
    )
    queue_depth = models.PositiveIntegerField(default=1000, help_text="Messages that may wait, of each plan.")
    free_floor = models.PositiveIntegerField(
        "floor of free plans (%)", default=10, help_text="Their share of a busy pool, however much the others want."
    )
    affinity_delay_ms = models.PositiveIntegerField(
        "affinity delay (ms)",
        default=2000,
        help_text="How long a turn may be kept for the worker that has its chat in memory; 0 = no affinity.",
    )
    fairness_slack = models.PositiveIntegerField(
        default=4096, help_text="How many tokens a user's turn may be taken early for affinity's sake."
    )
    prompt_weight = models.PositiveIntegerField(default=1, help_text="What an uncached prompt token counts.")
    output_weight = models.PositiveIntegerField(default=2, help_text="What an output token counts.")
    plans = models.ManyToManyField(
        "billing.Plan", blank=True, related_name="pools", help_text="Whose subscribers may use it; none = everybody's."
    )
    prompt_price = models.PositiveBigIntegerField(
        default=0, help_text="Millionths of the currency for a million prompt tokens that were not cached."
    )
    cached_price = models.PositiveBigIntegerField(default=0, help_text="The same for cached prompt tokens.")
    output_price = models.PositiveBigIntegerField(default=0, help_text="The same for output tokens.")
    temperature = models.FloatField(default=0.1)
    top_p = models.FloatField(default=0.95)
    system_prompt = models.TextField(default="You are a helpful assistant.")
    engine_options = models.JSONField(
        default=dict,
        blank=True,
        help_text="Handed to the engine: tensor_parallel_size, quantization, max_num_batched_tokens, … ",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["slug"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["is_default"], condition=Q(is_default=True), name="pool_one_default"),
            models.CheckConstraint(
                condition=Q(max_output_tokens__gte=1) & Q(max_output_tokens__lt=F("context_window")),
                name="pool_output_within_window",
            ),
            models.CheckConstraint(
                condition=Q(low_water__gte=1, high_water__lte=100) & Q(low_water__lt=F("high_water")),
                name="pool_water_marks",
            ),
            models.CheckConstraint(condition=Q(max_concurrent_runs__gte=1), name="pool_concurrency_positive"),
            # Celery hands a ticket out again after 6 h, and a stream expires after 24.
            models.CheckConstraint(condition=Q(queue_wait_s__gte=1, queue_wait_s__lte=14_400), name="pool_queue_wait"),
            models.CheckConstraint(condition=Q(generation_s__gte=1, generation_s__lte=14_400), name="pool_generation"),
            models.CheckConstraint(condition=Q(max_epochs__gte=1, max_epochs__lte=20), name="pool_max_epochs"),
            models.CheckConstraint(condition=Q(stall_s__gte=1, stall_s__lte=3_600), name="pool_stall"),
            models.CheckConstraint(condition=Q(temperature__gte=0) & Q(temperature__lte=2), name="pool_temperature"),
            models.CheckConstraint(condition=Q(top_p__gt=0) & Q(top_p__lte=1), name="pool_top_p"),
            models.CheckConstraint(condition=Q(mode__in=["normal", "shed_free", "drain"]), name="pool_mode_known"),
            models.CheckConstraint(condition=~Q(overflow_to=F("id")), name="pool_overflows_elsewhere"),
            models.CheckConstraint(condition=Q(queue_depth__gte=1), name="pool_queue_depth"),
            models.CheckConstraint(condition=Q(free_floor__lte=90), name="pool_free_floor"),
            models.CheckConstraint(condition=Q(output_weight__gte=1), name="pool_output_weight"),
            models.CheckConstraint(
                condition=Q(prompt_price__lte=MAX_PRICE, cached_price__lte=MAX_PRICE, output_price__lte=MAX_PRICE),
                name="pool_prices_bounded",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError naming the numbers or the first engine option that do not fit the pool."""
        self._clean_numbers()
        self._clean_overflow()
        if not isinstance(self.engine_options, dict):
            raise ValidationError({"engine_options": "must be an object of engine options"})
        try:
            engine_options.validate(self.engine_options)
        except ValueError as error:
            raise ValidationError({"engine_options": str(error)}) from error
        window = self.engine_options.get("max_model_len", self.context_window)
        if window < self.context_window:
            reason = f"max_model_len ({window}) must not be below the pool's window ({self.context_window})"
            raise ValidationError({"engine_options": reason})
        batch = self.engine_options.get("max_num_batched_tokens")
        sequences = self.engine_options.get("max_num_seqs", self.max_concurrent_runs)
        if batch is not None and batch < sequences:
            reason = f"max_num_batched_tokens ({batch}) must not be below the concurrent runs ({sequences})"
            raise ValidationError({"engine_options": reason})

    def _clean_overflow(self) -> None:
        """A turn overflows once, so that pools may stand in a row; a circle would have a model smaller than itself."""
        if self.short_prompt_tokens and self.overflow_to is None:
            raise ValidationError({"short_prompt_tokens": "needs an overflow pool to answer them"})
        seen, target = {self.pk}, self.overflow_to
        while target is not None:
            if target.pk in seen:
                raise ValidationError({"overflow_to": "leads back to this pool: a smaller model's pool does not"})
            seen.add(target.pk)
            target = target.overflow_to

    def _clean_numbers(self) -> None:
        """What the constraints say, in words and at the field. A number that is none is told by its own field."""
        wrong = {}
        for name, (least, most) in _RANGES.items():
            number: Any = getattr(self, name)
            if number is not None and not least <= number <= most:
                wrong[name] = f"must be between {least} and {most:,}"
        # None where a form was given no number.
        window: Any = self.context_window
        output: Any = self.max_output_tokens
        if None not in (window, output) and not 1 <= output < window:
            wrong["max_output_tokens"] = (
                f"must be at least 1 and leave room for a prompt in the window ({window} tokens)"
            )
        low: Any = self.low_water
        high: Any = self.high_water
        if None not in (low, high) and "low_water" not in wrong and "high_water" not in wrong and low >= high:
            wrong["low_water"] = f"must be below the high-water mark ({high} %)"
        top_p: Any = self.top_p
        if top_p is not None and not 0 < top_p <= 1:
            wrong["top_p"] = "must be above 0, at most 1"
        if wrong:
            raise ValidationError(wrong)


class PoolWeight(models.Model):
    """What a plan's share of one busy pool is, in place of the plan's own weight."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    pool = models.ForeignKey(ModelPool, on_delete=models.CASCADE, related_name="weights")
    plan = models.ForeignKey("billing.Plan", on_delete=models.CASCADE, related_name="+")
    weight = models.PositiveIntegerField(help_text="Relative to other plans.")

    class Meta:
        ordering: ClassVar[list[str]] = ["pool", "plan"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["pool", "plan"], name="pool_weight_one_per_plan"),
            models.CheckConstraint(condition=Q(weight__gte=1), name="pool_weight_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.plan}: {self.weight}"

    def clean(self) -> None:
        """Raise ValidationError saying, at the field, what the constraint would refuse."""
        # None where a form was given no number.
        weight: Any = self.weight
        if weight is not None and weight < 1:
            raise ValidationError({"weight": "must be at least 1"})


class Run(models.Model):
    """One logical answer. Its row decides acceptance, epoch, owner and terminal state.

    `chat_id` is the caller's thread; one turn's run of it may be active. Runs of the other kinds work in the background
    for the chat: nothing is held for them, and nobody but the system is charged. `prompt_ids` holds the prompt's token
    ids (little-endian uint32) only while the run is active. `base_epoch` is the first epoch of the present admission.
    `carry_ids` are the published answer tokens that the current epoch goes on from; `stream_incarnation` is the
    Redis incarnation in which the current owner may publish.
    """

    class Status(models.TextChoices):
        QUEUED = "queued"
        STREAMING = "streaming"
        DONE = "done"
        CANCELLED = "cancelled"
        FAILED = "failed"
        INTERRUPTED = "interrupted"

    class Kind(models.TextChoices):
        """What a run is for; what is charged for it is told apart by the same names."""

        TURN = "turn"
        SUMMARY = "summary"
        TITLE = "title"

    ACTIVE: ClassVar[tuple[str, ...]] = ("queued", "streaming")
    # A terminal state that an explicit retry may leave. `done` is final.
    RETRYABLE: ClassVar[tuple[str, ...]] = ("cancelled", "failed", "interrupted")

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="runs")
    chat_id = models.UUIDField()
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.TURN, db_default=Kind.TURN.value)
    turn = models.CharField(max_length=64, blank=True, help_text="The turn it answers, as admission names it.")
    # Its index is `run_pool`.
    pool = models.ForeignKey(ModelPool, on_delete=models.PROTECT, related_name="runs", db_index=False)
    model = models.CharField(max_length=300)
    status = models.CharField(max_length=16, choices=Status, default=Status.QUEUED)
    epoch = models.PositiveIntegerField(default=1)
    base_epoch = models.PositiveIntegerField(default=1)
    admission_id = models.UUIDField()
    tier = models.CharField(
        max_length=50, blank=True, default="", help_text="The slug of the plan whose share of the pool it uses."
    )
    reserved_tokens = models.PositiveIntegerField(help_text="Prompt plus allowed output, held until settlement.")
    degraded = models.BooleanField(default=False)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    stream_incarnation = models.CharField(max_length=40, blank=True)
    prompt_ids = models.BinaryField(default=b"", editable=False)
    carry_ids = models.BinaryField(default=b"", editable=False)
    carry_text = models.TextField(blank=True, editable=False)
    prompt_tokens = models.PositiveIntegerField()
    max_output_tokens = models.PositiveIntegerField()
    cached_tokens = models.PositiveIntegerField(default=0)
    output_tokens = models.PositiveIntegerField(default=0)
    finish_reason = models.CharField(max_length=16, blank=True)
    error_code = models.CharField(max_length=40, blank=True)
    message_id = models.UUIDField(null=True, blank=True)
    unwatched_tokens = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many more it may take once nobody follows; empty = all."
    )
    unwatched_s = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many seconds it may go on while nobody follows; empty = to its end."
    )
    context = models.JSONField(default=dict, help_text="Snapshot: summary version, first and last seq, token counts.")
    created_at = models.DateTimeField()
    retried_at = models.DateTimeField(null=True, blank=True, help_text="The last explicit retry.")
    claimed_at = models.DateTimeField(null=True, blank=True)
    first_token_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(help_text="Of the wait until its first epoch begins, then of the generation.")
    release_ms = models.PositiveIntegerField(null=True, blank=True, help_text="Cancel → engine let go.")

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["chat_id"],
                condition=Q(status__in=["queued", "streaming"], kind="turn"),
                name="run_one_active_per_chat",
            ),
            models.CheckConstraint(condition=Q(kind__in=["turn", "summary", "title"]), name="run_kind_known"),
            models.CheckConstraint(
                condition=Q(status__in=["queued", "streaming", "done", "cancelled", "failed", "interrupted"]),
                name="run_status_known",
            ),
            models.CheckConstraint(
                condition=Q(base_epoch__gte=1) & Q(epoch__gte=F("base_epoch")), name="run_epoch_from_base"
            ),
            models.CheckConstraint(
                condition=Q(status__in=["queued", "streaming"], finished_at__isnull=True)
                | Q(status__in=["done", "cancelled", "failed", "interrupted"], finished_at__isnull=False),
                name="run_finished_iff_terminal",
            ),
            models.CheckConstraint(condition=Q(max_output_tokens__gte=1), name="run_max_output_positive"),
            models.CheckConstraint(
                condition=Q(unwatched_tokens__isnull=True) | Q(unwatched_s__isnull=True), name="run_unwatched_one_bound"
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            # Whole, not of the active runs alone: SQLite takes a partial index only for conditions without parameters.
            models.Index(fields=["status", "id"], name="run_status"),
            models.Index(fields=["chat_id", "id"], name="run_chat"),
            models.Index(fields=["owner", "id"], name="run_owner"),
            models.Index(fields=["pool", "id"], name="run_pool"),
            models.Index(fields=["pool", "status", "id"], name="run_pool_status"),
            models.Index(fields=["kind", "id"], name="run_kind"),
        ]
        permissions: ClassVar = [("cancel_run", "Can stop anybody's answer")]

    def __str__(self) -> str:
        return f"{self.id} {self.status}"

    @property
    def is_active(self) -> bool:
        return self.status in self.ACTIVE

    @property
    def is_turn(self) -> bool:
        """Whether it answers a user's message."""
        return self.kind == self.Kind.TURN

    @property
    def thread_id(self) -> UUID:
        """What the workers know the conversation by whose next prompt begins like this one: a job's has no next."""
        return self.chat_id if self.is_turn else self.id

    @property
    def asked_at(self) -> datetime:
        """When the answer was asked for: with the message, or by the last retry."""
        return self.retried_at or self.created_at


class Prompt(models.Model):
    """The exact prompt that a run was accepted with, kept for as long as the run.

    It is the first `shared` token ids of the prompt of `base_id`, a run of the same chat, and then `rest` (packed ids,
    deflated): a chat's next prompt goes on from the last one, and to store each whole would grow with the square of the
    chat. `digest` is the SHA-256 of all its packed ids; `depth` counts the prompts that it is made of beside its own.
    """

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="prompt")
    base_id = models.UUIDField(null=True, editable=False)
    shared = models.PositiveIntegerField(default=0)
    rest = models.BinaryField(editable=False)
    digest = models.CharField(max_length=64)
    depth = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(base_id__isnull=True, shared=0, depth=0) | Q(base_id__isnull=False, depth__gte=1),
                name="prompt_base_iff_shared",
            ),
        ]

    def __str__(self) -> str:
        return f"prompt of {self.run_id}"


class Attempt(models.Model):
    """One inference try of a run: who made it and what it used. `text` keeps what a retry replaced."""

    class Outcome(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        CANCELLED = "cancelled"
        FAILED = "failed"
        INTERRUPTED = "interrupted"
        LOST = "lost"
        DRAINED = "drained"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    epoch = models.PositiveIntegerField()
    worker = models.CharField(max_length=120)
    outcome = models.CharField(max_length=16, choices=Outcome, default=Outcome.RUNNING)
    output_tokens = models.PositiveIntegerField(default=0)
    cached_tokens = models.PositiveIntegerField(default=0)
    text = models.TextField(blank=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["run", "epoch"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["run", "epoch"], name="attempt_one_per_epoch"),
            models.CheckConstraint(condition=Q(epoch__gte=1), name="attempt_epoch_positive"),
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["outcome", "id"], name="attempt_outcome")]

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch}"
