"""Modules, first beliefs and single steps for the exact tests of moment propagation."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import Gaussian
from bayesrule.rules import Conditioning
from bayesrule.types import State

from . import equations

NOISE = 0.5
# So wide that they never bind.
FREE = Conditioning(reach=1e9, largest_share=1.0 - 1e-9, second_look=0.0)

RELUS: dict[type[equations.TangentReLU], br.moments.Activations] = {
    equations.TangentReLU: br.moments.LocallyLinear(),
    equations.MatchedReLU: br.moments.MomentMatched(),
}


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mlp() -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)
    )


def cnn() -> nn.Sequential:
    """Two convolutions with pooling, and two dense layers, for images of 8 × 8."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.ReLU(),
        nn.Linear(5, 2),
    )


def learner_of(model: nn.Module, relu: type[equations.TangentReLU], **options: Any) -> Learner:
    """TAGI with known noise and, unless told otherwise, no bounds on its steps."""
    likelihood = br.GaussianLikelihood(noise=NOISE)
    given = {"num_data": 100, "rule": FREE, "activations": RELUS[relu], **options}
    return br.tagi(model, likelihood, **given)


def uneven(state: State, gain: float = 1.0) -> State:
    """The state with variances that differ from weight to weight."""
    generator = torch.Generator().manual_seed(5)
    precision = {
        name: (1.0 / (gain * v * (0.5 + torch.rand(v.shape, generator=generator))))
        for name, v in state.posterior.variance().items()
    }
    belief = Gaussian(state.posterior.mean, DiagonalMatrix(precision))
    return dataclasses.replace(state, posterior=belief)


def belief_of(state: State) -> equations.Belief:
    """Means and variances by name."""
    variance = state.posterior.variance()
    return {k: (v.clone(), variance[k].clone()) for k, v in state.posterior.mean.items()}


def written_out(
    model: nn.Sequential, belief: equations.Belief, relu: type[equations.TangentReLU]
) -> list[equations.Layer]:
    """The layers of a module in the equations of TAGI."""
    return [_written(module, i, belief, relu) for i, module in enumerate(model)]


def _written(
    module: nn.Module, place: int, belief: equations.Belief, relu: type[equations.TangentReLU]
) -> equations.Layer:
    own = {k: belief[f"{place}.{k}"] for k, _ in module.named_parameters()}
    if isinstance(module, nn.Conv2d):
        return equations.Patches(own, kernel=5, padding=2)
    if isinstance(module, nn.Linear):
        return equations.Dense(own)
    plain = {nn.ReLU: relu, nn.AvgPool2d: equations.Pool, nn.Flatten: equations.Flat}
    return plain[type(module)]()


def assert_same(found: equations.Belief, expected: equations.Belief, tol: float = 1e-10) -> None:
    """Means and variances agree; those of variances relative to their size."""
    assert found.keys() == expected.keys()
    for name, (mean, variance) in expected.items():
        torch.testing.assert_close(found[name][0], mean, rtol=tol, atol=tol, msg=name)
        torch.testing.assert_close(found[name][1], variance, rtol=tol, atol=0.0, msg=name)
