"""The encoder of this process: opened when it is first wanted, and shared by its threads."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from django.conf import settings

if TYPE_CHECKING:
    from conversations.encoder import Encoder, Floats

log = structlog.get_logger(__name__)

# Messages whose vectors are made at once. One more goes on without: to wait, or to share a core, would delay them all.
_MOST_AT_ONCE = 2

_known: dict[Path, "Encoder | None"] = {}
_opening = threading.Lock()
_room = threading.BoundedSemaphore(_MOST_AT_ONCE)


def wait_for_encoder() -> "Encoder | None":
    """The encoder, opened where it is not yet; None where long memory is off or the model cannot be used."""
    folder: Path | None = settings.MEMORY_MODEL
    if folder is None:
        return None
    with _opening:
        if folder not in _known:
            _known[folder] = _open(folder)
    return _known[folder]


def encoder_at_hand() -> "Encoder | None":
    """The encoder where it is open; where not, it is being opened for those who come later."""
    folder: Path | None = settings.MEMORY_MODEL
    if folder is None:
        return None
    if folder not in _known and not _opening.locked():
        threading.Thread(target=wait_for_encoder, name="open-encoder", daemon=True).start()
    return _known.get(folder)


def vector_of(text: str, *, encoder: "Encoder") -> "Floats | None":
    """The text's vector; None while others' are being made."""
    if not _room.acquire(blocking=False):
        return None
    try:
        return encoder.encode(text)
    finally:
        _room.release()


def _open(folder: Path) -> "Encoder | None":
    # Read when numpy is first loaded, which it is here. A second thread makes the longest messages faster by a third
    # on an idle machine, and all of them several times slower on a busy one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from conversations.encoder import Encoder, UnusableEncoder

    try:
        return Encoder(folder=folder)
    except UnusableEncoder as error:
        # Until the process is started again: chats go on without long memory.
        log.warning("encoder_unusable", error=str(error))
        return None
