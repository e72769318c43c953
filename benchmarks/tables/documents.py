"""Writes figures and the records of methods into the docs, between markers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tables import (
    choosing,
    defaults,
    explore,
    figures,
    language,
    methods,
    natural_gradient,
)

ROOT = Path(__file__).resolve().parents[2]


def replace_between(text: str, marker: str, content: str) -> str:
    """The text with new content between `<!-- marker:begin -->` and `<!-- marker:end -->`."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if begin not in text or end not in text:
        raise ValueError(f"There is no {begin} ... {end} in the text.")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def with_readme_table(text: str) -> str:
    """The README with its table of methods made anew from their records."""
    return replace_between(text, "methods", methods.summaries())


def with_image_tables(text: str) -> str:
    """The page of images and text with its tables made anew from those results that there are."""
    text = replace_between(text, "images", figures.images(figures.image_results()))
    for marker, names, rows in (
        ("variational", figures.VARIATIONAL, figures.variational),
        ("tied", figures.TIED, figures.tied),
    ):
        # These take hours on a GPU; their tables exist once their results do.
        if found := figures.kept(marker, names):
            text = replace_between(text, marker, rows(found))
    return text


Page = Mapping[str, tuple[list[str], Callable[..., str]]]


def with_page_tables(text: str, page: Page = natural_gradient.PAGE) -> str:
    """A page with its tables made anew from those results that there are."""
    for marker, (names, table) in page.items():
        if found := _results([name for name in names if (figures.RESULTS / name).is_file()]):
            text = replace_between(text, marker, table(*found))
    return text


def with_method_tables(text: str) -> str:
    """The page of methods with its tables made anew from their records."""
    for marker, table in methods.METHOD_PAGE.items():
        text = replace_between(text, marker, table())
    return text


def _results(names: list[str]) -> list[dict[str, Any]]:
    return [json.loads((figures.RESULTS / name).read_text()) for name in names]


DOCUMENTS: dict[str, Callable[[str], str]] = {
    "README.md": with_readme_table,
    "docs/images.md": with_image_tables,
    "docs/speed.md": partial(with_page_tables, page=figures.SPEED_PAGE),
    "docs/uci.md": partial(with_page_tables, page=figures.UCI_PAGE),
    "docs/methods.md": with_method_tables,
    "docs/natural-gradient.md": with_page_tables,
    "docs/explore.md": partial(with_page_tables, page=explore.PAGE),
    "docs/choosing.md": partial(with_page_tables, page=choosing.PAGE),
    "docs/defaults.md": partial(with_page_tables, page=defaults.PAGE),
    "docs/transformers.md": partial(with_page_tables, page=language.PAGE),
}
"""The documents that have tables, and the functions that write them."""


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
