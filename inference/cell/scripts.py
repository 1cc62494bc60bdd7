"""The Lua scripts beside this module, as one library of functions for the server.

In a library what scripts share is made once, when it is loaded, and may keep something between two calls; a script of
its own makes it at each call. Both together took a third of the time. A library is named by its text: a process
never calls another version's functions. (The data are kept apart by `keys.LAYOUT`.)

A file is the body of a function of KEYS and ARGV. `-- include: _name` says which helpers it uses, `-- flags: …` what
the server is to know of it; what stands above the line `-- at each call:` is made once.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"
_INCLUDE, _FLAGS = "-- include: ", "-- flags: "
_CALL = "-- at each call:"


@dataclass(frozen=True, slots=True)
class Library:
    """The text to load, and each script's function in it."""

    text: str
    functions: dict[str, str]


def _read() -> Library:
    sources = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in sorted(_FOLDER.glob("*.lua"))}
    # The server knows a library by this; nothing depends on its strength.
    version = hashlib.sha1(_compose(sources, "").text.encode(), usedforsecurity=False).hexdigest()[:16]
    return _compose(sources, version)


def _compose(sources: dict[str, list[str]], version: str) -> Library:
    helpers: dict[str, None] = {}
    for name in sources:
        if name.startswith("_"):
            _with_includes(name, sources, helpers)
    functions = {name: f"{name}_{version}" for name in sources if name not in helpers}
    parts = [f"#!lua name=chatsite_{version}", *(line for name in helpers for line in sources[name])]
    for name, function in functions.items():
        lines = sources[name]
        begin = lines.index(_CALL) if _CALL in lines else 0
        parts += [
            "do",
            *lines[:begin],
            f"redis.register_function{{function_name = '{function}', flags = {{{_flags(lines)}}},",
            "callback = function(KEYS, ARGV)",
            *lines[begin:],
            "end}",
            "end",
        ]
    return Library(text="\n".join(parts), functions=functions)


def _with_includes(name: str, sources: dict[str, list[str]], ordered: dict[str, None]) -> None:
    """Put a helper into `ordered`, after those that it uses."""
    for line in sources[name]:
        if line.startswith(_INCLUDE):
            _with_includes(line.removeprefix(_INCLUDE).strip(), sources, ordered)
    ordered.setdefault(name)


def _flags(lines: list[str]) -> str:
    return ", ".join(f"'{line.removeprefix(_FLAGS).strip()}'" for line in lines if line.startswith(_FLAGS))


LIBRARY = _read()
