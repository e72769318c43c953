"""What `make dist` runs where only the wheel is installed: the lines of the README, and a table.

It is run with `python -I`, so that nothing but what is installed can be imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import bayesrule

ROOT = Path(__file__).resolve().parents[1]


def check_installed() -> None:
    """The library is the installed one, whole."""
    home = Path(bayesrule.__file__).parent
    assert "site-packages" in home.parts, home
    wanted = [path.relative_to(ROOT / "src/bayesrule") for path in sources()]
    missing = [str(path) for path in wanted if not (home / path).exists()]
    assert not missing, f"The wheel lacks {', '.join(missing)}"


def sources() -> list[Path]:
    """All files that a wheel must hold."""
    kinds = {".py", ".typed", ".css", ".js", ".html"}
    files = (ROOT / "src/bayesrule").rglob("*")
    return sorted(path for path in files if path.suffix in kinds or path.name == "py.typed")


def run_readme() -> None:
    """The Python of the README."""
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        exec(compile(block, "README.md", "exec"), {})


def run_command_line() -> None:
    """A comparison of two methods on a data set inside scikit-learn, with its report."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["-I", "-m", "bayesrule", "compare", "--methods", "ridge,map", "--splits", "1"]
        words += ["--epochs", "1", "--out", folder]
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
        assert (Path(folder) / "report.html").stat().st_size > 10_000


if __name__ == "__main__":
    check_installed()
    run_readme()
    run_command_line()
    print(f"bayesrule {bayesrule.__version__} works as installed.")
