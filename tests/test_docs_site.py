"""Snippets of the site's short pages run, and its navigation and API leave nothing out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrule as br
from benchmarks import site

DOCS = Path(__file__).resolve().parents[1] / "docs"
SHORT = [DOCS / "tour.md", *sorted(DOCS.glob("start/*.md")), *sorted(DOCS.glob("how-to/*.md"))]


@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.name)
def test_snippets_run(page: Path) -> None:
    names: dict[str, Any] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            exec(compile(block.replace("epochs=200", "epochs=2"), page.name, "exec"), names)


def test_every_page_is_in_the_navigation() -> None:
    pages = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md")}
    pages |= {"results.md", "another.md", *site.api_pages()}
    shown = [name for part in site.navigation(pages) for names in part.values() for name in names]
    assert sorted(shown) == sorted(pages)


def test_every_public_name_is_in_the_reference() -> None:
    text = site.api_pages()["api/bayesrule.md"]
    heads = re.findall(r"^(?:::: .*\.|## )(\w+)$", text, flags=re.MULTILINE)
    assert set(heads) == set(site.public(br))


def test_every_result_is_on_its_page() -> None:
    heads = re.findall(r"^## (.*)$", site.results_page(), flags=re.MULTILINE)
    assert heads == sorted(file.stem for file in site.RESULTS.glob("*.json"))
