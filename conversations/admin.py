"""Admin screens for chats, what is in them and made of them, and the site's banner.

What people wrote, titles included, is shown to holders of the permission `view_content` alone, and every showing is
recorded. For everybody else it is not even loaded, and no list can be searched or sorted by it.
"""

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from conversations import banner, chats, operators
from conversations.errors import ChatNotFound, InvalidRequest
from conversations.models import Chat, Job, Message, SiteBanner, Summary, Turn
from inference import api as inference


def may_read(request: HttpRequest) -> bool:
    """Whether this member of staff may see what people wrote."""
    return request.user.has_perm("conversations.view_content")


def _is_list(request: HttpRequest) -> bool:
    """Whether this is about the list of chats: their choices for other screens' forms come from the same search."""
    return request.resolver_match is not None and request.resolver_match.url_name == "conversations_chat_changelist"


class _ReadOnly:
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class _Kept(_ReadOnly):
    """Goes with its chat, never alone."""

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    @admin.display(description="chat")
    def thread(self, part: Turn | Message | Summary | Job) -> str:
        """A link by id: to write the chat's name would load it."""
        url = reverse("admin:conversations_chat_change", args=(part.chat_id,))
        return format_html('<a href="{}">{}</a>', url, part.chat_id)


class PoolFilter(admin.SimpleListFilter):
    """By the pools that there are: to find those that chats name would read every chat."""

    title = parameter_name = "pool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in inference.pool_slugs()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Chat]) -> QuerySet[Chat]:
        return queryset if self.value() is None else queryset.filter(pool=self.value())


class TitleFilter(admin.SimpleListFilter):
    """Titles stay out of the list until they are asked for: each showing goes to the audit trail."""

    title = parameter_name = "titles"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("shown", "Shown (recorded)")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Chat]) -> QuerySet[Chat]:
        return queryset


@admin.register(Chat)
class ChatAdmin(_ReadOnly, admin.ModelAdmin[Chat]):
    """Deleting here does what its owner's deleting does: an answer in progress is stopped first."""

    search_fields = ("=id", "=owner__id", "=owner__email")
    search_help_text = (
        "An owner's e-mail address, or the id of a chat or an owner. Who may read content also finds words of titles: "
        f"of that owner's chats, or of the {operators.TITLES_SEARCHED:,} newest; titles that are shown are recorded."
    )
    list_select_related = ("owner",)
    ordering = ("-id",)
    sortable_by = ("opened",)
    # The common base has it, which this app knows nothing of.
    log_views: Callable[[HttpRequest, Iterable[Chat]], Any]

    # Ids are made in the order of time, and have an index.
    @admin.display(description="created", ordering="id")
    def opened(self, chat: Chat) -> Any:
        return chat.created_at

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        columns = ("id", "owner", "pool", "opened", "last_active_at", "deleted_at")
        return ("id", "title", *columns[1:]) if self._shows_titles(request) else columns

    def get_list_filter(self, request: HttpRequest) -> tuple[Any, ...]:
        return (PoolFilter, TitleFilter) if may_read(request) else (PoolFilter,)

    def get_fields(self, request: HttpRequest, obj: Chat | None = None) -> tuple[str, ...]:
        fields = ("id", "owner", "pool", "last_seq", "created_at", "last_active_at", "deleted_at")
        # Whose the title is tells nothing of what it says.
        made = ("title_by", "summary_version")
        return ("id", "title", *made, *fields[1:]) if may_read(request) else ("id", *made, *fields[1:])

    def get_queryset(self, request: HttpRequest) -> QuerySet[Chat]:
        found = super().get_queryset(request)
        return found if may_read(request) else found.defer("title")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Chat], search_term: str
    ) -> tuple[QuerySet[Chat], bool]:
        """Words that are neither address nor id are looked for in titles, by those who may read them, where each hit
        is recorded: in the list. What an action does there is to the rows that were ticked, whatever found them.
        """
        if not may_read(request) or not _is_list(request):
            return super().get_search_results(request, queryset, search_term)
        search = operators.parse(search_term)
        known, _ = super().get_search_results(request, queryset, search.known)
        if request.method != "GET":
            return known, False
        return operators.with_title(known, words=search.words, is_narrowed=bool(search.known)), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        response: Any = super().changelist_view(request, extra_context)
        listed = getattr(response, "context_data", None) or {}
        if "cl" in listed and self._shows_titles(request):
            self.log_views(request, [chat for chat in listed["cl"].result_list if chat.title])
        return response

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Chat | None = None,
    ) -> HttpResponse:
        """Recorded here, of the object that is shown: to look it up by its address once more could find another."""
        if obj is not None and may_read(request) and obj.title:
            self.log_views(request, [obj])
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _shows_titles(self, request: HttpRequest) -> bool:
        asked = request.GET.get("titles") == "shown" or bool(operators.parse(request.GET.get("q", "")).words)
        return asked and may_read(request)

    def delete_model(self, request: HttpRequest, obj: Chat) -> None:
        """Once the admin's transaction is over: stopping an answer waits for Redis, and for whoever settles it."""
        transaction.on_commit(partial(self._delete, obj))

    @staticmethod
    def _delete(chat: Chat) -> None:
        with contextlib.suppress(ChatNotFound):
            chats.delete(owner_id=chat.owner_id, chat_id=chat.id, now=timezone.now())

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
    """Without the fingerprint, a digest of what was asked: with it a guess could be checked."""

    list_display = ("id", "thread", "client_turn_id", "run_id", "begun")
    ordering = ("-id",)
    sortable_by = ("begun",)
    search_fields = ("=id", "=run_id", "=chat__id", "=chat__owner__email")
    search_help_text = "An owner's e-mail address, or the id of a turn, a run or a chat."
    fields = ("id", "thread", "client_turn_id", "run_id", "created_at")

    @admin.display(description="created", ordering="id")
    def begun(self, turn: Turn) -> Any:
        return turn.created_at

    def get_queryset(self, request: HttpRequest) -> QuerySet[Turn]:
        return super().get_queryset(request).defer("fingerprint")


