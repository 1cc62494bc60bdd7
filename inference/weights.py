"""Which weights a pool's model has: a name for them that changes when they do. A process looks once."""

import hashlib
from functools import lru_cache
from pathlib import Path

from inference import tokenization

_PATTERNS = ("config.json", "*.safetensors", "*.gguf", "*.bin")
# Of each end of a file: a header with the names, types and places of all tensors, and the last of their values. To read
# gigabytes for each process that starts would cost minutes.
_EDGE = 1 << 20


@lru_cache(maxsize=16)
def revision_of(model: str, revision: str | None) -> str:
    """The commit of a model from a hub; for a folder a digest of its weight files' names, sizes, heads and tails.

    Empty where there are none: a machine without engine needs only the tokenizer's files.
    """
    try:
        folder = tokenization.folder_of(model, revision)
    except tokenization.TokenizerUnavailable:
        return ""
    if folder.parent.name == "snapshots":
        return folder.name
    files = sorted({file for pattern in _PATTERNS for file in folder.glob(pattern) if file.is_file()})
    if not any(file.suffix != ".json" for file in files):
        return ""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        digest.update(_edges(file))
    return digest.hexdigest()[:12]


def _edges(file: Path) -> bytes:
    with file.open("rb") as opened:
        head = opened.read(_EDGE)
        opened.seek(max(0, file.stat().st_size - _EDGE))
        return head + opened.read(_EDGE)
