"""The settings of each agent that are tried on the tuning seeds: six each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from bayesrule.explore import EpsilonGreedy, Thompson
from benchmarks.explore.agents import Agent, LinearThompson, NeuralLinear, playing

Options = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """An agent: the function that makes it, the options to try, and whether it is the library's."""

    make: Callable[..., Agent]
    tries: tuple[Options, ...]
    own: bool = True


def _grid(**choices: tuple[Any, ...]) -> tuple[Options, ...]:
    """All combinations of the choices."""
    return tuple(dict(zip(choices, one, strict=True)) for one in product(*choices.values()))


def _greedy(problem: Any, seed: int, *, epsilon: float = 0.0, **options: Any) -> Agent:
    return playing(problem, seed, "map", EpsilonGreedy(epsilon), **options)


def _thompson(method: str, **fixed: Any) -> Callable[..., Agent]:
    return partial(_drawn, method=method, **fixed)


def _drawn(problem: Any, seed: int, method: str, **options: Any) -> Agent:
    return playing(problem, seed, method, Thompson(), **options)


AGENTS = {
    "linear": Entry(
        LinearThompson,
        _grid(precision=(0.25, 4.0), shape=(3.0,), rate=(3.0, 0.3, 0.03)),
        own=False,
    ),
    "neural linear": Entry(
        NeuralLinear,
        _grid(learning_rate=(3e-3, 1e-2), precision=(0.25,), rate=(3.0, 0.3, 0.03)),
        own=False,
    ),
    "greedy": Entry(_greedy, _grid(learning_rate=(1e-3, 3e-3, 1e-2), steps=(20, 60)), own=False),
    "ε-greedy": Entry(
        _greedy, _grid(learning_rate=(3e-3, 1e-2), epsilon=(0.01, 0.03, 0.1)), own=False
    ),
    "dropout": Entry(
        _thompson("dropout"),
        _grid(learning_rate=(3e-3, 1e-2), drop=(0.05, 0.2, 0.5)),
        own=False,
    ),
    "tagi": Entry(
        _thompson("tagi"),
        (
            *_grid(noise=(0.03, 0.1), steps=(5,), replay=(20, 64)),
            *_grid(noise=(0.03, 0.1), steps=(20,), replay=(64,)),
        ),
    ),
    "vogn": Entry(_thompson("vogn"), _grid(learning_rate=(0.1, 0.3), noise=(0.03, 0.1, 0.3))),
    "noisy_kfac": Entry(
        _thompson("noisy_kfac", stats_every=1, inverse_every=20),
        _grid(learning_rate=(0.02, 0.1), noise=(0.03, 0.1, 0.3)),
    ),
    "laplace": Entry(
        _thompson("laplace", last_layer=True),
        _grid(learning_rate=(3e-3, 1e-2), noise=(0.03, 0.1, 0.3)),
    ),
}
"""Agents by name: the usual ones first, then the library's."""
