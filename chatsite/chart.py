"""Tokens over time as stacked bars: positions and sizes for an SVG that a template draws, without any style in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol, Self

from billing.contracts import Used

WIDTH = 720
HEIGHT = 180
GAP = 4
# From the bottom up: what the GPUs wrote, read, did not need to read again, and did for nothing.
KINDS = ("output", "uncached", "cached", "wasted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One kind of a span's tokens. `kind` is a CSS class; sizes are in the SVG's units."""

    kind: str
    y: float
    height: float


class Span(Protocol):
    """An hour or a day, and what was used in it."""

    @property
    def begins_at(self) -> date: ...

    @property
    def tokens(self) -> Used: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One span. `begins_at` is a moment or a day."""

    begins_at: date
    tokens: Used
    x: float
    middle: float
    width: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All bars, scaled to the highest; `top` is what it stands for, in tokens."""

    bars: tuple[Bar, ...]
    top: int
    width: int = WIDTH
    height: int = HEIGHT

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Self:
        """The chart of these hours or days, oldest first."""
        top = max((span.tokens.computed for span in spans), default=0)
        step = WIDTH / max(1, len(spans))
        bars = [
            Bar(
                begins_at=span.begins_at,
                tokens=span.tokens,
                x=round(number * step + GAP / 2, 2),
                middle=round((number + 0.5) * step, 2),
                width=round(step - GAP, 2),
                segments=tuple(_segments(span.tokens, top=top)),
            )
            for number, span in enumerate(spans)
        ]
        return cls(bars=tuple(bars), top=top)


def _segments(tokens: Used, *, top: int) -> Iterator[Segment]:
    below = 0.0
    for kind in KINDS:
        height = getattr(tokens, kind) / top * HEIGHT if top else 0.0
        if height:
            yield Segment(kind=kind, y=round(HEIGHT - below - height, 2), height=round(height, 2))
        below += height
