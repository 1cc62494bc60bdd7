"""Shapes of requests and responses."""

from typing import Any

from django.core.validators import RegexValidator
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from conversations import limits, selectors
from conversations.models import Chat, Message, SiteBanner
from inference.contracts import RunInfo


class ActiveRunSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    events_url = serializers.CharField()


class ChatSerializer(serializers.ModelSerializer[Chat]):
    """A chat. Takes `active_runs` (chat id → ActiveRun) in its context, so that a list asks once for all."""

    active_run = serializers.SerializerMethodField()

    class Meta:
        model = Chat
        fields = ("id", "title", "pool", "created_at", "last_active_at", "active_run")

    @extend_schema_field(ActiveRunSerializer(allow_null=True))
    def get_active_run(self, chat: Chat) -> dict[str, str] | None:
        found: selectors.ActiveRun | None = self.context["active_runs"].get(chat.id)
        return None if found is None else {"id": str(found.id), "events_url": found.events_url}


class _PageSerializer(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class ChatPageSerializer(_PageSerializer):
    results = ChatSerializer(many=True)


class MessageSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    chat_id = serializers.UUIDField()
    seq = serializers.IntegerField()
    role = serializers.ChoiceField(choices=Message.Role.choices)
    content = serializers.CharField()
    state = serializers.ChoiceField(choices=Message.State.choices)
    code = serializers.CharField(help_text="Why an answer is not complete; empty for one that is, and for questions.")
    degraded = serializers.BooleanField(help_text="A smaller model answered than was asked for.")
    run_id = serializers.UUIDField()
    created_at = serializers.DateTimeField()


class MessagePageSerializer(_PageSerializer):
    results = MessageSerializer(many=True)


class UsageSerializer(serializers.Serializer[Any]):
    prompt = serializers.IntegerField()
    cached = serializers.IntegerField()
    output = serializers.IntegerField()


class TimingsSerializer(serializers.Serializer[Any]):
    queue_ms = serializers.IntegerField(allow_null=True)
    ttft_ms = serializers.IntegerField(allow_null=True)
    total_ms = serializers.IntegerField(allow_null=True)
    release_ms = serializers.IntegerField(allow_null=True)


class ContextSerializer(serializers.Serializer[Any]):
    summary_version = serializers.IntegerField()
    first_seq = serializers.IntegerField()
    last_seq = serializers.IntegerField()
    trimmed = serializers.BooleanField()
    prompt_tokens = serializers.IntegerField(default=0)
    system_tokens = serializers.IntegerField(default=0, help_text="Of the system prompt.")
    summary_tokens = serializers.IntegerField(
        default=0, help_text="Of the summary; the rest of the prompt is verbatim."
    )
    max_output_tokens = serializers.IntegerField(default=0)
    recalled = serializers.ListField(
        child=serializers.IntegerField(), default=list, help_text="Older messages that were quoted (seq)."
    )
    recalled_tokens = serializers.IntegerField(default=0, help_text="What the quotes took of the prompt.")


class NoticeSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class RunSerializer(serializers.Serializer[RunInfo]):
    id = serializers.UUIDField()
    chat_id = serializers.UUIDField()
    status = serializers.CharField()
    pool = serializers.CharField()
    model = serializers.CharField()
    epoch = serializers.IntegerField()
    degraded = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    cancel_requested_at = serializers.DateTimeField(allow_null=True)
    usage = UsageSerializer()
    charged = serializers.IntegerField(allow_null=True, help_text="Tokens of all attempts; null until it is over.")
    waste = serializers.IntegerField(allow_null=True, help_text="Computed in vain, paid by nobody; null until then.")
    message_id = serializers.UUIDField(allow_null=True)
    timings = TimingsSerializer()
    context = ContextSerializer()  # type: ignore[assignment]  # the field's name is the contract's
    notices = NoticeSerializer(many=True, source="context.notices", default=())
    finish_reason = serializers.CharField()
    error_code = serializers.CharField()


class RetriedSerializer(RunSerializer):
    """A run that is answered anew, and where to follow it."""

    events_url = serializers.CharField()


class BegunSerializer(serializers.Serializer[Any]):
    run = RunSerializer()
    message = MessageSerializer()
    events_url = serializers.CharField()


class PoolSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    model = serializers.CharField()
    engine = serializers.CharField()
    is_default = serializers.BooleanField()
    context_window = serializers.IntegerField()
    max_output_tokens = serializers.IntegerField()
    available = serializers.BooleanField()


class PoolPageSerializer(_PageSerializer):
    results = PoolSerializer(many=True)


class BannerSerializer(serializers.Serializer[Any]):
    text = serializers.CharField()
    severity = serializers.ChoiceField(choices=SiteBanner.Severity.choices)
    until = serializers.DateTimeField(allow_null=True)


class StatusSerializer(serializers.Serializer[Any]):
    maintenance = serializers.BooleanField()
    banner = BannerSerializer(allow_null=True)


class StrictCharField(serializers.CharField):
    """Takes strings alone, as they are; what they may hold is checked where the rule is known, and only told here."""

    def __init__(self, *, pattern: str, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, validators=[RegexValidator(pattern)], **kwargs)

    def run_validation(self, data: Any = serializers.empty) -> Any:
        """As any field does: the class between would refuse blanks, and the schema would say that it takes them."""
        return serializers.Field.run_validation(self, data)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data

    def run_validators(self, value: Any) -> None:
        """The validators are for the schema: they would refuse with words of their own."""


class StrictIntegerField(serializers.IntegerField):
    """Takes JSON integers alone."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


def _title(**more: Any) -> StrictCharField:
    most = limits.MAX_TITLE_CHARACTERS
    return StrictCharField(required=False, max_length=most, pattern=limits.TEXT_PATTERN, **more)


def _pool(**more: Any) -> StrictCharField:
    return StrictCharField(required=False, pattern=limits.POOL_PATTERN, help_text="A `slug` from the pools.", **more)


class NewChatSerializer(serializers.Serializer[Any]):
    title = _title(default="")
    pool = _pool(allow_null=True, default=None)


class ChatChangeSerializer(serializers.Serializer[Any]):
    title = _title()
    pool = _pool()


class NewMessageSerializer(serializers.Serializer[Any]):
    content = StrictCharField(
        max_length=limits.MAX_CONTENT_CHARACTERS,
        pattern=limits.NOT_BLANK_PATTERN,
        help_text="Must leave room for an answer in the model's window.",
    )
    client_turn_id = StrictCharField(max_length=limits.MAX_TURN_ID_CHARACTERS, pattern=limits.NOT_BLANK_PATTERN)
    pool = _pool(allow_null=True, default=None)
    max_output_tokens = StrictIntegerField(
        required=False, allow_null=True, default=None, min_value=1, help_text="At most the pool's maximum."
    )


class EventSerializer(serializers.Serializer[Any]):
    """One server-sent event; what `data` holds goes by its type (docs/api.md)."""

    id = serializers.RegexField(r"^[0-9]+-[0-9]+$", required=False, help_text="`<epoch>-<seq>`; `run` has none.")
    event = serializers.CharField()
    data = serializers.CharField(help_text="One line of JSON.")  # type: ignore[assignment]  # the format's name


class FollowSerializer(serializers.Serializer[Any]):
    """What the event-stream layer needs in order to follow a run."""

    run_id = serializers.UUIDField()
    after = serializers.CharField()
    status = serializers.CharField()
    epoch = serializers.IntegerField()
    is_terminal = serializers.BooleanField()
    message_id = serializers.UUIDField(allow_null=True)
