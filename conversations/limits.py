"""What a message, a turn id, a title and a pool's name may be, checked before anything is stored or looked up."""

import re

from conversations.errors import InvalidRequest
from inference.errors import PoolNotFound

MAX_CONTENT_CHARACTERS = 400_000
MAX_TURN_ID_CHARACTERS = 128
MAX_TITLE_CHARACTERS = 200
MAX_BANNER_CHARACTERS = 500
# The same rules as the schema tells them, in the dialect of JSON Schema.
TEXT_PATTERN = r"^[^\u0000]*$"
NOT_BLANK_PATTERN = r"^[^\u0000]*[^\s\u0000\u001c-\u001f\u0085][^\u0000]*$"
POOL_PATTERN = r"^[-a-zA-Z0-9_]{1,50}$"
_POOL = re.compile(r"[-a-zA-Z0-9_]{1,50}", re.ASCII)


def check_text(text: str, *, field: str, most: int, blank_allowed: bool = False) -> None:
    """Raise InvalidRequest for text that is blank, too long, or not storable Unicode."""
    if not blank_allowed and (not text or text.isspace()):
        raise InvalidRequest(field=field, reason="must not be blank")
    if len(text) > most:
        raise InvalidRequest(field=field, reason=f"has {len(text):,} characters; at most {most:,} are allowed")
    if "\0" in text:
        raise InvalidRequest(field=field, reason="must not contain NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # A lone surrogate is no character: neither a database nor a tokenizer can encode it.
        raise InvalidRequest(field=field, reason="must be valid Unicode: it contains a lone surrogate") from error


def check_content(content: str) -> None:
    check_text(content, field="content", most=MAX_CONTENT_CHARACTERS)


def check_turn_id(client_turn_id: str) -> None:
    check_text(client_turn_id, field="client_turn_id", most=MAX_TURN_ID_CHARACTERS)


def check_title(title: str) -> None:
    check_text(title, field="title", most=MAX_TITLE_CHARACTERS, blank_allowed=True)


def check_pool(slug: str | None) -> None:
    """Raise PoolNotFound for what cannot be a pool's slug: Postgres refuses to look for a NUL."""
    if slug is not None and _POOL.fullmatch(slug) is None:
        raise PoolNotFound(slug=slug[:50].encode("ascii", "backslashreplace").decode())


def check_output_tokens(wanted: int | None, *, most: int) -> None:
    """Raise InvalidRequest for an output that the pool does not allow."""
    if wanted is not None and not 1 <= wanted <= most:
        raise InvalidRequest(field="max_output_tokens", reason=f"must be from 1 to {most:,}")
