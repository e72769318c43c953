"""Writes kept figures and the records of methods into the docs, between their markers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tables import defaults, methods, natural_gradient, readme

ROOT = Path(__file__).resolve().parents[2]


def replace_between(text: str, marker: str, content: str) -> str:
    """The text with new content between `<!-- marker:begin -->` and `<!-- marker:end -->`."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if begin not in text or end not in text:
        raise ValueError(f"There is no {begin} ... {end} in the text.")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def with_readme_tables(text: str) -> str:
    """The README with its tables made anew from the results and the methods' records."""
    text = replace_between(text, "methods", methods.parts())
    for marker, files, table in (
        ("speed", ["speed.json", "speed_gpu.json"], readme.speed),
        ("tagi-speed", ["tagi_speed.json", "tagi_speed_gpu.json"], readme.tagi_speed),
        ("uci", ["uci_tagi.json"], readme.uci),
    ):
        text = replace_between(text, marker, table(*_results(files)))
    text = replace_between(text, "images", readme.images(readme.image_results()))
    for marker, names, rows in (
        ("variational", readme.VARIATIONAL, readme.variational),
        ("tied", readme.TIED, readme.tied),
    ):
        # These run for hours on a GPU; their tables are there once their results are.
        if found := readme.kept(marker, names):
            text = replace_between(text, marker, rows(found))
    return text


Page = Mapping[str, tuple[list[str], Callable[..., str]]]


def with_page_tables(text: str, page: Page = natural_gradient.PAGE) -> str:
    """A page with its tables made anew from those results that there are."""
    for marker, (names, table) in page.items():
        if found := _results([name for name in names if (readme.RESULTS / name).is_file()]):
            text = replace_between(text, marker, table(*found))
    return text


def with_method_tables(text: str) -> str:
    """The page of methods with its tables made anew from their records."""
    for marker, table in methods.METHOD_PAGE.items():
        text = replace_between(text, marker, table())
    return text


def _results(names: list[str]) -> list[dict[str, Any]]:
    return [json.loads((readme.RESULTS / name).read_text()) for name in names]


DOCUMENTS: dict[str, Callable[[str], str]] = {
    "README.md": with_readme_tables,
    "docs/methods.md": with_method_tables,
    "docs/natural-gradient.md": with_page_tables,
    "docs/defaults.md": partial(with_page_tables, page=defaults.PAGE),
}
"""Which documents have tables, and what writes those."""


def write(root: Path = ROOT) -> list[str]:
    """Rewrites the tables of all documents; the names of those that changed."""
    changed = []
    for name, with_tables in DOCUMENTS.items():
        text = (root / name).read_text()
        new = with_tables(text)
        if new != text:
            (root / name).write_text(new)
            changed.append(name)
    return changed
