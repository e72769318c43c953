"""The cost of a step, relative to that in an older source tree."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrule.app.data.errors import nearest
from bayesrule.app.provenance import machine, versions
from bayesrule.execution.memory import ENVIRONMENT
from bayesrule.methods import METHODS, find

TITLES = {
    "mlp": "MLP 784-400-400-10, batch 128",
    "cnn": "four residual blocks, width 16, batch 32",
    "small": "MLP 13-50-1, batch 32",
    "many": "an epoch of 20 nets 13-50-1 at once, 200 rows each, batch 10",
}
"""What is timed: training steps, except for `many`, where it is an epoch."""
TORCH = "torch"
"""A step of torch.optim.Adam, whose ratio would be 1 on a machine without noise."""
MANY = ("vogn", "mean_field", "noisy_kfac")
HERE = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("version_steps.py")
Timed = dict[str, Any]


def check(before: Path, cases: Sequence[str], methods: Sequence[str] | None) -> None:
    """Refuses unknown names before the first step is timed."""
    if not (before / "src" / "bayesrule" / "__init__.py").is_file():
        raise ValueError(
            f"'{before}' has no src/bayesrule: --before takes the folder of a whole checkout, such "
            "as `git worktree add FOLDER COMMIT` makes."
        )
    for name in cases:
        if name not in TITLES:
            raise ValueError(
                f"Unknown case {name!r}.{nearest(name, TITLES)} Cases: {', '.join(TITLES)}."
            )
    for name in methods or ():
        find(name)


def run(
    before: Path,
    cases: Sequence[str] = tuple(TITLES),
    methods: Sequence[str] | None = None,
    *,
    rounds: int = 5,
    processes: int = 3,
    threads: int = 2,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times both trees in processes that alternate; a ratio is of medians over processes.

    The memory layout of a process slows some steps down for its whole life, and the machine
    drifts: so both trees have the same number of processes, in the order old new, new old, ....
    """
    trees = {"before": before.resolve(), "after": HERE}
    plan = {"cases": _methods_of(cases, methods), "rounds": rounds, "threads": threads}
    timed: dict[str, list[Timed]] = {name: [] for name in trees}
    for number in range(processes):
        for name in list(trees) if number % 2 == 0 else list(trees)[::-1]:
            progress(f"process {number + 1} of {processes}: {name}, {trees[name]}")
            timed[name].append(_timed(trees[name], plan))
    return {
        "benchmark": "versions",
        "rounds": rounds,
        "processes": processes,
        "threads": threads,
        "commits": {name: _commit(folder) for name, folder in trees.items()},
        "results": compared(timed["before"], timed["after"]),
        "missing": {name: each[0]["missing"] for name, each in timed.items()},
        "versions": versions(),
        "machine": machine(),
    }


def _methods_of(cases: Sequence[str], methods: Sequence[str] | None) -> dict[str, list[str]]:
    """The methods timed in each case: torch's Adam, and by default all methods."""
    names = list(METHODS) if methods is None else [find(name).__name__ for name in methods]
    return {
        case: [name for name in MANY if name in names] if case == "many" else [TORCH, *names]
        for case in cases
    }


def _timed(tree: Path, plan: Mapping[str, Any]) -> Timed:
    """The timings of one process that imports the tree's own source."""
    environment = {
        **os.environ,
        **ENVIRONMENT,
        "OMP_NUM_THREADS": str(plan["threads"]),
        "PYTHONPATH": str(tree / "src"),
    }
    # -P: modules beside the script must not shadow others of the same name.
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), json.dumps(plan)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"The steps of {tree} could not be timed: {done.stderr.strip()[-500:]}")
    found: Timed = json.loads(done.stdout.splitlines()[-1])
    if Path(found["source"]) != tree / "src":
        raise RuntimeError(f"Python imported bayesrule from {found['source']}, not from {tree}.")
    return found


def compared(before: Sequence[Timed], after: Sequence[Timed]) -> list[dict[str, Any]]:
    """Medians of both trees over processes and their ratio, for what both could time.

    `ratios` has the ratio of each pair of processes: their spread says how much is noise.
    """
    both = [name for name in before[0]["milliseconds"] if name in after[0]["milliseconds"]]
    rows = []
    for name in both:
        old, new = ([one["milliseconds"][name] for one in tree] for tree in (before, after))
        case, method = name.split()
        rows.append(
            {
                "case": case,
                "method": method,
                "before_milliseconds": statistics.median(old),
                "after_milliseconds": statistics.median(new),
                "ratio": statistics.median(new) / statistics.median(old),
                "ratios": [b / a for a, b in zip(old, new, strict=True)],
            }
        )
    return rows


def _commit(tree: Path) -> str:
    """The commit of a tree; unknown if it is not a git checkout."""
    words = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