class _Said(_Kept, admin.ModelAdmin[Any]):
    """What its page says is recorded each time that somebody may read it there."""

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Message | Summary | None = None,
    ) -> HttpResponse:
        """Recorded here, of the object that is shown: to look it up by its address once more could find another."""
        if obj is not None and may_read(request):
            self.log_change(request, obj, "view")
        return super().render_change_form(request, context, add, change, form_url, obj)


@admin.register(Message)
class MessageAdmin(_Said):
    """Lists show where a message stands, its page also what it says, to those who may read it."""

    list_display = ("id", "thread", "seq", "role", "state", "token_count", "written")
    ordering = ("-id",)
    sortable_by = ("written",)
    search_fields = ("=id", "=run_id", "=chat__id", "=chat__owner__email")
    search_help_text = "An owner's e-mail address, or the id of a message, a run or a chat."

    @admin.display(description="created", ordering="id")
    def written(self, message: Message) -> Any:
        return message.created_at

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        return super().get_queryset(request).defer("content", "token_ids")

    def get_fields(self, request: HttpRequest, obj: Message | None = None) -> tuple[str, ...]:
        fields = (
            "id",
            "thread",
            "turn",
            "seq",
            "role",
            "state",
            "hidden",
            "degraded",
            "token_count",
            "run_id",
            "created_at",
        )
        return (*fields, "content") if may_read(request) else fields


@admin.register(Summary)
class SummaryAdmin(_Said):
    """As with messages: lists show of what a summary was made, its page also what it says, to those who may read it."""

    list_display = ("id", "thread", "version", "first_seq", "last_seq", "model", "made")
    ordering = ("-id",)
    sortable_by = ("made",)
    search_fields = ("=id", "=run_id", "=chat__id", "=chat__owner__email")
    search_help_text = "An owner's e-mail address, or the id of a summary, a run or a chat."

    @admin.display(description="created", ordering="id")
    def made(self, summary: Summary) -> Any:
        return summary.created_at

    def get_queryset(self, request: HttpRequest) -> QuerySet[Summary]:
        return super().get_queryset(request).defer("content")

    def get_fields(self, request: HttpRequest, obj: Summary | None = None) -> tuple[str, ...]:
        fields = ("id", "thread", "version", "first_seq", "last_seq", "model", "run_id", "created_at")
        return (*fields, "content") if may_read(request) else fields


@admin.register(Job)
class JobAdmin(_Kept, admin.ModelAdmin[Job]):
    """What is wanted or under way now: a job's row goes with its end. Without a run it waits."""

    list_display = ("id", "kind", "thread", "pool", "run_id", "failures", "due_at", "wanted_at")
    ordering = ("-id",)
    search_fields = ("=id", "=run_id", "=chat__id", "=chat__owner__email")
    search_help_text = "An owner's e-mail address, or the id of a job, a run or a chat."
    fields = (
        "id",
        "kind",
        "thread",
        "pool",
        "run_id",
        "version",
        "first_seq",
        "last_seq",
        "failures",
        "due_at",
        "wanted_at",
    )


class SiteBannerForm(forms.ModelForm[SiteBanner]):
    class Meta:
        model = SiteBanner
        fields = ("text", "severity", "maintenance", "until")
        widgets = {"text": forms.Textarea(attrs={"rows": 4})}  # noqa: RUF012 - as Django's forms are written

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or {}
        if not self.errors:
            asked = {name: values[name] for name in ("text", "maintenance", "until")}
            try:
                banner.check(now=timezone.now(), **asked)
            except InvalidRequest as error:
                raise ValidationError({error.field: error.reason}) from error
        return values


@admin.register(SiteBanner)
class SiteBannerAdmin(admin.ModelAdmin[SiteBanner]):
    """One row, made when it is first looked for."""

    form = SiteBannerForm

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        row, _ = SiteBanner.objects.get_or_create(pk=1)
        return redirect("admin:conversations_sitebanner_change", row.pk)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: SiteBanner | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: SiteBanner, form: SiteBannerForm, change: bool) -> None:
        banner.change(
            text=obj.text, severity=obj.severity, maintenance=obj.maintenance, until=obj.until, now=timezone.now()
        )
