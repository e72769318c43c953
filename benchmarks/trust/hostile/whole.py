"""All tests of a hostile user, with the machine."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from bayesrule.app.provenance import machine, versions
from benchmarks.trust.hostile import options, reading, threads

_FAULTS = ("wrong", "traceback", "unequal", "modules changed")
_READERS = ("pandas", "pyarrow", "scikit-learn")


def run(
    num_tables: int,
    num_options: int,
    rounds: int,
    *,
    first: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Tables from number `first` on, options of the command line, and threads.

    A fifth of the option tests run the command; the others only parse.
    """
    begun, tables, tried = time.perf_counter(), reading.Findings(), reading.Findings()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + num_tables):
            reading.tried(number, seed, tables, Path(folder))
            if (number + 1 - first) % 1000 == 0:
                progress(f"{number + 1 - first} tables, {len(tables.faults)} faults")
        with_work = num_options // 5
        options.grammar(num_options - with_work, seed, tried)
        if with_work:
            options.work(with_work, seed, tried, Path(folder))
        progress(f"{num_options} calls with random options, {len(tried.faults)} faults")
    counts = {
        "tables": dict(sorted((kind, dict(c)) for kind, c in tables.counts.items())),
        "options": {kind: dict(c) for kind, c in tried.counts.items()},
        "threads": threads.run(rounds, progress) if rounds else {},
    }
    return {
        "task": "hostile",
        "seed": seed,
        "number_of_tables": num_tables,
        "number_of_calls": num_options,
        "number_of_threads": threads.THREADS,
        **counts,
        "number_of_faults": sum(map(faults_in, counts.values())),
        "faults": [*tables.faults, *tried.faults],
        "seconds": math.ceil(time.perf_counter() - begun),
        "versions": {**versions(), **{name: metadata.version(name) for name in _READERS}},
        "machine": machine(),
    }


def faults_in(counts: Mapping[str, Mapping[str, int]]) -> int:
    """How many outcomes are faults.

    >>> faults_in({"csv": {"read": 5, "wrong": 1}, "npz": {"refused": 2, "traceback": 1}})
    2
    """
    return sum(found.get(fault, 0) for found in counts.values() for fault in _FAULTS)
