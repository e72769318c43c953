"""One look per method: colour (safe for the colour-blind), dash and marker shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Shape: TypeAlias = Literal["circle", "square", "triangle", "diamond", "cross"]

COLOURS = 8  # the classes c0 ... c7 of style.css, each with a light and a dark variant
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_SHAPES: tuple[Shape, ...] = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Look:
    """How one method is drawn everywhere."""

    index: int
    colour: str
    dash: str
    shape: Shape

    @property
    def attributes(self) -> str:
        """Attributes of the group that holds the method's marks."""
        return f'class="series {self.colour}" data-method="{self.index}"'


def look(index: int) -> Look:
    """The look of the method at `index`; 32 methods differ in colour or in dash and shape.

    >>> look(0).colour, look(8).colour, look(0).shape, look(8).shape
    ('c0', 'c0', 'circle', 'square')
    """
    turn = (index // COLOURS) % len(_DASHES)
    return Look(index, f"c{index % COLOURS}", _DASHES[turn], _SHAPES[turn])
