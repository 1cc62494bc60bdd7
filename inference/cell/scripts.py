"""The Lua scripts beside this module, as one library of functions for the server.

In a library what scripts share is made once, when it is loaded; a script of its own makes it at each call, which took
a third of the time. A library is named by its text, so that processes of two versions may use one server.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "lua"
_INCLUDE, _FLAGS = "-- include: ", "-- flags: "
# What a script has above this line is made once, too.
_CALL = "-- at each call:"


@dataclass(frozen=True, slots=True)
class Library:
    """The text to load, and each script's function in it."""

    text: str
    functions: dict[str, str]


def _read() -> Library:
    sources = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in sorted(_FOLDER.glob("*.lua"))}
    shared = [name for name in sources if name.startswith("_")]
    ordered: dict[str, None] = {}
    for name in shared:
        _with_includes(name, sources, ordered)
    helpers = [line for name in ordered for line in sources[name]]
    scripts = {name: lines for name, lines in sources.items() if name not in ordered}
    # The server knows a library by this; nothing depends on its strength.
    text = repr(sources).encode()
    version = hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]
    functions = {name: f"{name}_{version}" for name in scripts}
    parts = [f"#!lua name=chatsite_{version}", *helpers]
    for name, lines in scripts.items():
        begin = lines.index(_CALL) if _CALL in lines else 0
        parts += [
            "do",
            *lines[:begin],
            "redis.register_function{",
            f"function_name = '{functions[name]}', flags = {{{_flags(lines)}}},",
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
