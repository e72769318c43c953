"""The README's snippets run, its links exist, and its figures are those of the results."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bayesrule import moments

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(document: str = README) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)


def test_readme_snippets_run_one_after_another() -> None:
    names: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in _blocks():
            exec(compile(block.replace("epochs=200", "epochs=2"), "README.md", "exec"), names)
    assert {"learner", "state", "p", "optimizer", "mean"} <= set(names)


def test_snippets_on_tagi_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments.tensor, "RULES", dict(moments.RULES))
    names: dict[str, object] = {}
    with torch.random.fork_rng(devices=[]):
        for block in _blocks((ROOT / "docs" / "tagi.md").read_text()):
            exec(compile(block, "tagi.md", "exec"), names)
    assert {"learner", "state", "p", "log1p"} <= set(names)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_point_to_files_that_exist(document: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / document).read_text())
    local = [link for link in links if "://" not in link]
    assert local
    assert [link for link in local if not (ROOT / link).is_file()] == []


def _tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", ROOT / "benchmarks" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_speed_table_is_that_of_the_committed_result() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "speed.json").read_text())
    assert _tables().speed(result) in README


def test_the_tables_of_tagi_are_those_of_the_committed_results() -> None:
    tables = _tables()
    files = [ROOT / "benchmarks" / "results" / f"tagi_speed{kind}.json" for kind in ("", "_gpu")]
    assert tables.tagi_speed(*(json.loads(file.read_text()) for file in files)) in README
    assert len(tables.image_results()) >= 3
    assert tables.images(tables.image_results()) in README
