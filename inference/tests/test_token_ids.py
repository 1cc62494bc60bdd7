"""Token ids as bytes."""

import pytest

from inference import token_ids


@pytest.mark.parametrize("ids", [[], [0], [1, 2, 3], [2**32 - 1, 0, 65_536]])
def test_what_was_packed_comes_back(ids: list[int]) -> None:
    assert token_ids.unpack(token_ids.pack(ids)) == ids
    assert token_ids.unpack(memoryview(token_ids.pack(ids))) == ids
    assert token_ids.count(token_ids.pack(ids)) == len(ids)


def test_the_bytes_are_little_endian_on_every_machine() -> None:
    assert token_ids.pack([1, 256]) == b"\x01\0\0\0\0\x01\0\0"


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_what_is_no_token_id_is_refused(bad: int) -> None:
    with pytest.raises(OverflowError):
        token_ids.pack([bad])


def test_cut_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        token_ids.unpack(b"\x01\0\0")
