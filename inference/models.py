"""Model pools, runs and their attempts. Only `inference.runs` writes runs and attempts."""

from typing import ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import F, Q
from uuid_utils.compat import uuid7

from inference.worker import engine_options


class ModelPool(models.Model):
    """A served LLM: its weights, limits and engine settings. `slug` names it in the API and in its Celery queue."""

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
    max_concurrent_runs = models.PositiveIntegerField(default=32, help_text="Answers one worker generates at a time.")
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
            models.CheckConstraint(condition=Q(max_concurrent_runs__gte=1), name="pool_concurrency_positive"),
            models.CheckConstraint(condition=Q(temperature__gte=0) & Q(temperature__lte=2), name="pool_temperature"),
            models.CheckConstraint(condition=Q(top_p__gt=0) & Q(top_p__lte=1), name="pool_top_p"),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError naming the first engine option that is unknown or does not fit the pool."""
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


class Run(models.Model):
    """One logical answer. Its row decides acceptance, epoch, owner and terminal state.

    `chat_id` is the caller's thread; one run of it may be active. `prompt_ids` holds the prompt's token ids
    (little-endian uint32) only while the run is active. `base_epoch` is the first epoch of the present admission.
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

    ACTIVE: ClassVar[tuple[str, ...]] = ("queued", "streaming")

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="runs")
    chat_id = models.UUIDField()
    turn = models.CharField(max_length=64, help_text="The turn it answers, as admission names it.")
    pool = models.ForeignKey(ModelPool, on_delete=models.PROTECT, related_name="runs")
    model = models.CharField(max_length=300)
    status = models.CharField(max_length=16, choices=Status, default=Status.QUEUED)
    epoch = models.PositiveIntegerField(default=1)
    base_epoch = models.PositiveIntegerField(default=1)
    admission_id = models.UUIDField()
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
    context = models.JSONField(default=dict, help_text="Snapshot: summary version, first and last seq, token counts.")
    created_at = models.DateTimeField()
    claimed_at = models.DateTimeField(null=True, blank=True)
    first_token_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    release_ms = models.PositiveIntegerField(null=True, blank=True, help_text="Cancel → engine let go.")

    class Meta:
        ordering: ClassVar[list[str]] = ["-id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["chat_id"],
                condition=Q(status__in=["queued", "streaming"]),
                name="run_one_active_per_chat",
            ),
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
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["status", "id"], condition=Q(status__in=["queued", "streaming"]), name="run_active"),
            models.Index(fields=["chat_id", "id"], name="run_chat"),
            models.Index(fields=["owner", "id"], name="run_owner"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.status}"

    @property
    def is_active(self) -> bool:
        return self.status in self.ACTIVE


class Attempt(models.Model):
    """One inference try of a run: who made it and what it used. `text` keeps what a retry replaced."""

    class Outcome(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        CANCELLED = "cancelled"
        FAILED = "failed"
        INTERRUPTED = "interrupted"
        LOST = "lost"

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

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch}"
