"""Mixtures find the modes of posteriors that are known on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from exact import DTYPE, close, randn
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

import bayesrule as br
from bayesrule.curvature import GGN, Curvature, Hessian, PerExample, Price
from bayesrule.matrices import Dense, Diagonal
from bayesrule.posteriors import Gaussian, GaussianFamily, GaussianPrior, MixtureFamily, PerGroup
from bayesrule.rules import Natural

ONE = {"w": torch.zeros(1, dtype=DTYPE)}
LINE = torch.linspace(-9.0, 9.0, 5_001, dtype=DTYPE).unsqueeze(1)
STEP = float(LINE[1] - LINE[0])
TARGETS = 2.0 + randn(5, 1, seed=5)


class Shape(nn.Module):
    """A module whose output is the same function of its weights for every input."""

    def __init__(self, function: Callable[[Tensor], Tensor], *start: float) -> None:
        super().__init__()
        self.w, self.function = nn.Parameter(torch.tensor(start, dtype=DTYPE)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.w).expand(len(x), 1)


def square(w: Tensor) -> Tensor:
    return (w.square() + 0.3 * w).sum(-1, keepdim=True)


def cubic(w: Tensor) -> Tensor:
    return w**3 - 3.0 * w + 0.3 * w**2


def both(w: Tensor) -> Tensor:
    """Two weights, four modes of unequal size: of each both signs fit."""
    first, second = w[..., :1], w[..., 1:]
    return torch.cat([first.square() + 0.2 * first, second.square() - 0.1 * second], dim=-1)


class Pair(Shape):
    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.w).expand(len(x), 2)


def learned(
    model: Shape,
    y: Tensor,
    curvature: Curvature,
    family: Any,
    steps: int = 700,
    draws: int = 4,
    prior: Any = GaussianPrior(0.5),  # noqa: B008
) -> Any:
    learning_rate = br.schedules.cosine(0.08, steps, warmup=50, final=0.01)
    rate = br.schedules.cosine(0.03, steps, warmup=50, final=0.005)
    learner = br.Learner(
        model,
        br.GaussianLikelihood(noise=1.0),
        num_data=len(y),
        posterior=family,
        expectation=br.Draws(draws),
        curvature=curvature,
        rule=Natural(learning_rate, rate, retract=True),
        prior=prior,
    )
    state, x = learner.init(seed=1), torch.zeros(len(y), 1, dtype=DTYPE)
    for _ in range(steps):
        state, _ = learner.step(state, (x, y), donate=True)
    return state.posterior


def on_grid(model: Shape, y: Tensor, points: Tensor, volume: float) -> Tensor:
    """The log posterior density at points (G, P)."""
    outputs = model.function(points)
    fit = -0.5 * (outputs.unsqueeze(1) - y).square().sum((1, 2))
    joint = fit - 0.25 * points.square().sum(1)
    return joint.log_softmax(0) - math.log(volume)


def log_density(q: Any, points: Tensor) -> Tensor:
    if isinstance(q, Gaussian):
        variance = q.variance()["w"]
        return Normal(q.mean["w"], variance.sqrt()).log_prob(points).sum(1)
    parts = Independent(Normal(q.means["w"], q.precision.values["w"].rsqrt()), 1)
    return MixtureSameFamily(Categorical(logits=q.logits), parts).log_prob(points)


@cache
def square_case(curvature: Curvature) -> tuple[Any, Tensor, Tensor]:
    """The belief learned with two components, its log density and the posterior's on a line."""
    model = Shape(square, 0.3)
    q = learned(model, TARGETS, curvature, MixtureFamily(2))
    return q, log_density(q, LINE), on_grid(model, TARGETS, LINE, STEP)


def divergence(log_q: Tensor, log_p: Tensor, volume: float) -> float:
    return float((log_q.exp() * (log_q - log_p)).sum() * volume)


@pytest.mark.parametrize("curvature", [Price(), Hessian()], ids=repr)
def test_two_modes_are_those_of_the_grid(curvature: Curvature) -> None:
    q, log_q, log_p = square_case(curvature)
    volume = STEP
    order = q.means["w"][:, 0].argsort()
    for k, side in zip(order.tolist(), (LINE[:, 0] < -0.15, LINE[:, 0] > -0.15), strict=True):
        mass = float(log_p.exp()[side].sum() * volume)
        mean = float((log_p.exp() * LINE[:, 0])[side].sum() * volume) / mass
        spread = (log_p.exp() * (LINE[:, 0] - mean) ** 2)[side].sum() * volume / mass
        assert abs(float(q.weights[k]) - mass) < 0.03
        assert abs(float(q.means["w"][k, 0]) - mean) < 0.05
        assert abs(float(q.precision.values["w"][k, 0] * spread) - 1.0) < 0.3
    assert divergence(log_q, log_p, volume) < 0.04


def test_one_gaussian_is_much_farther_from_two_modes() -> None:
    model = Shape(square, 0.3)
    q = learned(model, TARGETS, Price(), GaussianFamily(Diagonal()), draws=2)
    alone = divergence(log_density(q, LINE), square_case(Price())[2], STEP)
    assert alone > 0.5 > 10.0 * divergence(*square_case(Price())[1:], STEP)


