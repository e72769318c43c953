"""Imports point down only, and importing the library is cheap."""

import ast
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import bayesrule
from bayesrule import _renamed

ROOT = Path(bayesrule.__file__).parent

# The folders from the bottom to the top; those of one line do not need each other.
FOLDERS: list[set[str]] = [
    {"_starting", "schedules", "types"},
    {"tensors"},
    {"families", "matrices", "moments"},
    {"posteriors"},
    {"likelihoods", "expectations"},
    {"curvature"},
    {"rules"},
    {"learner"},
    {"predicting"},
    {"methods"},
    {"execution"},
    {"training"},
    {"explore", "graphical", "hmc", "optim", "sequences"},
    {"app", "integrations"},
    {"__main__", "_renamed", "sklearn"},
]
RANK = {name: rank for rank, layer in enumerate(FOLDERS) for name in layer}
FACADE = "__init__"
HEAVY = {"pandas", "sklearn", "scipy", "matplotlib", "tqdm", "joblib", "safetensors", "pyarrow"}
HEAVY |= {"transformers", "accelerate", "peft", "lightning"}
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]
MODULES = {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES}


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _runtime_nodes(child)


def _imported(path: Path) -> set[str]:
    """Top-level modules of the library that a file imports, at any depth of its code."""
    names: set[str] = set()
    for node in _runtime_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = node.module.split(".")
            if parts == ["bayesrule"]:
                wanted = {alias.name for alias in node.names} - {"__version__"}
                names |= {name if name in MODULES else FACADE for name in wanted}
            elif parts[0] == "bayesrule":
                names.add(parts[1])
        elif isinstance(node, ast.Import):
            found = [alias.name.split(".") for alias in node.names]
            names |= {(p[1:] or [FACADE])[0] for p in found if p[0] == "bayesrule"}
    return names


def _name(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = _name(path)
    others = _imported(path) - {own}
    # The version and the list of all names are the facade's own.
    upward = {name for name in others - {FACADE} if RANK[name] >= RANK[own]}
    assert not upward, f"{own} must not import {', '.join(sorted(upward))}"


def test_every_folder_has_a_rank() -> None:
    assert RANK.keys() == MODULES


def test_few_modules_stand_at_the_top() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 8


def test_no_two_modules_need_each_other() -> None:
    needs: dict[str, set[str]] = {name: set() for name in MODULES}
    for path in FILES:
        needs[_name(path)] |= (_imported(path) & MODULES) - {_name(path)}
    try:
        tuple(TopologicalSorter(needs).static_order())
    except CycleError as circle:
        pytest.fail(f"circle of imports: {' → '.join(circle.args[1])}")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_imports_stay_in_their_folder(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert max(levels, default=0) <= (len(path.relative_to(ROOT).parts) > 1)


def test_an_upward_import_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "types.py"
    file.write_text("def f():\n    from bayesrule.learner import Learner\n")
    assert _imported(file) == {"learner"}
    file.write_text("if TYPE_CHECKING:\n    from bayesrule.learner import Learner\n")
    assert _imported(file) == set()


def _fresh(code: str, **variables: str) -> str:
    """What code prints in a process of its own, with compiled files kept where they are asked."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, **variables},
    )
    return done.stdout.strip()


def test_importing_loads_nothing_optional() -> None:
    # Compared with torch alone: what torch itself drags in is not ours to avoid.
    loaded = "import sys; print(' '.join({n.split('.')[0] for n in sys.modules}))"
    torch = set(_fresh(f"import torch, numpy; {loaded}").split())
    ours = set(_fresh(f"import bayesrule; {loaded}").split())
    assert not (ours - torch) & HEAVY


def test_importing_takes_little_longer_than_torch(tmp_path: Path) -> None:
    # Time of the processor: what else a machine does at that moment is not ours to avoid.
    clock = (
        "import time; import torch; begun = time.process_time(); import bayesrule; "
        "print(time.process_time() - begun)"
    )
    times = [float(_fresh(clock, PYTHONPYCACHEPREFIX=str(tmp_path))) for _ in range(4)]
    # The first compiles; 0.22 s on a quiet machine, and tests run beside each other.
    assert statistics.median(times[1:]) < 0.4


def test_the_facade_is_small() -> None:
    assert len(dir(bayesrule)) <= 70
    assert set(bayesrule.__all__) <= set(dir(bayesrule))


@pytest.mark.parametrize("name", sorted([*_renamed._PLACES, "Noisy", "Subset"]))
def test_names_of_the_version_before_work_and_warn(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"bayesrule.{name}"):
        assert getattr(bayesrule, name) is not None


def test_names_that_never_were_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bayesrule.nonsense  # noqa: B018
