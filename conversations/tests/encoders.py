"""Small BERTs for tests: one of random weights, and one to which a text means the words that are in it."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    "apple", "banana", "cherry", "dragon", "engine", "forest", "garden",
    "harbour", "island", "jungle", "kitchen", "lantern", "mountain", "needle",
)  # fmt: skip
LAYERS, HEADS, INNER = 2, 4, 48


def config(*, width: int) -> dict[str, Any]:
    return {
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": width, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "intermediate_size": INNER, "max_position_embeddings": 64,
        "type_vocab_size": 2, "vocab_size": len(WORDS) + 3, "layer_norm_eps": 1e-12,
    }  # fmt: skip


def shapes(*, width: int) -> dict[str, tuple[int, ...]]:
    """The tensors of such a model, as transformers names them."""
    norms = {"embeddings.LayerNorm": width}
    linear: dict[str, tuple[int, int]] = {}
    for number in range(LAYERS):
        at = f"encoder.layer.{number}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            linear[f"{at}.{name}"] = (width, width)
        linear[f"{at}.intermediate.dense"] = (INNER, width)
        linear[f"{at}.output.dense"] = (width, INNER)
        norms |= {f"{at}.attention.output.LayerNorm": width, f"{at}.output.LayerNorm": width}
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS) + 3, width),
        "embeddings.position_embeddings.weight": (64, width),
        "embeddings.token_type_embeddings.weight": (2, width),
    }
    for name, shape in linear.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, size in norms.items():
        found |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    return found


def write(folder: Path, *, tensors: Mapping[str, npt.NDArray[Any]], width: int) -> Path:
    """A model's folder as the set-up leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(width=width)))
    vocabulary = {word: number for number, word in enumerate(("[UNK]", "[CLS]", "[SEP]", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def safetensors(tensors: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The format: a length, a JSON header padded to eights, the numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        kind = {"float32": "F32", "float16": "F16", "int64": "I64"}[tensor.dtype.name]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in tensors.values())


def random_weights(*, width: int, seed: int = 7) -> dict[str, npt.NDArray[Any]]:
    numbers = np.random.default_rng(seed)
    return {
        name: (numbers.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in shapes(width=width).items()
    }


def of_words(folder: Path) -> Path:
    """A model to which texts are the nearer the more of their `WORDS` they share; other words mean nothing to it.

    Its layers add nothing to what goes in, and each word has a direction of its own.
    """
    width = len(WORDS) + 2
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes(width=width).items()}
    for name, tensor in tensors.items():
        if name.endswith("LayerNorm.weight"):
            tensor[:] = 1
    # The normalisation takes off a little of each direction's: different words are at -0.07, not at 0.
    words = tensors["embeddings.word_embeddings.weight"]
    for number in range(len(WORDS)):
        words[3 + number, number] = 1
    return write(folder, tensors=tensors, width=width)
