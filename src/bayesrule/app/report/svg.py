"""A small plotting module: the look of each method; axes, lines, points, bars as inline SVG."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .axes import Axis
from .contents import Floats

_TEXT = 7.7  # mean width of a character at the font size of style.css, in user units
Shape: TypeAlias = Literal["circle", "square", "triangle", "diamond", "cross"]

COLOURS = 8  # the classes c0 ... c7 of style.css, each with a light and a dark variant
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_SHAPES: tuple[Shape, ...] = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Look:
    """How one method is drawn everywhere; grey if it is `behind` the others."""

    index: int
    colour: str
    dash: str
    shape: Shape
    behind: bool = False

    @property
    def attributes(self) -> str:
        """Attributes of the group that holds the method's marks."""
        behind = " behind" if self.behind else ""
        return f'class="series {self.colour}{behind}" data-method="{self.index}"'


def look(index: int) -> Look:
    """The look of method number `index`; 32 methods differ in colour or in dash and shape.

    >>> look(0).colour, look(8).colour, look(0).shape, look(8).shape
    ('c0', 'c0', 'circle', 'square')
    """
    turn = (index // COLOURS) % len(_DASHES)
    return Look(index, f"c{index % COLOURS}", _DASHES[turn], _SHAPES[turn])


def escape(text: object) -> str:
    """Text made safe inside HTML, SVG and double-quoted attributes.

    >>> escape('<b class="x">')
    '&lt;b class=&quot;x&quot;&gt;'
    """
    # Control characters are not allowed in XML at all.
    kept = "".join(c if c >= " " or c in "\t\n" else "\ufffd" for c in str(text))
    return html.escape(kept, quote=True)


def shorten(text: str, length: int) -> str:
    """At most `length` characters, the cut marked by an ellipsis."""
    return text if len(text) <= length else text[: max(length - 1, 1)] + "…"


def number(value: float) -> str:
    """A coordinate with one decimal at most.

    >>> number(3.0), number(3.14159), number(-0.01)
    ('3', '3.1', '0')
    """
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


def marker(shape: Shape, x: float, y: float, r: float) -> str:
    """The outline of a marker, to be closed by the caller: `<circle ...` or `<path d=...`."""
    if shape == "circle":
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(r)}"'
    if shape == "cross":
        start, s = f"M{number(x - r)} {number(y - r)}", number(2 * r)
        return f'<path d="{start}l{s} {s}m0 -{s}l-{s} {s}"'
    start, s = f"M{number(x)} ", number(1.8 * r)
    if shape == "square":
        half = number(0.9 * r)
        return f'<path d="{start}{number(y)}m-{half} -{half}h{s}v{s}h-{s}z"'
    if shape == "triangle":
        wide, tall = number(1.15 * r), number(2 * r)
        return f'<path d="{start}{number(y - 1.15 * r)}l{wide} {tall}h-{number(2.3 * r)}z"'
    d = number(1.25 * r)
    return f'<path d="{start}{number(y - 1.25 * r)}l{d} {d}l-{d} {d}l-{d} -{d}z"'


