"""Every file, class, method and name that the documents speak of exists."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import bayesrule
from bayesrule.curvature import Curvature, Problem
from bayesrule.expectations import Expectation
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Family, Point, Posterior, Prior
from bayesrule.rules import Rule
from bayesrule.types import Info, State

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "bayesrule"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# What an object of a contract is called in a sentence.
CALLED: dict[str, type] = {
    "curvature": Curvature,
    "expectation": Expectation,
    "family": Family,
    "info": Info,
    "learner": Learner,
    "likelihood": Likelihood,
    "point": Point,
    "posterior": Posterior,
    "prior": Prior,
    "problem": Problem,
    "rule": Rule,
    "state": State,
}
# Names of torch and the standard library that look like ours.
FOREIGN = {"Tensor", "TorchFunctionMode", "DataLoader", "TypeError", "ValueError"}
# Files that a page writes as examples.
WRITTEN_THERE = {"curvature/clipped.py"}
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def phrases(page: Path) -> list[str]:
    """What stands between backticks, outside of blocks of code."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


@cache
def classes() -> dict[str, list[type]]:
    """Every class of the package by its name; several may share one."""
    by_name: dict[str, list[type]] = {}
    for info in pkgutil.walk_packages(bayesrule.__path__, "bayesrule."):
        if info.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if inspect.isclass(value) and value.__module__.startswith("bayesrule."):
                by_name.setdefault(name, []).append(value)
    return by_name


def has(kind: type, attribute: str) -> bool:
    """Whether objects of a class have an attribute, as a method, a property or a field."""
    annotated = (vars(base).get("__annotations__", {}) for base in kind.__mro__)
    if hasattr(kind, attribute) or any(attribute in names for names in annotated):
        return True
    return f"self.{attribute}" in inspect.getsource(kind)


def subclasses(kind: type) -> list[type]:
    """A class and all that inherit from it."""
    return [kind, *(below for one in kind.__subclasses__() for below in subclasses(one))]


def files(page: Path) -> list[str]:
    """Files and folders that a page names: `folder/file.py`, `learner.py`, `folder/`."""
    words = (word.strip(".,;:()") for phrase in phrases(page) for word in phrase.split())
    return [word for word in words if re.fullmatch(r"[\w/]+(\.py|\.toml|\.txt|/)", word)]


def stands_somewhere(name: str) -> bool:
    places = (ROOT, PACKAGE, ROOT / "src", ROOT / "docs")
    return any((place / name).exists() for place in places)


@every_page
def test_files_and_folders_exist(page: Path) -> None:
    named = set(files(page)) - WRITTEN_THERE
    missing = [name for name in sorted(named) if not stands_somewhere(name)]
    # A row of a table may name several files of one folder, which it names once.
    bare = {path.name for path in PACKAGE.rglob("*.py")}
    assert [name for name in missing if "/" in name or name not in bare] == []


@every_page
def test_attributes_of_classes_exist(page: Path) -> None:
    missing = []
    for phrase in phrases(page):
        for name, attribute in re.findall(r"(?<![\w.])([A-Z]\w+)\.([a-z_]\w*)", phrase):
            if name in FOREIGN:
                continue
            if not any(has(kind, attribute) for kind in classes().get(name, [])):
                missing.append(f"{name}.{attribute}")
    assert missing == []


@every_page
def test_attributes_of_objects_exist(page: Path) -> None:
    missing = []
    for phrase in phrases(page):
        for name, attribute in re.findall(r"(?<![\w./])([a-z]+)\.([a-z_]\w*)", phrase):
            kinds = subclasses(CALLED[name]) if name in CALLED and attribute != "py" else []
            if kinds and not any(has(kind, attribute) for kind in kinds):
                missing.append(f"{name}.{attribute}")
    assert missing == []


@every_page
def test_names_of_the_library_can_be_imported(page: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dotted in set(re.findall(r"(?<![\w.])br\.([A-Za-z_][\w.]*\w)", page.read_text())):
            value: Any = bayesrule
            for part in dotted.split("."):
                value = getattr(value, part, None) or importlib.import_module(
                    f"{value.__name__}.{part}"
                )


def parts_of_the_table() -> list[str]:
    """The classes in the table of the four choices."""
    rows = (ROOT / "docs" / "architecture.md").read_text().split("## The tree")[0].splitlines()
    cells = [
        row.split("|")[3:5] for row in rows if row.startswith("| w") or row.startswith("| how")
    ]
    return re.findall(r"`(\w+)`", " ".join(cell for row in cells for cell in row))


def test_the_table_of_choices_names_classes() -> None:
    names = parts_of_the_table()
    assert len(names) > 30
    assert [name for name in names if name not in classes()] == []


def test_the_tree_names_every_folder_and_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.split("## The tree")[1].split("```")[1]
    # Each line begins with what it is about.
    heads = re.findall(r"^(?:\w+(?:/|\.py) +)+", tree, flags=re.MULTILINE)
    shown = {word.rstrip("/") for head in heads for word in head.split()}
    top = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    assert shown == top - {"py.typed"}


def test_what_is_not_there_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`rules/nowhere.py`, `Learner.jump`, `state.nothing` and `rules/natural.py`")
    assert files(page) == ["rules/nowhere.py", "rules/natural.py"]
    with pytest.raises(AssertionError, match=r"nowhere\.py"):
        test_files_and_folders_exist(page)
    with pytest.raises(AssertionError, match=r"Learner\.jump"):
        test_attributes_of_classes_exist(page)
    with pytest.raises(AssertionError, match=r"state\.nothing"):
        test_attributes_of_objects_exist(page)
