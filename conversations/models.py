"""Chats, messages and turns, what is made of them in the background, and the site's banner."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from uuid_utils.compat import uuid7


class Chat(models.Model):
    """One thread of one owner. A chat with `deleted_at` is gone for everybody and awaits the purge of its content."""

    class TitleBy(models.TextChoices):
        """`words` are the first message's, until a model has made a title of them or failed to (`kept`)."""

        WORDS = "words", "its first words"
        KEPT = "kept", "its first words, for good"
        MODEL = "model", "a model"
        OWNER = "owner", "its owner"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="chats")
    title = models.CharField(max_length=200, blank=True)
    title_by = models.CharField(
        max_length=8,
        choices=TitleBy,
        blank=True,
        default="",
        db_default="",
        help_text="Whose the title is: one that its owner gave is never replaced.",
    )
    pool = models.SlugField(help_text="Slug of the model pool that answers by default.")
    last_seq = models.PositiveIntegerField(default=0, help_text="Sequence number of the newest message.")
    summary_version = models.PositiveIntegerField(default=0, db_default=0, help_text="The newest summary's; 0 = none.")
    revision = models.PositiveIntegerField(
        default=0,
        db_default=0,
        help_text="Grows whenever a message is stored or replaced: what was read before is old.",
    )
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-last_active_at", "-id"]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["owner", "-last_active_at", "-id"], name="chat_owner_recent"),
            models.Index(fields=["deleted_at"], condition=Q(deleted_at__isnull=False), name="chat_awaiting_purge"),
            models.Index(fields=["pool", "id"], name="chat_pool"),
        ]
        permissions: ClassVar = [("view_content", "Can read what people wrote: titles and messages")]

    def __str__(self) -> str:
        """Without the title: it is made of what somebody wrote."""
        return f"chat {self.id}"


class Turn(models.Model):
    """A user message, as the client names it, and the run that answers it.

    `fingerprint` is a digest of what was asked (content, pool, max_output_tokens): a repeat must match it.
    `max_output_tokens` is the part of it that a retry asks for again; null = all that the pool allows.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="turns")
    client_turn_id = models.CharField(max_length=128)
    fingerprint = models.CharField(max_length=64)
    max_output_tokens = models.PositiveIntegerField(null=True, blank=True)
    run_id = models.UUIDField(unique=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["chat", "id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["chat", "client_turn_id"], name="turn_once_per_client_id"),
        ]

    def __str__(self) -> str:
        return f"turn {self.id}"


class Message(models.Model):
    """One turn's user or assistant text. An assistant message exists from the moment its run is terminal.

    `token_count` counts the content alone, without the chat template, as far as later prompts have it. `hidden` marks
    an answer that a retry is about to replace. `token_ids` (little-endian uint32) are those that an engine made the
    content of, and `token_model` the model whose prompts they may go into again; a user's message has none. An answer
    that `opens_reasoning` begins amid its model's reasoning, which its prompt opened.
    """

    class Role(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"

    class State(models.TextChoices):
        COMPLETE = "complete"
        STOPPED = "stopped"
        INTERRUPTED = "interrupted"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="messages")
    turn = models.ForeignKey(Turn, on_delete=models.CASCADE, related_name="messages")
    seq = models.PositiveIntegerField()
    role = models.CharField(max_length=16, choices=Role)
    content = models.TextField(blank=True)
    state = models.CharField(max_length=16, choices=State, default=State.COMPLETE)
    code = models.CharField(max_length=40, blank=True, default="", help_text="Why an answer is not complete.")
    hidden = models.BooleanField(default=False)
    degraded = models.BooleanField(
        default=False, db_default=False, help_text="A smaller model answered than was asked for."
    )
    token_count = models.PositiveIntegerField(default=0)
    token_ids = models.BinaryField(null=True, editable=False)
    token_model = models.CharField(max_length=300, blank=True, default="", db_default="", editable=False)
    opens_reasoning = models.BooleanField(default=False, db_default=False, editable=False)
    run_id = models.UUIDField(db_index=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["chat", "seq"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["chat", "seq"], name="message_seq_once"),
            models.UniqueConstraint(fields=["turn", "role"], name="message_one_per_role_of_turn"),
            models.CheckConstraint(condition=Q(seq__gte=1), name="message_seq_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.seq} of {self.chat_id}"


class Summary(models.Model):
    """What a model made of a chat's messages up to `last_seq`, in the words of `version`; the next one goes on from it.

    Of it were made: the version before it, and the messages from `first_seq` on. The newest version is the chat's.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="summaries")
    version = models.PositiveIntegerField()
    first_seq = models.PositiveIntegerField()
    last_seq = models.PositiveIntegerField()
    content = models.TextField()
    model = models.CharField(max_length=300)
    run_id = models.UUIDField(unique=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar[list[str]] = ["chat", "version"]
        verbose_name_plural = "summaries"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["chat", "version"], name="summary_version_once"),
            models.CheckConstraint(
                condition=Q(version__gte=1, first_seq__gte=1, last_seq__gte=F("first_seq")), name="summary_of_messages"
            ),
        ]

    def __str__(self) -> str:
        return f"summary {self.version} of {self.chat_id}"


