"""The wheel holds the whole library, and `make dist` tries it where nothing else is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import try_wheel

ROOT = Path(__file__).resolve().parents[1]


def test_a_wheel_holds_all_files_of_the_library(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    build = "import setuptools.build_meta as b; b.build_wheel('out')"
    subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
    )
    (wheel,) = (tmp_path / "out").glob("bayesrule-*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if name.startswith("bayesrule/")}
    expected = {str(path.relative_to(ROOT / "src")) for path in try_wheel.sources()}
    assert names == expected


def test_make_dist_tries_the_wheel() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\ndist:")[1].split("\n\n")[0]
    for part in ("pip wheel", "constraints.txt", "bayesrule --help", "tests/try_wheel.py"):
        assert part in recipe
