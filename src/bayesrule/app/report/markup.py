"""Small pieces of HTML that several sections share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .contents import Integers
from .svg import Look, escape, marker


def figure(title: str, picture: str, caption: str, *, key: str = "") -> str:
    """A titled picture with its key (what the marks mean) and a caption; both are HTML."""
    keys = f'<p class="key">{key}</p>' if key else ""
    return (
        f'<figure class="card"><h3>{escape(title)}</h3>{keys}{picture}'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def swatch(look: Look) -> str:
    """A method's colour, dash and marker as a small picture."""
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    shape = marker(look.shape, 13, 6, 3.4)
    return (
        f'<svg class="swatch {look.colour}" viewBox="0 0 26 12" aria-hidden="true">'
        f'<path class="line" d="M1 6H25"{dash}/>{shape} class="point"/></svg>'
    )


def facts(pairs: Sequence[tuple[str, str]], kind: str) -> str:
    """A definition list of short facts."""
    rows = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in pairs)
    return f'<dl class="{kind}">{rows}</dl>'


def selector(name: str, choices: Sequence[tuple[str, str]], panels: str) -> str:
    """A menu of (value, text) choices: which panel inside the element `panels` is shown."""
    options = "".join(f'<option value="{escape(v)}">{escape(t)}</option>' for v, t in choices)
    select = f'<select id="{panels}-choice" data-picks="{panels}">{options}</select>'
    return f"<label>{escape(name)} {select}</label>"


def duration(seconds: float) -> str:
    """Time in words.

    >>> duration(0.25), duration(75), duration(7500), duration(float("nan"))
    ('0.25 s', '1 min 15 s', '2 h 5 min', '–')
    """
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def count(number: int, one: str) -> str:
    """A number with its noun.

    >>> count(1, "split"), count(1200, "row")
    ('1 split', '1,200 rows')
    """
    return f"{number:,} {one if number == 1 else one + 's'}"


def subsample(length: int, limit: int) -> Integers:
    """At most `limit` evenly spaced row numbers, always the same ones.

    >>> subsample(10, 4).tolist(), subsample(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    if length <= limit:
        return np.arange(length)
    return np.linspace(0, length - 1, limit).round().astype(np.int64)


def share(total: int, methods: int, most: int) -> int:
    """How many marks each method may draw if all of them together may draw `total`."""
    return min(most, total // max(methods, 1))
