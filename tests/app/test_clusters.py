"""The snippets of docs/clusters.md, each as a person would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bayesrule

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text()
DASK, TRAIN = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def python(folder: Path, code: str, *words: str) -> str:
    """Runs a file of this code in a folder; what it prints."""
    (folder / "train.py").write_text(code)
    source = str(Path(bayesrule.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, *words, "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_comparison_on_a_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    python(tmp_path, DASK)
    assert "iris" in (tmp_path / "report.html").read_text()


def test_one_run_in_two_processes_prints_once(tmp_path: Path) -> None:
    out = python(
        tmp_path, TRAIN, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    )
    assert out.count("tensor(") == 1
    assert (tmp_path / "run" / "final.safetensors").is_file()
    # Alone, the same file goes on with the run that the two have finished, and says the same.
    assert python(tmp_path, TRAIN) == out