def test_squares_of_examples_find_the_modes() -> None:
    """They are no Hessian, so widths are not those of the posterior; places and masses are."""
    q, _, log_p = square_case(PerExample())
    right = float(log_p.exp()[LINE[:, 0] > -0.15].sum() * STEP)
    order = q.means["w"][:, 0].argsort()
    close(q.means["w"][order, 0], torch.tensor([-1.43, 1.13], dtype=DTYPE), 0.08)
    assert abs(float(q.weights[order[1]]) - right) < 0.15


@pytest.mark.parametrize("curvature", [Price(), Hessian()], ids=repr)
def test_modes_learned_from_two_parts_of_the_data(curvature: Curvature) -> None:
    """The mixture of the first part is the prior of the second: continual learning."""
    model = Shape(square, 0.3)
    earlier = learned(model, TARGETS[:2], curvature, MixtureFamily(2))
    later = learned(model, TARGETS[2:], curvature, MixtureFamily(2), prior=earlier)
    log_p = square_case(Price())[2]
    assert divergence(log_density(later, LINE), log_p, STEP) < 0.1
    # Without the first part it is another belief.
    alone = learned(model, TARGETS[2:], curvature, MixtureFamily(2))
    assert divergence(log_density(alone, LINE), log_p, STEP) > 0.15


def test_modes_of_unequal_mass() -> None:
    """Three components for a wide mode and a narrow one of a tenth of the mass."""
    model = Shape(cubic, 0.0)
    y = 1.5 + 0.8 * randn(5, 1, seed=6)
    q = learned(model, y, Price(), MixtureFamily(3, spread=1.5))
    log_p = on_grid(model, y, LINE, STEP)
    right = LINE[:, 0] > 0.5
    wanted, found = (float(one.exp()[right].sum() * STEP) for one in (log_p, log_density(q, LINE)))
    assert 0.02 < wanted < 0.3
    assert abs(found - wanted) < 0.05


def test_four_modes_of_two_weights() -> None:
    model = Pair(both, 0.2, -0.1)
    y = torch.tensor([1.5, 2.0], dtype=DTYPE) + randn(6, 2, seed=7)
    q = learned(model, y, Price(), MixtureFamily(8, spread=1.2))
    axis = torch.linspace(-4.0, 4.0, 201, dtype=DTYPE)
    points, volume = torch.cartesian_prod(axis, axis), 0.04**2
    log_p, log_q = on_grid(model, y, points, volume), log_density(q, points)
    for signs in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        inside = (points.sign() == torch.tensor(signs)).all(1)
        wanted, found = (float(one.exp()[inside].sum() * volume) for one in (log_p, log_q))
        assert abs(found - wanted) < 0.06, signs
    assert divergence(log_q, log_p, volume) < 0.15


@pytest.mark.parametrize("rate", [0.1, 1.0, 30.0])
def test_precisions_stay_positive_for_any_step(rate: float) -> None:
    learner = br.Learner(
        Shape(cubic, 0.0),
        br.GaussianLikelihood(noise=1.0),
        num_data=5,
        posterior=MixtureFamily(3),
        expectation=br.Draws(1),
        curvature=Price(),
        rule=Natural(1e-3, rate, retract=True),
    )
    state, x = learner.init(), torch.zeros(5, 1, dtype=DTYPE)
    for _ in range(30):
        state, _ = learner.step(state, (x, TARGETS))
        values = state.posterior.precision.values["w"]  # type: ignore[attr-defined]
        assert bool((values > 0).all() and values.isfinite().all())


def test_what_does_not_fit_is_refused() -> None:
    parts: dict[str, Any] = {
        "num_data": 5,
        "posterior": MixtureFamily(2),
        "expectation": br.Draws(1),
        "curvature": Price(),
        "rule": Natural(0.1, 0.1, retract=True),
    }

    def build(**changes: Any) -> br.Learner:
        return br.Learner(Shape(square, 0.3), br.GaussianLikelihood(), **(parts | changes))

    assert build().prior_precision == 1.0
    with pytest.raises(ValueError, match=r"use Natural\(retract=True\)"):
        build(rule=Natural(0.1, 0.1))
    with pytest.raises(TypeError, match=r"learned at draws of the whole posterior; use Draws\(1\)"):
        build(expectation=br.AtMean(), curvature=GGN())
    with pytest.raises(TypeError, match="final curvature becomes the precision"):
        build(final_curvature=GGN())
    with pytest.raises(TypeError, match=r"not part of a PerGroup\(\), got MixtureFamily"):
        PerGroup({"*": MixtureFamily(2)})
    with pytest.raises(ValueError, match=r"got 0, 1\.0 and 1\.0"):
        MixtureFamily(0)
    dense = GaussianFamily(Dense()).init(ONE, weight=1.0, prior=1.0)
    with pytest.raises(TypeError, match="use a posterior of the same structure"):
        build(prior=dense)