class TurnVectors(models.Model):
    """What the turn that begins with message `seq` is about, for a chat's long memory.

    `vectors` has one vector for each of its messages that say something, its numbers as little-endian float16, one
    after the other. `model` is the revision of the model that made them. A turn gets them when it cannot change any
    more.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    # Its index is that of the constraint.
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="turn_vectors", db_index=False)
    seq = models.PositiveIntegerField()
    model = models.CharField(max_length=64)
    vectors = models.BinaryField()

    class Meta:
        ordering: ClassVar[list[str]] = ["chat", "seq"]
        verbose_name_plural = "turn vectors"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["chat", "seq"], name="turn_vectors_once"),
        ]

    def __str__(self) -> str:
        return f"vectors of turn {self.seq} of {self.chat_id}"


class Job(models.Model):
    """Something that is to be made of a chat in the background. The row goes when it is made, or given up.

    `run_id` is the run that is making it, null while it waits; vectors take none. `pool` is the slug of the pool that
    answers the chat. A summary in the making is to be `version`, of the messages from `first_seq` to `last_seq`, in at
    most `most_tokens`. One that has failed too often (`jobs.MOST_FAILURES`) rests until it is wanted again.
    """

    class Kind(models.TextChoices):
        SUMMARY = "summary"
        TITLE = "title"
        VECTORS = "vectors"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="jobs")
    kind = models.CharField(max_length=16, choices=Kind)
    pool = models.SlugField()
    run_id = models.UUIDField(null=True, unique=True)
    version = models.PositiveIntegerField(default=0)
    first_seq = models.PositiveIntegerField(default=0)
    last_seq = models.PositiveIntegerField(default=0)
    most_tokens = models.PositiveIntegerField(default=0, db_default=0)
    opens_reasoning = models.BooleanField(default=False, help_text="Its prompt ends amid the model's reasoning.")
    failures = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(help_text="Not to be begun before this.")
    wanted_at = models.DateTimeField(help_text="When it was last wanted.")

    class Meta:
        ordering: ClassVar[list[str]] = ["due_at", "id"]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["chat", "kind"], name="job_once_per_chat"),
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["run_id", "due_at"], name="job_due")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.chat_id}"


class SiteBanner(models.Model):
    """What every page says, and whether messages are refused for maintenance. There is at most one row."""

    class Severity(models.TextChoices):
        INFO = "info"
        WARNING = "warning"

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    text = models.CharField(
        max_length=500,
        blank=True,
        help_text="Plain text, shown on every page. Empty: no banner, and stock words during maintenance.",
    )
    severity = models.CharField(max_length=16, choices=Severity, default=Severity.INFO)
    maintenance = models.BooleanField(
        default=False, help_text="Refuse new messages, with the text above. Reading goes on, and so do running answers."
    )
    until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When the maintenance is expected to be over (UTC): shown, and told to clients. It does not end it.",
    )

    class Meta:
        verbose_name = verbose_name_plural = "site banner and maintenance"
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=Q(id=1), name="site_banner_one"),
        ]

    def __str__(self) -> str:
        return "site banner and maintenance"
