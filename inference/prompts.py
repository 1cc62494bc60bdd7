"""The exact prompts that runs were accepted with: stored by what is new in each, and rebuilt byte for byte.

A chat's next prompt goes on from the last one and its answer. Stored whole, the prompts of a chat would take room with
the square of its length.
"""

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from inference import token_ids
from inference.contracts import PromptBase
from inference.errors import PromptNotRebuilt
from inference.models import Prompt

# Of so many prompts one is at most made: after that many the next is stored whole.
MAX_DEPTH = 24


def store(*, run_id: UUID, ids: Sequence[int], base: PromptBase | None) -> None:
    """Store a new run's prompt; call it in the transaction of its acceptance."""
    Prompt.objects.create(run_id=run_id, **_parts(ids, base=base))


def replace(*, run_id: UUID, ids: Sequence[int], base: PromptBase | None) -> None:
    """Store the prompt of a run that is retried, in place of the one before. `base` is another run's."""
    Prompt.objects.update_or_create(run_id=run_id, defaults=_parts(ids, base=base))


def _parts(ids: Sequence[int], *, base: PromptBase | None) -> dict[str, Any]:
    kept = base if base is not None and base.depth < MAX_DEPTH else None
    shared = 0 if kept is None else kept.shared
    return {
        "base_id": None if kept is None else kept.run_id,
        "shared": shared,
        "depth": depth_after(base),
        "rest": zlib.compress(token_ids.pack(ids[shared:])),
        "digest": digest_of(ids),
    }


def depth_after(base: PromptBase | None) -> int:
    """The depth at which a prompt with that base is stored."""
    return 0 if base is None or base.depth >= MAX_DEPTH else base.depth + 1


def digest_of(ids: Sequence[int]) -> str:
    """The SHA-256 of the packed ids, as hex digits."""
    return hashlib.sha256(token_ids.pack(ids)).hexdigest()


def stored_digest(*, run_id: UUID) -> str:
    """The digest that the run's prompt was stored with. Raises PromptNotRebuilt: not stored."""
    digest = Prompt.objects.filter(run_id=run_id).values_list("digest", flat=True).first()
    if digest is None:
        raise PromptNotRebuilt(run_id=run_id, reason=f"the prompt of {run_id} is not stored")
    return digest


def rebuild(*, run_id: UUID) -> list[int]:
    """The token ids that the run was accepted with. Raises PromptNotRebuilt: not stored, or not what was stored."""
    parts: list[tuple[int, list[int]]] = []
    sought: UUID | None = run_id
    digest = None
    while sought is not None:
        stored = Prompt.objects.filter(run_id=sought).first()
        if stored is None or len(parts) > MAX_DEPTH:
            raise PromptNotRebuilt(run_id=run_id, reason=f"the prompt of {sought} is not stored")
        digest = digest or stored.digest
        try:
            parts.append((stored.shared, token_ids.unpack(zlib.decompress(bytes(stored.rest)))))
        except (zlib.error, ValueError) as error:
            raise PromptNotRebuilt(run_id=run_id, reason=f"what is stored of {sought} cannot be read") from error
        sought = stored.base_id
    ids: list[int] = []
    for shared, rest in reversed(parts):
        ids = ids[:shared] + rest
    if digest_of(ids) != digest:
        raise PromptNotRebuilt(run_id=run_id, reason="what is stored has another digest")
    return ids
