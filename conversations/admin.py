"""Admin screens for chats, turns and messages. Content stays out of lists."""

import contextlib

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from conversations import chats
from conversations.errors import ChatNotFound
from conversations.models import Chat, Message, Turn


class _ReadOnly:
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class _Kept(_ReadOnly):
    """Goes with its chat, never alone."""

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Chat)
class ChatAdmin(_ReadOnly, admin.ModelAdmin[Chat]):
    """Deleting here does what its owner's deleting does: an answer in progress is stopped first."""

    list_display = ("title", "owner", "pool", "last_active_at", "deleted_at")
    list_filter = ("pool",)
    search_fields = ("=id", "title", "owner__email")
    list_select_related = ("owner",)

    def delete_model(self, request: HttpRequest, obj: Chat) -> None:
        with contextlib.suppress(ChatNotFound):
            chats.delete(owner_id=obj.owner_id, chat_id=obj.id, now=timezone.now())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Chat]) -> None:
        for chat in queryset:
            self.delete_model(request, chat)

    def get_deleted_objects(  # type: ignore[override]  # the stubs want a model's name where a model goes
        self, objs: QuerySet[Chat] | list[Chat], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """The chats alone: to list what is in them would show what was written, and ask who may delete it."""
        return [str(chat) for chat in objs], {"chats": len(objs)}, set(), []


@admin.register(Turn)
class TurnAdmin(_Kept, admin.ModelAdmin[Turn]):
    list_display = ("id", "chat", "client_turn_id", "run_id", "created_at")
    search_fields = ("=id", "=run_id", "=chat__id")
    list_select_related = ("chat",)


@admin.register(Message)
class MessageAdmin(_Kept, admin.ModelAdmin[Message]):
    """What was written is its owner's: the screen shows where a message stands, not what it says."""

    list_display = ("id", "chat", "seq", "role", "state", "token_count", "created_at")
    list_filter = ("role", "state")
    search_fields = ("=id", "=run_id", "=chat__id")
    list_select_related = ("chat",)
    exclude = ("content",)
