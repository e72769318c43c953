"""Snippets of the site's short pages run, and its navigation and API leave nothing out."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrule as br
from benchmarks import gallery, site

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
    pages |= {"results.md", "gallery.md", "another.md", *site.api_pages()}
    shown = [name for part in site.navigation(pages) for names in part.values() for name in names]
    assert sorted(shown) == sorted(pages)


def test_every_public_name_is_in_the_reference() -> None:
    text = site.api_pages()["api/bayesrule.md"]
    heads = re.findall(r"^(?:::: .*\.|## )(\w+)$", text, flags=re.MULTILINE)
    assert set(heads) == set(site.public(br))


def test_everything_in_the_reference_is_explained() -> None:
    pages = site.api_pages()
    for name in {Path(page).stem for page in pages} - {"bayesrule", "metrics"}:
        module = importlib.import_module(f"bayesrule.{name}")
        assert inspect.getdoc(module), name
        for one in site.public(module):
            value = getattr(module, one)
            is_alias = not (inspect.isclass(value) or inspect.isroutine(value))
            assert is_alias or inspect.getdoc(value), f"{name}.{one}"


def test_every_example_has_its_picture_and_its_code_in_the_gallery() -> None:
    page = gallery.gallery_page()
    for file in gallery.examples():
        assert (gallery.PICTURES / f"{file.stem}.svg").stat().st_size < 130_000
        assert f"](pictures/{file.stem}.svg)" in page
        assert f'??? example "examples/{file.name}"' in page
    heads = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
    assert len(heads) == len(set(heads)) == len(gallery.examples())
    assert heads[0].startswith("What a network does not know")


PAPERS = sorted(DOCS.glob("papers/*.md"))


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_pages_of_papers_say_what_was_reproduced_and_what_differs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    heads = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert heads == ["What it says", "What was reproduced", "What differs"]
    filled = site.with_tables(text)
    assert "<!-- table" not in filled
    assert filled.count("|---") >= text.count("<!-- table") > 0
    for link in re.findall(r"\]\(([^)#:]+)", site.with_tables(text, depth=1)):
        assert (page.parent / link).exists(), link


def test_every_result_is_on_its_page() -> None:
    heads = re.findall(r"^## (.*)$", site.results_page(), flags=re.MULTILINE)
    assert heads == sorted(file.stem for file in site.RESULTS.glob("*.json"))
