"""How many of the known minima `find_minima` finds in one run, by seed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.explore import Minima
from benchmarks.beyond.functions import HIMMELBLAU, divergence, himmelblau, star

COMPONENTS = 10
LARGEST_DIVERGENCE = 0.05
# The share of seeds that have to find everything.
BAR = 0.9
_NEAR = 1e-2


def run(seeds: int, progress: Callable[[str], None] = print) -> dict[str, Any]:
    """Both functions with all seeds."""
    results = []
    for seed in range(seeds):
        results += [_star(seed), _himmelblau(seed)]
        progress(f"seed {seed}: {results[-2]['found']} of 5 arms, {results[-1]['found']} of 4")
    return {
        "task": "minima",
        "components": COMPONENTS,
        "seeds": seeds,
        "results": results,
        "versions": versions(),
        "machine": machine(),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether enough seeds found everything."""
    for name in ("star", "himmelblau"):
        rows = [one for one in result["results"] if one["function"] == name]
        whole = [
            one["found"] == one["known"] and one.get("divergence", 0.0) < LARGEST_DIVERGENCE
            for one in rows
        ]
        if sum(whole) < BAR * len(rows):
            return False
    return True


def _star(seed: int) -> dict[str, Any]:
    target = star()

    def surprise(x: Tensor) -> Tensor:
        return -target.log_prob(x)

    found, seconds = _timed(surprise, seed, temperature=1.0)
    row = _row("star", seed, found, target.means, seconds)
    return {**row, "divergence": divergence(found.mixture, target)}


def _himmelblau(seed: int) -> dict[str, Any]:
    found, seconds = _timed(himmelblau, seed)
    return _row("himmelblau", seed, found, HIMMELBLAU, seconds)


def _timed(function: Callable[[Tensor], Tensor], seed: int, **options: Any) -> tuple[Minima, float]:
    begun = time.perf_counter()
    found = br.find_minima(function, dim=2, components=COMPONENTS, seed=seed, **options)
    return found, time.perf_counter() - begun


def _row(name: str, seed: int, found: Minima, known: Tensor, seconds: float) -> dict[str, Any]:
    near = torch.cdist(known, found.minima).amin(1) < _NEAR
    return {
        "function": name,
        "seed": seed,
        "known": len(known),
        "found": int(near.sum()),
        "minima": len(found),
        "seconds": round(seconds, 2),
    }
