"""Finding chats by their titles, for staff who may read them."""

from dataclasses import dataclass
from uuid import UUID

from django.db.models import QuerySet
from django.utils.text import smart_split, unescape_string_literal

from conversations.models import Chat

# No index answers `contains`: this many rows are read in some tens of ms, a million are not.
TITLES_SEARCHED = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search apart: ids and addresses, and words to look for in titles."""

    known: str
    words: tuple[str, ...]


def parse(text: str) -> Search:
    """Tell ids and addresses from words; what stands in quotation marks is one word."""
    bits = list(smart_split(text))
    known = [bit for bit in bits if "@" in bit or _is_id(bit)]
    return Search(known=" ".join(known), words=tuple(_unquoted(bit) for bit in bits if bit not in known))


def with_title(chats: QuerySet[Chat], *, words: tuple[str, ...], is_narrowed: bool) -> QuerySet[Chat]:
    """The chats whose titles hold every word; among all chats, of the newest only."""
    if not words:
        return chats
    if not is_narrowed:
        newest = Chat.objects.order_by("-id").values_list("id", flat=True)
        oldest_searched = newest[TITLES_SEARCHED : TITLES_SEARCHED + 1].first()
        if oldest_searched is not None:
            chats = chats.filter(id__gt=oldest_searched)
    for word in words:
        chats = chats.filter(title__icontains=word)
    return chats


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


def _unquoted(bit: str) -> str:
    return unescape_string_literal(bit) if bit[:1] in "\"'" and bit[:1] == bit[-1:] else bit
