"""Shapes of requests and responses."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from conversations import selectors
from conversations.models import Chat, Message
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
    usage = UsageSerializer()
    message_id = serializers.UUIDField(allow_null=True)
    timings = TimingsSerializer()
    context = ContextSerializer()  # type: ignore[assignment]  # the field's name is the contract's
    notices = NoticeSerializer(many=True, source="context.notices", default=())
    finish_reason = serializers.CharField()
    error_code = serializers.CharField()


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


class StrictCharField(serializers.CharField):
    """Takes strings alone, as they are; what they may hold is checked where the rule is known."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, allow_blank=True, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data

    def run_validators(self, value: Any) -> None:
        """The stock validators would refuse NUL with words of their own."""


class StrictIntegerField(serializers.IntegerField):
    """Takes JSON integers alone."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class NewChatSerializer(serializers.Serializer[Any]):
    title = StrictCharField(required=False, default="")
    pool = StrictCharField(required=False, allow_null=True, default=None)


class ChatChangeSerializer(serializers.Serializer[Any]):
    title = StrictCharField(required=False)
    pool = StrictCharField(required=False)


class NewMessageSerializer(serializers.Serializer[Any]):
    content = StrictCharField()
    client_turn_id = StrictCharField()
    pool = StrictCharField(required=False, allow_null=True, default=None)
    max_output_tokens = StrictIntegerField(required=False, allow_null=True, default=None)


class FollowSerializer(serializers.Serializer[Any]):
    """What the event-stream layer needs in order to follow a run."""

    run_id = serializers.UUIDField()
    after = serializers.CharField()
    status = serializers.CharField()
    epoch = serializers.IntegerField()
    is_terminal = serializers.BooleanField()
    message_id = serializers.UUIDField(allow_null=True)
