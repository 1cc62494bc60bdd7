"""The scripts as a library of functions."""

from pathlib import Path

import redis

from inference.cell import scripts
from inference.cell.scripts import LIBRARY
from inference.tests.support import ask
from tests.services import Valkey


def test_each_file_that_is_no_helper_is_a_function() -> None:
    files = {path.stem for path in (Path(scripts.__file__).parent / "lua").glob("*.lua")}
    assert set(LIBRARY.functions) == {name for name in files if not name.startswith("_")}


def test_libraries_of_two_versions_stand_side_by_side(valkey: Valkey) -> None:
    """As while a site is brought to its next version."""
    (version,) = {function.rpartition("_")[2] for function in LIBRARY.functions.values()}

    def load(client: redis.Redis) -> list[bool]:
        client.function_load(LIBRARY.text, replace=True)
        client.function_load(LIBRARY.text.replace(version, "0" * 16), replace=True)
        keys = ["a:pool", "a:queue", "a:places"]
        names = (LIBRARY.functions["look"], f"look_{'0' * 16}")
        return ['"waiting":0' in client.fcall(name, 3, *keys, 0) for name in names]

    assert ask(valkey, load) == [True, True]
