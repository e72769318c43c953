"""Nets for the splits of a set trained together (`br.fit_many`) and one after another (`br.fit`).

Each round trains all nets for an epoch in both ways, in turn, and compares their predictions. Data
come from the same places as for `python -m benchmarks uci`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from benchmarks.regression import uci
from benchmarks.regression.runs import splits
from benchmarks.regression.settings import SETTINGS

METHODS = ("noisy_kfac", "noisy_tridiagonal", "mean_field", "vogn")
BAR = 8.0
Parts = list[tuple[Tensor, Tensor]]


def learners(method: str, name: str, parts: Parts) -> list[br.Learner]:
    """One for each split, in the paper's setting."""
    made = SETTINGS[method].learner
    return [made(name, x.shape[1], len(y), seed=k) for k, (x, y) in enumerate(parts)]


def together(made: list[br.Learner], parts: Parts, batch: int) -> list[br.training.Run]:
    """All in one process, a step of all nets at a time."""
    seeds = list(range(len(parts)))
    return br.fit_many(made, parts, epochs=1, batch_size=batch, seeds=seeds, progress=False)


def apart(made: list[br.Learner], parts: Parts, batch: int) -> list[br.training.Run]:
    """One net after another."""
    given: dict[str, Any] = {"epochs": 1, "batch_size": batch, "progress": False}
    pairs = zip(made, parts, strict=True)
    return [br.fit(one, part, seed=k, **given) for k, (one, part) in enumerate(pairs)]


def timed(
    train: Callable[..., list[br.training.Run]], *given: Any
) -> tuple[float, list[br.training.Run]]:
    """The seconds of a training, and its runs."""
    begun = time.perf_counter()
    runs = train(*given)
    return time.perf_counter() - begun, runs


def difference(one: list[br.training.Run], two: list[br.training.Run], parts: Parts) -> float:
    """The largest difference between the means that two trainings predict (standardised)."""
    means = [[run.predict(x, how=br.AtMean()).mean for run, (x, _) in zip(r, parts, strict=True)]
             for r in (one, two)]  # fmt: skip
    return max(float((a - b).abs().max()) for a, b in zip(*means, strict=True))


def result(method: str, name: str, parts: Parts, batch: int, rounds: int) -> dict[str, Any]:
    """Medians over rounds, both ways in turn, after a warm-up round."""
    times: dict[str, list[float]] = {"together": [], "apart": []}
    worst = 0.0
    for number in range(rounds + 1):
        first, one = timed(together, learners(method, name, parts), parts, batch)
        second, two = timed(apart, learners(method, name, parts), parts, batch)
        worst = max(worst, difference(one, two, parts))
        if number:
            times["together"].append(first)
            times["apart"].append(second)
    ratios = [b / a for a, b in zip(times["together"], times["apart"], strict=True)]
    return {
        "method": method,
        "seconds": {way: statistics.median(each) for way, each in times.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "largest_difference": worst,
    }


def run(name: str, nets: int, rounds: int) -> dict[str, Any]:
    """Times all methods on the first splits of a set."""
    parts = splits(uci.load(name, nets))
    batch = SETTINGS["noisy_kfac"].size(name, len(parts[0][1]))[1]
    return {
        "benchmark": "many",
        "set": name,
        "nets": len(parts),
        "batch_size": batch,
        "rounds": rounds,
        "bar": BAR,
        "results": [result(method, name, parts, batch, rounds) for method in METHODS],
        "versions": versions(),
        "machine": machine(),
    }
