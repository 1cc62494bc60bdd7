"""The last prompt of each active chat, kept in Redis for the chat's next turn, which goes on from it.

A hint, and no more than that: it is used only where it names the message, the summary and the pool's settings that the
next prompt is to go on from. Whoever finds none assembles the prompt from the database, which gives the same.
"""

import base64
import binascii
import hashlib
import json
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any
from uuid import UUID

import structlog
from django.core.cache import cache

from conversations.context import Prompt
from inference import api as inference
from inference.contracts import ChatTokenizer, PoolInfo, PromptBase

log = structlog.get_logger(__name__)

# Of a chat that goes on later than this, the engine's own cache has most likely lost the beginning as well.
KEPT_S = 3600
_FACTS = (
    "first_seq",
    "last_seq",
    "trimmed",
    "full_above",
    "roomy",
    "summary_version",
    "system_tokens",
    "summary_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """A prompt that was sent, stored as that of `run_id`, at `depth`. It was made when `newest_version` was the chat's
    newest summary, by the settings that `pool_version` stands for; its turn made `revision` the chat's.
    """

    prompt: Prompt
    run_id: UUID
    depth: int
    newest_version: int
    pool_version: str
    revision: int

    @property
    def as_base(self) -> PromptBase:
        return PromptBase(run_id=self.run_id, shared=len(self.prompt.ids), depth=self.depth)


def pool_version(pool: PoolInfo, tokenizer: ChatTokenizer) -> str:
    """A digest of all that a pool's prompts depend on beside the chat."""
    settings = asdict(pool) | {"overflow": None, "id": None, "name": None, "is_default": None, "queue_wait_s": None}
    made_of = [sorted((name, str(value)) for name, value in settings.items())]
    made_of += [[("template", tokenizer.template_revision), ("tokenizer", tokenizer.tokenizer_revision)]]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def recall(*, chat_id: UUID, pool_version: str, newest_version: int, revision: int) -> Remembered | None:
    """The chat's last prompt, where nothing but its answer came since: the chat's `revision` is one further.

    Two further, and the answer is that of a retry whose own prompt was not remembered.
    """
    found: Any = cache.get(_key(chat_id))
    if not isinstance(found, dict):
        return None
    try:
        remembered = _read(found)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
        # Written by another release.
        log.warning("context_not_read", chat_id=str(chat_id))
        return None
    is_last = remembered.revision + 1 == revision
    is_same = remembered.pool_version == pool_version and remembered.newest_version == newest_version
    return remembered if is_last and is_same else None


def remember(
    *, chat_id: UUID, run_id: UUID, prompt: Prompt, newest_version: int, pool_version: str, revision: int
) -> None:
    """Keep a prompt that was accepted, in place of the chat's last one; not of a chat that was deleted meanwhile."""
    written = {name: getattr(prompt, name) for name in _FACTS} | {
        "run_id": str(run_id),
        "depth": inference.prompt_depth(prompt.base),
        "newest_version": newest_version,
        "pool_version": pool_version,
        "revision": revision,
        "ids": base64.b85encode(zlib.compress(inference.pack_ids(prompt.ids), level=1)).decode(),
    }
    cache.set(_key(chat_id), written, timeout=KEPT_S)
    # Only now: a deletion either finds the prompt, or is found here.
    if cache.get(_mark(chat_id)):
        drop(chat_id=chat_id)


def drop(*, chat_id: UUID) -> None:
    """Remember no prompt of the chat until the next one."""
    cache.delete(_key(chat_id))


def forget(*, chat_id: UUID) -> None:
    """Nothing of a deleted chat is kept, and nothing is remembered any more: a send may end later than the deletion."""
    cache.set(_mark(chat_id), True, timeout=KEPT_S)
    drop(chat_id=chat_id)


def _read(found: dict[str, Any]) -> Remembered:
    facts = {name: found[name] for name in _FACTS}
    wrong = [one.name for one in fields(Prompt) if one.name in facts and type(facts[one.name]) not in (int, bool)]
    if wrong:
        raise TypeError(wrong[0])
    ids = inference.unpack_ids(zlib.decompress(base64.b85decode(found["ids"])))
    return Remembered(
        # How long its answer might be, the next one's own limits decide.
        prompt=Prompt(ids=ids, max_output_tokens=0, **facts),
        run_id=UUID(found["run_id"]),
        depth=int(found["depth"]),
        newest_version=int(found["newest_version"]),
        pool_version=str(found["pool_version"]),
        revision=int(found["revision"]),
    )


def _key(chat_id: UUID) -> str:
    return f"context:{chat_id}"


def _mark(chat_id: UUID) -> str:
    return f"context-gone:{chat_id}"
