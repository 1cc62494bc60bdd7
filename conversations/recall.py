"""Which older turns are quoted for a new message: by nearness of meaning, within a budget. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conversations.context import Recalled
from conversations.encoder import Floats

# Turns quoted in one prompt.
MOST_TURNS = 4
# Turns whose texts are read, of which some may be too long.
MOST_LOOKED_AT = 8
# Cosine. Tried on small talk and work in English: what belonged together was at 0.35 and above, what did not at 0.28
# and below.
NEAR = 0.3
_STORED = np.dtype("<f2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The turn that begins with message `seq`, and how near it is to the new message: a cosine."""

    seq: int
    score: float


def packed(vectors: Sequence[Floats]) -> bytes:
    """Vectors as they are stored."""
    return b"".join(vector.astype(_STORED).tobytes() for vector in vectors)


def nearest(vector: Floats, turns: Sequence[tuple[int, bytes]]) -> list[Near]:
    """The turns (seq, stored vectors) that are near enough to be quoted, nearest first, at most `MOST_LOOKED_AT`.

    A turn is as near as the nearest of its messages. Of two that are equally near the newer one comes first.
    """
    size = vector.size * _STORED.itemsize
    # Anything else was stored by other code than this, and is nobody's vector.
    whole = [(seq, stored) for seq, stored in turns if stored and len(stored) % size == 0]
    if not whole:
        return []
    rows = np.frombuffer(b"".join(stored for _, stored in whole), dtype=_STORED).reshape(-1, vector.size)
    firsts = np.cumsum([0, *(len(stored) // size for _, stored in whole)])[:-1]
    scores = np.maximum.reduceat(rows.astype(np.float32) @ vector, firsts)
    near = [Near(seq=seq, score=float(score)) for (seq, _), score in zip(whole, scores, strict=True) if score >= NEAR]
    return sorted(near, key=lambda one: (-one.score, -one.seq))[:MOST_LOOKED_AT]


def choose(quotes: Sequence[Recalled], *, budget: int) -> list[Recalled]:
    """Of the quotes the nearest that take at most `budget` tokens together, oldest first, at most `MOST_TURNS`.

    One that is too long for what is left gives way to a shorter one that is less near.
    """
    chosen: list[Recalled] = []
    for quote in sorted(quotes, key=lambda one: (-one.score, -one.seqs[0])):
        if len(chosen) < MOST_TURNS and quote.tokens <= budget:
            chosen.append(quote)
            budget -= quote.tokens
    return sorted(chosen, key=lambda one: one.seqs[0])
