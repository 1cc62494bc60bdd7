"""The scripts as a library of functions, and what it keeps between two calls."""

import re
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import redis

from inference.cell import link, scripts
from inference.cell.keys import Keys
from inference.cell.link import Cell
from inference.cell.scripts import LIBRARY, Library
from inference.tests.support import ask, look
from inference.tests.yard import Yard
from tests.services import Valkey

LUA = Path(scripts.__file__).parent / "lua"
(VERSION,) = {function.rpartition("_")[2] for function in LIBRARY.functions.values()}


@pytest.fixture
def yard(cell: Cell) -> Yard:
    return Yard(cell)


def test_each_file_that_is_no_helper_is_a_function() -> None:
    files = {path.stem for path in LUA.glob("*.lua")}
    assert set(LIBRARY.functions) == {name for name in files if not name.startswith("_")}


def test_libraries_of_two_versions_stand_side_by_side(valkey: Valkey) -> None:
    """As while a site is brought to its next version."""

    def load(client: redis.Redis) -> list[bool]:
        client.function_load(LIBRARY.text, replace=True)
        client.function_load(LIBRARY.text.replace(VERSION, "0" * 16), replace=True)
        keys = ["a:pool", "a:queue", "a:places"]
        names = (LIBRARY.functions["look"], f"look_{'0' * 16}")
        return ['"waiting":0' in client.fcall(name, 3, *keys, 0, 0) for name in names]

    assert ask(valkey, load) == [True, True]


def test_the_scripts_name_keys_as_the_module_of_keys_does() -> None:
    """Each name in _names.lua, made here from its parts there."""
    keys, user, run = Keys("0123"), uuid4(), uuid4()
    parts = re.findall(r"(\w+) = prefix \.\. '([a-z:-]+)'( \.\. pool)?", (LUA / "_names.lua").read_text())
    names = {name: f"{keys.prefix}{middle}{'p' if ends else ''}" for name, middle, ends in parts}
    of_one: dict[str, Callable[[UUID], str]] = {
        "accounts": keys.account,
        "reservations": keys.reservations,
        "homes": keys.home,
    }
    assert names == {
        "queue": keys.queue("p"),
        "leases": keys.leases("p"),
        "owners": keys.lease_owners("p"),
        "places": keys.places("p"),
        "workers": keys.workers("p"),
        "room": keys.room("p"),
        "facts": keys.worker_facts("p"),
        "open": keys.open_streams(),
        **{name: make(user).removesuffix(str(user)) for name, make in of_one.items()},
        **dict(zip(("streams", "states", "channels"), keys.streams(), strict=True)),
    }
    assert keys.stream(run) == f"{names['streams']}{run}"
    assert keys.pool("p") == f"{keys.prefix}pool:p"


def test_what_a_finished_run_taught_is_known_before_it_is_saved(yard: Yard) -> None:
    """Also to those who only look; whoever comes in between without a change leaves it."""
    yard.put()
    run = yard.take()
    before = yard.state.hold_ms
    assert yard.finish(run, held_ms=9000) == 1
    learnt = yard.state.hold_ms
    assert learnt > before
    assert yard.ask() is None
    assert yard.expire(run) == 0
    yard.put_again(yard.known[run])
    assert yard.state.hold_ms == learnt


def test_what_waits_is_found_after_the_functions_were_loaded_anew(yard: Yard) -> None:
    """They have forgotten what they kept: that is nothing but what the last runs taught."""
    first, second = yard.line_up(uuid4(), 1)[0], yard.line_up(uuid4(), 1)[0]
    assert yard.take() == first
    yard.finish(first, held_ms=9000)

    def anew(client: redis.Redis) -> None:
        client.function_flush()
        client.function_load(LIBRARY.text)

    look(yard.cell, anew)
    assert yard.state.waiting == 1
    assert yard.take() == second
    assert yard.finish(second) == 1


def test_two_releases_in_turns_lose_no_run(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "f" * 16
    functions = {name: function.replace(VERSION, other) for name, function in LIBRARY.functions.items()}
    libraries = [LIBRARY, Library(text=LIBRARY.text.replace(VERSION, other), functions=functions)]
    look(yard.cell, lambda client: client.function_load(libraries[1].text, replace=True))
    taken = set()
    for turn in range(24):
        monkeypatch.setattr(link, "LIBRARY", libraries[turn % 2])
        yard.fill("free", 2)
        monkeypatch.setattr(link, "LIBRARY", libraries[turn // 2 % 2])
        taken.add(yard.serve().run)
    assert len(taken) == 24
    assert yard.state.waiting == len(yard.waiting) == 24
    for _ in range(24):
        taken.add(yard.serve().run)
    assert (len(taken), yard.ask(), yard.state.waiting) == (48, None, 0)
