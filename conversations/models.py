"""Chats, messages and turns."""

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7


class Chat(models.Model):
    """One thread of one owner. A chat with `deleted_at` is gone for everybody and awaits the purge of its content."""

    class Retention(models.TextChoices):
        KEEP = "keep"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="chats")
    title = models.CharField(max_length=200, blank=True)
    pool = models.SlugField(help_text="Slug of the model pool that answers by default.")
    retention = models.CharField(max_length=16, choices=Retention, default=Retention.KEEP)
    last_seq = models.PositiveIntegerField(default=0, help_text="Sequence number of the newest message.")
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar[list[str]] = ["-last_active_at", "-id"]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["owner", "-last_active_at", "-id"], name="chat_owner_recent"),
            models.Index(fields=["deleted_at"], condition=Q(deleted_at__isnull=False), name="chat_awaiting_purge"),
        ]

    def __str__(self) -> str:
        return self.title or f"chat {self.id}"


class Turn(models.Model):
    """A user message, as the client names it, and the run that answers it.

    `fingerprint` is a digest of what was asked (content, pool, max_output_tokens): a repeat must match it.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    chat = models.ForeignKey(Chat, on_delete=models.CASCADE, related_name="turns")
    client_turn_id = models.CharField(max_length=128)
    fingerprint = models.CharField(max_length=64)
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

    `token_count` counts the content alone, without the chat template. `hidden` marks an answer that a retry is
    about to replace.
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
    hidden = models.BooleanField(default=False)
    token_count = models.PositiveIntegerField(default=0)
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