class Plot:
    """A picture with two axes; marks outside the frame are cut off.

    Values that are not finite are left out: a line is interrupted, a point is not drawn.
    """

    def __init__(
        self, x: Axis, y: Axis, label: str, *, width: float = 480, height: float = 340
    ) -> None:
        self.x, self.y, self.label = x, y, label
        self.width, self.height = width, height
        widest = max((len(text) for _, text in y.marks()), default=1)
        self.left, self.right, self.bottom = 14 + _TEXT * widest, 14.0, 44.0
        self.top = 26.0 if y.label else 8.0
        self.grid, self.dense = True, False
        self._body: list[str] = []

    @property
    def inner(self) -> tuple[float, float]:
        """Width and height of the frame."""
        return self.width - self.left - self.right, self.height - self.top - self.bottom

    def spot(self, xs: ArrayLike, ys: ArrayLike) -> tuple[Floats, Floats]:
        """Data to coordinates inside the frame (y grows downwards)."""
        w, h = self.inner
        # A value far outside must not become a coordinate that renderers choke on.
        fx, fy = np.clip(self.x.place(xs), -9, 10), np.clip(self.y.place(ys), -9, 10)
        return fx * w, (1 - fy) * h

    def _add(self, mark: str, title: str = "", close: str = "path") -> None:
        tip = f"<title>{escape(title)}</title>" if title else ""
        self._body.append(f"{mark}>{tip}</{close}>" if tip else f"{mark}/>")

    @contextmanager
    def group(self, look: Look | None = None, kind: str = "") -> Iterator[None]:
        """The marks drawn inside are one group: a method's series, or one of the class `kind`."""
        self._body.append(f"<g {look.attributes}>" if look else f'<g class="{kind}">')
        yield
        self._body.append("</g>")

    def line(
        self, xs: ArrayLike, ys: ArrayLike, *, kind: str = "line", dash: str = "", title: str = ""
    ) -> None:
        """A line through the points in the given order, interrupted where they are not finite."""
        px, py = self.spot(xs, ys)
        path, pen_down = [], False
        for x, y in zip(px, py, strict=True):
            if not (np.isfinite(x) and np.isfinite(y)):
                pen_down = False
                continue
            path.append(f"{'L' if pen_down else 'M'}{number(x)} {number(y)}")
            # A lone point has no length; the round cap makes it visible.
            path.extend([] if pen_down else ["h0"])
            pen_down = True
        if path:
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            self._add(f'<path class="{kind}" d="{"".join(path)}"{dashes}', title)

    def points(
        self,
        xs: ArrayLike,
        ys: ArrayLike,
        titles: Sequence[str] = (),
        *,
        shape: Shape = "circle",
        kind: str = "point",
        radius: ArrayLike = 3.0,
    ) -> None:
        """A marker at each point, with a tooltip of its own where `titles` are given."""
        tips = titles or [""] * np.size(xs)
        radii = np.broadcast_to(np.asarray(radius, dtype=np.float64), np.shape(xs))
        close = "circle" if shape == "circle" else "path"
        with self.group(kind=kind):
            for x, y, r, tip in zip(*self.spot(xs, ys), radii, tips, strict=True):
                if np.isfinite(x) and np.isfinite(y):
                    self._add(marker(shape, x, y, r), tip, close)

    def _spans(self, xs: ArrayLike, low: ArrayLike, high: ArrayLike) -> Iterator[Floats]:
        """Coordinates of x, low and high where all three are finite."""
        (px, lower), (_, upper) = self.spot(xs, low), self.spot(xs, high)
        keep = np.isfinite(px) & np.isfinite(lower) & np.isfinite(upper)
        return (values[keep] for values in (px, lower, upper))

    def band(self, xs: ArrayLike, low: ArrayLike, high: ArrayLike, *, kind: str = "band") -> None:
        """The area between two curves, without the points that are not finite."""
        px, lower, upper = self._spans(xs, low, high)
        edge = [*zip(px, upper, strict=True), *zip(px[::-1], lower[::-1], strict=True)]
        if edge:
            path = "L".join(f"{number(x)} {number(y)}" for x, y in edge)
            self._add(f'<path class="{kind}" d="M{path}Z"')

    def strokes(
        self, xs: ArrayLike, low: ArrayLike, high: ArrayLike, *, kind: str, wide: float
    ) -> None:
        """A vertical bar from `low` to `high` at each x, `wide` units wide, as one path."""
        bars = zip(*self._spans(xs, low, high), strict=True)
        path = "".join(f"M{number(x)} {number(a)}V{number(b)}" for x, a, b in bars)
        if path:
            self._add(f'<path class="{kind}" d="{path}" stroke-width="{number(wide)}"')

    def box(
        self,
        xs: tuple[float, float],
        ys: tuple[float, float],
        *,
        kind: str = "bar",
        title: str = "",
        opacity: float = 1.0,
    ) -> None:
        """A filled rectangle between two corners in data coordinates."""
        px, py = self.spot(xs, ys)
        if not (np.isfinite(px).all() and np.isfinite(py).all()):
            return
        w, h = abs(px[1] - px[0]), abs(py[1] - py[0])
        corner = f'<rect class="{kind}" x="{number(px.min())}" y="{number(py.min())}"'
        clear = f' opacity="{opacity:.2f}"' if opacity < 1 else ""
        self._add(f'{corner} width="{number(w)}" height="{number(h)}"{clear}', title, "rect")

    def text(self, x: float, y: float, text: str, *, kind: str = "note") -> None:
        """Text at a point in data coordinates."""
        (px,), (py,) = self.spot([x], [y])
        if np.isfinite(px) and np.isfinite(py):
            place = f'x="{number(px)}" y="{number(py)}"'
            self._body.append(f'<text class="{kind}" {place}>{escape(text)}</text>')

    def _axes(self, slant: bool) -> str:
        w, h = self.inner
        right, foot = number(w), number(self.height - self.top - 7)
        out = [
            f'<text class="axis-label" x="0" y="-11">{escape(self.y.label)}</text>'
            f'<text class="axis-label x" x="{right}" y="{foot}">{escape(self.x.label)}</text>'
        ]
        for value, name in self.y.marks():
            y = number(float(self.spot([self.x.low], [value])[1][0]))
            if self.grid:
                out.append(f'<path class="grid" d="M0 {y}H{right}"/>')
            out.append(f'<text class="tick y" x="-7" y="{y}" dy=".34em">{escape(name)}</text>')
        for value, name in self.x.marks():
            x = number(float(self.spot([value], [self.y.low])[0][0]))
            turn = f' transform="rotate(-40 {x} {number(h + 14)})"' if slant else ""
            kind = "tick slant" if slant else "tick x"
            out.append(f'<path class="notch" d="M{x} {number(h)}v4"/>')
            out.append(
                f'<text class="{kind}" x="{x}" y="{number(h + 17)}"{turn}>{escape(name)}</text>'
            )
        out.append(f'<path class="base" d="M0 {number(h)}H{number(w)}"/>')
        return "".join(out)

    def render(self, *, slant: bool = False) -> str:
        """The whole picture; `slant` turns the names along the x axis."""
        w, h = (number(v) for v in self.inner)
        kind = "plot dense" if self.dense else "plot"
        # The nested <svg> cuts marks off at the frame and needs no ids.
        return (
            f'<svg class="{kind}" role="img" aria-label="{escape(self.label)}" '
            f'viewBox="0 0 {number(self.width)} {number(self.height)}" '
            'xmlns="http://www.w3.org/2000/svg">'
            f'<g transform="translate({number(self.left)} {number(self.top)})">{self._axes(slant)}'
            f'<svg class="frame" width="{w}" height="{h}" overflow="hidden">'
            f"{''.join(self._body)}</svg></g></svg>"
        )
