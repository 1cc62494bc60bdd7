"""Admin screens for chats, turns and messages. Content stays out of lists."""

from django.contrib import admin
from django.http import HttpRequest

from conversations.models import Chat, Message, Turn


class _ReadOnly:
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Chat)
class ChatAdmin(_ReadOnly, admin.ModelAdmin[Chat]):
    list_display = ("title", "owner", "pool", "last_active_at", "deleted_at")
    list_filter = ("pool",)
    search_fields = ("=id", "title", "owner__email")
    list_select_related = ("owner",)


@admin.register(Turn)
class TurnAdmin(_ReadOnly, admin.ModelAdmin[Turn]):
    list_display = ("id", "chat", "client_turn_id", "run_id", "created_at")
    search_fields = ("=id", "=run_id", "=chat__id")
    list_select_related = ("chat",)


@admin.register(Message)
class MessageAdmin(_ReadOnly, admin.ModelAdmin[Message]):
    """What was written is its owner's: the screen shows where a message stands, not what it says."""

    list_display = ("id", "chat", "seq", "role", "state", "token_count", "created_at")
    list_filter = ("role", "state")
    search_fields = ("=id", "=run_id", "=chat__id")
    list_select_related = ("chat",)
    exclude = ("content",)
