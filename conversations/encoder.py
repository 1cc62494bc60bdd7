"""A sentence's meaning as a vector: the forward pass of a small BERT, in numpy.

Web processes have no torch, and a message of some words needs none: it takes milliseconds of one core. Figures and
their check against transformers: docs/context.md.
"""

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Floats = npt.NDArray[np.float32]

FILES = ("model.safetensors", "tokenizer.json", "config.json")
# Word pieces, with the two marks around them: what the model's pooling was made for. What is beyond is not looked at.
MOST_PIECES = 256
# Enough for so many pieces of any text that people write: a long paste is not tokenised whole.
_MOST_CHARACTERS = 40 * MOST_PIECES
_KINDS = {"F32": "<f4", "F16": "<f2"}


class UnusableEncoder(Exception):
    """The folder holds no model that this code can compute; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linear:
    """A matrix as its file has it, a row for each number that it makes, and what is added."""

    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        made: Floats = np.matmul(rows, self.weight.T)
        made += self.bias
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Norm:
    """Layer normalisation (Ba, Kiros, Hinton 2016)."""

    weight: Floats
    bias: Floats
    epsilon: float

    def __call__(self, rows: Floats) -> Floats:
        centred: Floats = rows - rows.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        centred /= np.sqrt(variance + np.float32(self.epsilon))
        centred *= self.weight
        centred += self.bias
        return centred


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One block of BERT (Devlin et al. 2018): attention, then two linear maps, each added to what went in."""

    heads: int
    queries: _Linear
    keys: _Linear
    values: _Linear
    joined: _Linear
    attention_norm: _Norm
    wide: _Linear
    narrow: _Linear
    norm: _Norm

    def __call__(self, rows: Floats) -> Floats:
        length, width = rows.shape
        size = width // self.heads
        queries, keys, values = (
            made(rows).reshape(length, self.heads, size).transpose(1, 0, 2)
            for made in (self.queries, self.keys, self.values)
        )
        weights: Floats = np.matmul(queries, keys.transpose(0, 2, 1))
        weights *= np.float32(size**-0.5)
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        heads: Floats = np.matmul(weights, values).transpose(1, 0, 2).reshape(length, width)
        rows = self.attention_norm(rows + self.joined(heads))
        return self.norm(rows + self.narrow(_gelu(self.wide(rows))))


class Encoder:
    """The model in `folder` (`FILES`). Thread-safe: nothing changes after construction.

    `revision` is a digest of the files: vectors of different ones cannot be compared. The weights stay in their file,
    mapped into memory: a machine's processes share them.
    """

    def __init__(self, *, folder: Path) -> None:
        """Open the model: some 0.2 s, and more where the file is not in the system's cache. Raises UnusableEncoder."""
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise UnusableEncoder(f"{folder} has no {', '.join(missing)}")
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
                raise UnusableEncoder(f"{folder} holds no BERT with GELU")
            # Its errors are of no class of their own.
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(max_length=min(MOST_PIECES, config["max_position_embeddings"]))
            self._build(_read(folder / "model.safetensors"), config)
            self.revision = _digest([folder / name for name in FILES])
        except UnusableEncoder:
            raise
        except Exception as error:
            raise UnusableEncoder(f"{folder}: {error!r}") from error

    def _build(self, weights: dict[str, Floats], config: dict[str, Any]) -> None:
        epsilon = float(config["layer_norm_eps"])

        def norm(name: str) -> _Norm:
            return _Norm(weight=weights[f"{name}.weight"], bias=weights[f"{name}.bias"], epsilon=epsilon)

        def linear(name: str) -> _Linear:
            return _Linear(weight=weights[f"{name}.weight"], bias=weights[f"{name}.bias"])

        self._words = weights["embeddings.word_embeddings.weight"]
        # Every text is one sentence to the model: its kind is always the first.
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        self._places = weights["embeddings.position_embeddings.weight"] + kind
        self._first_norm = norm("embeddings.LayerNorm")
        self._layers = [
            _Layer(
                heads=config["num_attention_heads"],
                queries=linear(f"{at}.attention.self.query"),
                keys=linear(f"{at}.attention.self.key"),
                values=linear(f"{at}.attention.self.value"),
                joined=linear(f"{at}.attention.output.dense"),
                attention_norm=norm(f"{at}.attention.output.LayerNorm"),
                wide=linear(f"{at}.intermediate.dense"),
                narrow=linear(f"{at}.output.dense"),
                norm=norm(f"{at}.output.LayerNorm"),
            )
            for at in (f"encoder.layer.{number}" for number in range(config["num_hidden_layers"]))
        ]

    def encode(self, text: str) -> Floats:
        """The text's vector, of length 1: the mean of what the last layer makes of its word pieces."""
        ids = self._tokenizer.encode(text[:_MOST_CHARACTERS]).ids
        rows = self._first_norm(self._words[ids] + self._places[: len(ids)])
        for layer in self._layers:
            rows = layer(rows)
        mean: Floats = rows.mean(axis=0)
        mean /= np.float32(max(float(np.linalg.norm(mean)), 1e-12))
        return mean


def _gelu(values: Floats) -> Floats:
    """x Φ(x). The error function by Abramowitz and Stegun 7.1.26, which is off by 1.5e-7 at most; numpy has none."""
    size = np.abs(values)
    size *= np.float32(0.5**0.5)
    near = 1 / (1 + np.float32(0.3275911) * size)
    series = np.full_like(near, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series *= near
        series += np.float32(coefficient)
    series *= near
    np.square(size, out=size)
    np.negative(size, out=size)
    np.exp(size, out=size)
    series *= size
    # 1 - erf(|x|): of which Φ takes half off below 0, and off 1 above.
    series *= np.float32(0.5)
    made: Floats = np.where(values < 0, series, 1 - series)
    made *= values
    return made


def _read(path: Path) -> dict[str, Floats]:
    """The tensors of a safetensors file: the length of a JSON header, the header, the numbers. Raises ValueError."""
    whole = np.memmap(path, dtype=np.uint8, mode="r")
    (length,) = struct.unpack("<Q", whole[:8].tobytes())
    if length > whole.size - 8:
        raise ValueError(f"{path.name} is cut off")
    header = json.loads(whole[8 : 8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        kind = _KINDS.get(entry.get("dtype", ""))
        if kind is None:
            # Tables of whole numbers, which say nothing that the code does not, and the file's own remarks.
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.asarray(whole[begin:end]).view(kind).reshape(entry["shape"]).astype(np.float32, copy=False)
    return tensors


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
