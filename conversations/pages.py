"""The chat pages, rendered by the server; what happens on them afterwards goes through the API."""

from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from conversations import pools, selectors
from conversations.errors import ChatNotFound
from inference import api as inference
from inference.errors import RunNotFound

MESSAGES_SHOWN = 50
CHATS_SHOWN = 50


@never_cache
@require_safe
@login_required
def new_chat(request: HttpRequest) -> HttpResponse:
    """An empty chat; it gets stored, and an address, with its first message."""
    return render(request, "conversations/chat.html", _frame(request) | {"chat": None, "rows": []})


@never_cache
@require_safe
@login_required
def chat(request: HttpRequest, chat_id: UUID) -> HttpResponse:
    """A chat with its latest messages and, while one is being given, where to follow the answer."""
    try:
        found = selectors.chat_for(owner_id=_owner_id(request), chat_id=chat_id)
    except ChatNotFound as error:
        raise Http404 from error
    # In this order: an answer that ends between the two reads is then found by both, and the page joins them
    # by the run's id. The other order would lose it.
    active_run = selectors.active_run(chat=found)
    newest_first = selectors.latest_messages(chat=found, limit=MESSAGES_SHOWN + 1)
    shown = list(reversed(newest_first[:MESSAGES_SHOWN]))
    context = _frame(request) | {
        "chat": found,
        "active_run": active_run,
        "is_stopping": active_run is not None and _is_stopping(owner_id=_owner_id(request), run_id=active_run.id),
        "rows": [{"message": message, "text": exact_html(text=message.content)} for message in shown],
        "has_earlier": len(newest_first) > MESSAGES_SHOWN,
    }
    return render(request, "conversations/chat.html", context)


def _is_stopping(*, owner_id: UUID, run_id: UUID) -> bool:
    try:
        return inference.run_for(owner_id=owner_id, run_id=run_id).cancel_requested_at is not None
    except RunNotFound:
        # Erased with its chat a moment ago.
        return False


def exact_html(*, text: str) -> SafeString:
    """`text` as HTML that a browser reads back unchanged.

    Escaping alone is not enough: an HTML parser turns a carriage return into a line feed, but keeps a
    character reference to one.
    """
    return mark_safe(escape(text).replace("\r", "&#13;"))  # noqa: S308 - escaped one call earlier


def _owner_id(request: HttpRequest) -> UUID:
    owner_id: UUID | None = request.user.pk
    assert owner_id is not None, "login_required lets nobody else through"
    return owner_id


def _frame(request: HttpRequest) -> dict[str, object]:
    """What every chat page shows around the conversation."""
    newest_first = selectors.recent_chats(owner_id=_owner_id(request), limit=CHATS_SHOWN + 1)
    return {
        "chats": newest_first[:CHATS_SHOWN],
        "has_more_chats": len(newest_first) > CHATS_SHOWN,
        "pools": pools.offered(owner_id=_owner_id(request), now=timezone.now()),
        "csrf_cookie": settings.CSRF_COOKIE_NAME,
    }
