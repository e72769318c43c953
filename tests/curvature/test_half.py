"""Under autocast derivatives are those of full precision, however many data a batch stands for."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import Here
from bayesrule.methods import METHODS, find
from bayesrule.tensors import tree, vectors

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3
# A learner whose weights stand in for themselves cannot be followed under autocast.
PLAIN = ("adam", "map", "vogn", "ivon", "mean_field", "noisy_adam", "noisy_full", "ogn", "rmsprop")


def learner(name: str, num_data: int, dtype: torch.dtype = torch.float32) -> br.Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)
        model = nn.Linear(5, 3) if name in ("newton", "ridge") else nn.Sequential(*layers)
    return find(name)(model.to(dtype), br.CategoricalLikelihood(), num_data=num_data)


def stepped(name: str, num_data: int, half: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """The loss of a step, and what it moved the weights by."""
    made = learner(name, num_data)
    state = made.init()
    context: Any = contextlib.nullcontext() if half is None else torch.autocast("cpu", half)
    with context:
        new, info = made.step(state, (X, LABELS))
    moved = vectors.add(new.posterior.mean, state.posterior.mean, alpha=-1.0)
    return info.loss, torch.cat([value.flatten() for value in moved.values()])


@pytest.mark.parametrize("num_data", [12, 100_000_000])
@pytest.mark.parametrize(("half", "error"), [(torch.bfloat16, 0.05), (torch.float16, 0.01)])
@pytest.mark.parametrize("name", PLAIN)
def test_steps_in_half_precision_are_near_those_in_full(
    name: str, half: torch.dtype, error: float, num_data: int
) -> None:
    (loss, moved), (near, found) = stepped(name, num_data, None), stepped(name, num_data, half)
    assert float((near - loss).abs()) < error * float(loss)
    assert found.isfinite().all()
    # Adam divides by the size of a gradient, and so may turn the sign of one that is nearly zero.
    bound = 0.3 if name in ("adam", "map", "rmsprop", "mean_field") else 3 * error
    assert float((found - moved).norm()) < bound * float(moved.norm())


@pytest.mark.parametrize("name", METHODS)
def test_sums_are_as_many_times_as_large_as_their_scale(name: str) -> None:
    made = learner(name, 1200, torch.float64)
    state, batch = made.init(), (X.double(), LABELS)
    structure = made.rule.structure(made.family)
    found = []
    for scaled in (True, False):
        problem = made.problem(state, batch)
        point = next(made.expectation.points(state.posterior, problem.draws))
        here = Here(point, structure, state.posterior)
        if scaled or not made.curvature.whole_data:
            found.append(made.curvature.local(problem, here))
            continue
        plain = dataclasses.replace(problem, weight=problem.count * problem.num_points)
        assert plain.scale == 1.0
        found.append(made.curvature.local(plain, here).times(problem.scale))
    for kind in ("gradient", "curvature", "statistics"):
        one, two = (tree.tensors({"": getattr(local, kind)}) for local in found)
        for key, value in one.items():
            torch.testing.assert_close(two[key], value, rtol=1e-10, atol=1e-12)
