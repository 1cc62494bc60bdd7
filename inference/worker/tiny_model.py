"""Make a model without wit: two layers of random weights, with the tokenizer and chat template of another model.

Run once by the set-up, as `python -m inference.worker.tiny_model --like FOLDER --output FOLDER`. It loads in seconds
and answers with words at random: enough to see pools, overflow and prefix caches at work. The output appears whole or
not at all. With `--tokenizer-only` it holds no weights, and neither torch nor transformers is needed.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from inference.worker.prepare_model import TOKENIZER_FILES

SEED = 1
HIDDEN = 128
# Nearly greedy even at a temperature of 1: what is drawn then depends on the prompt, as an answer should.
LOGIT_SPREAD = 1.0


def prepare(*, like: Path, output: Path, tokenizer_only: bool) -> None:
    """Make the folder `output` (25 MB with weights) from the tokenizer files of the folder `like`."""
    partial = output.with_name(f".{output.name}.partial-{os.getpid()}")
    for leftover in output.parent.glob(f".{output.name}.partial-*"):
        shutil.rmtree(leftover)
    partial.mkdir(parents=True)
    try:
        for name in TOKENIZER_FILES:
            shutil.copyfile(like / name, partial / name)
        if not tokenizer_only:
            write_weights(folder=partial)
        for file in partial.iterdir():  # the weights come out readable by their owner alone
            file.chmod(0o644)
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_weights(*, folder: Path) -> None:
    """Write random weights for the folder's vocabulary, with the configuration that goes with them.

    Special tokens and single bytes of characters are never drawn: answers are whole words and go on to their limit.
    """
    import torch
    import transformers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    origin = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    torch.manual_seed(SEED)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=HIDDEN,
            intermediate_size=2 * HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=origin["max_position_embeddings"],
            bos_token_id=origin["bos_token_id"],
            eos_token_id=origin["eos_token_id"],
            pad_token_id=origin["pad_token_id"],
            dtype="bfloat16",
        )
    ).to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=LOGIT_SPREAD)
        model.lm_head.weight[[number for number in range(vocabulary) if not is_text(tokenizer, number)]] = 0
    model.save_pretrained(folder)


def is_text(tokenizer: tokenizers.Tokenizer, token_id: int) -> bool:
    """Whether a token by itself is letters or signs that can be seen, not a special one or a part of a character."""
    text = tokenizer.decode([token_id], skip_special_tokens=True)
    return bool(text.strip()) and text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--like", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--tokenizer-only", action="store_true")
    options = parser.parse_args(arguments)
    prepare(like=options.like, output=options.output, tokenizer_only=options.tokenizer_only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
