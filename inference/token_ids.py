"""Token ids as bytes for a database column: little-endian uint32, 4 bytes each."""

from array import array
from collections.abc import Sequence
from sys import byteorder


def pack(token_ids: Sequence[int]) -> bytes:
    """Raises OverflowError for an id that is negative or ≥ 2**32."""
    packed = array("I", token_ids)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(data: bytes | memoryview) -> list[int]:
    """Raises ValueError when the length is not a multiple of 4."""
    packed = array("I")
    packed.frombytes(bytes(data))
    if byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def count(data: bytes | memoryview) -> int:
    """How many ids are packed in `data`."""
    return len(data) // 4
