"""Parts of one whole as a bar: positions and sizes for an SVG that a template draws, without any style in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

WIDTH = 720
HEIGHT = 18
# As many as there are colours for; what comes after has the last one's.
KINDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part. `kind` is a CSS class, the same for a part of the same place in any strip; sizes in the SVG's units."""

    label: str
    share: float
    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The parts from left to right; those of no size are left out."""

    pieces: tuple[Piece, ...]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def said(self) -> str:
        """The same in words."""
        return ", ".join(f"{piece.label} {piece.share:.0%}" for piece in self.pieces) or "nobody"

    @classmethod
    def of(cls, parts: Sequence[tuple[str, float]]) -> Self:
        """The strip of these labelled shares (0 to 1)."""
        pieces, x = [], 0.0
        for number, (label, share) in enumerate(parts):
            width = share * WIDTH
            if width:
                kind = f"part-{min(number, KINDS - 1)}"
                pieces.append(Piece(label=label, share=share, kind=kind, x=round(x, 2), width=round(width, 2)))
            x += width
        return cls(pieces=tuple(pieces))
