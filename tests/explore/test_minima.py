"""Several minima in one run: the mixture's rule against closed forms, and functions that are known.

The star is a mixture of five Gaussians, means (1.5, 0) and precisions diag(1, 100) turned by
multiples of 72 degrees: five arms, each with a mode, and a sixth where all of them cross.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from exact import DTYPE, close, generator, randn
from torch import Tensor
from torch.autograd.functional import hessian
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import bayesrule as br
from bayesrule.explore import FullMixture
from bayesrule.explore.mixture_descent import derivatives, retracted
from benchmarks.beyond.functions import HIMMELBLAU, divergence, himmelblau, star


def mixture(components: int = 3, dim: int = 2, seed: int = 0) -> FullMixture:
    roots = randn(components, dim, dim, seed=seed)
    precisions = roots @ roots.mT + torch.eye(dim, dtype=DTYPE)
    means, logits = randn(components, dim, seed=seed + 1), randn(components, seed=seed + 2)
    return FullMixture(means, precisions, logits)


def reference(q: FullMixture) -> MixtureSameFamily:
    parts = MultivariateNormal(q.means, precision_matrix=q.precisions)
    return MixtureSameFamily(Categorical(logits=q.logits), parts)


def test_densities_and_slopes_are_those_of_torch() -> None:
    q, points = mixture(), randn(5, 2, seed=9)
    close(q.log_prob(points), reference(q).log_prob(points))
    first, second = q.slopes(points)
    _, slope, bend = derivatives(reference(q).log_prob, points)
    close(first, slope)
    close(second, bend)


def test_draws_are_those_of_the_components() -> None:
    q = mixture()
    draws = q.draws(40_000, generator(1))
    close(draws.mean(1), q.means)
    for k in range(3):
        close(draws[k].mT.cov(), torch.linalg.inv(q.precisions[k]), 0.02)
    assert q.draws(7, generator(1)).shape == (3, 7, 2)
    whole = q.sample(40_000, generator(2))
    close(whole.mean(0), q.weights @ q.means, 0.02)


def test_hessians_of_single_points() -> None:
    def rosenbrock(x: Tensor) -> Tensor:
        return 100.0 * (x[..., 1] - x[..., 0] ** 2) ** 2 + (1.0 - x[..., 0]) ** 2

    points = randn(4, 2, seed=3)
    values, slopes, bends = derivatives(rosenbrock, points)
    for i, point in enumerate(points):
        close(values[i], rosenbrock(point))
        close(slopes[i], torch.func.grad(rosenbrock)(point))
        close(bends[i], hessian(rosenbrock, point))


@pytest.mark.parametrize("rate", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_precisions_stay_positive_for_any_step_and_any_curvature(rate: float) -> None:
    for seed in range(20):
        precisions = mixture(4, 3, seed).precisions
        bends = 10.0 * randn(4, 3, 3, seed=seed + 7)
        bends = bends + bends.mT
        assert bool((torch.linalg.eigvalsh(bends)[:, 0] < 0).any())
        found = retracted(precisions, bends, rate)
        assert bool((torch.linalg.eigvalsh(found) > 0).all())
        solved = bends @ torch.linalg.solve(precisions, bends)
        close(found, precisions + rate * bends + 0.5 * rate**2 * solved, 1e-6 * (1.0 + rate**2))


def test_one_component_on_a_quadratic_moves_as_the_closed_form() -> None:
    """Of draws in pairs the mean gradient and Hessian of a quadratic are exact."""
    root = randn(2, 2, seed=1)
    bend, pull = root @ root.mT + torch.eye(2, dtype=DTYPE), randn(2, seed=2)
    q, rate = mixture(1), 0.01

    def quadratic(x: Tensor) -> Tensor:
        return 0.5 * torch.einsum("nd,de,ne->n", x, bend, x) - x @ pull

    new = q.moved(quadratic, rate=rate, draws=4, temperature=2.0, generator=generator(3))
    target = bend / 2.0 - q.precisions[0]
    solved = target @ torch.linalg.solve(q.precisions[0], target)
    precision = q.precisions[0] + rate * target + 0.5 * rate**2 * solved
    close(new.precisions[0], precision)
    slope = (bend @ q.means[0] - pull) / 2.0
    close(new.means[0], q.means[0] - rate * torch.linalg.solve(precision, slope))
    for _ in range(800):
        new = new.moved(quadratic, rate=0.05, draws=4, temperature=2.0, generator=generator(3))
    close(new.precisions[0], bend / 2.0, 1e-6)
    close(new.means[0], torch.linalg.solve(bend, pull), 1e-6)


def test_a_step_of_a_mixture_is_that_of_quadrature() -> None:
    """Eqs 29 and 30 and the weights' step in one dimension, expectations by integrals."""
    q, rate = mixture(2, 1, seed=5), 0.1
    line = torch.linspace(-14.0, 14.0, 40_001, dtype=DTYPE).unsqueeze(1)

    def bumpy(x: Tensor) -> Tensor:
        return 0.1 * x.square().sum(-1) + torch.sin(2.0 * x).sum(-1)

    value, slope, bend = derivatives(bumpy, line)
    first, second = q.slopes(line)
    density = q.component_log_probs(line).exp() * float(line[1] - line[0])
    expected = [
        torch.tensordot(density, total, dims=([0], [0]))
        for total in (value + q.log_prob(line), slope + first, bend + second)
    ]
    precisions = retracted(q.precisions, expected[2], rate)
    new = q.moved(bumpy, rate=rate, draws=200_000, temperature=1.0, generator=generator(4))
    close(new.precisions, precisions, 0.01)
    close(new.means, q.means - rate * expected[1] / precisions.squeeze(2), 0.01)
    wanted = (q.log_weights - rate * expected[0]).softmax(0)
    close(new.weights, wanted, 0.01)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_star_is_found_arm_by_arm(seed: int) -> None:
    target = star()
    options: dict[str, Any] = {"dim": 2, "components": 10, "seed": seed, "temperature": 1.0}
    found = br.find_minima(lambda x: -target.log_prob(x), **options)
    # The tips of the arms are as low as each other, and their crossing is lower.
    assert len(found) == 6
    assert float(torch.cdist(target.means, found.minima).amin(1).max()) < 1e-3
    close(found.minima[0], torch.zeros(2, dtype=DTYPE), 1e-6)
    assert divergence(found.mixture, target) < 0.01
    assert set(found.component_minimum.tolist()) == set(range(6))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_all_four_minima_of_himmelblau(seed: int, scale: float) -> None:
    found = br.find_minima(lambda x: scale * himmelblau(x), dim=2, components=10, seed=seed)
    assert found.minima.shape == (4, 2)
    assert float(torch.cdist(HIMMELBLAU, found.minima).amin(1).max()) < 1e-5
    close(found.values, torch.zeros(4, dtype=DTYPE), 1e-12)
    for place, bend in zip(found.minima, found.curvatures, strict=True):
        close(bend, scale * hessian(lambda x: himmelblau(x[None])[0], place))
    if scale == 1.0:
        assert repr(found).startswith("<Minima: 4 found by 10 components\n")


def test_rows_are_sorted_by_value_and_components_say_where_they_stand() -> None:
    """A double well, the right one lower by 0.6."""
    found = br.find_minima(
        lambda x: ((x**2 - 1.0) ** 2 - 0.3 * x).sum(-1), dim=1, components=5, spread=1.0, steps=300
    )
    assert len(found) == 2
    assert float(found.minima[0]) > 0 > float(found.minima[1])
    assert bool((found.values.diff() > 0).all())
    assert set(found.component_minimum.tolist()) <= {-1, 0, 1}


def test_the_search_is_where_it_is_asked_for_and_follows_from_the_seed() -> None:
    def shifted(x: Tensor) -> Tensor:
        return himmelblau(x - 50.0)

    centre = torch.full((2,), 50.0)
    options: dict[str, Any] = {"dim": 2, "components": 6, "centre": centre, "steps": 200}
    one, same, other = (br.find_minima(shifted, seed=s, **options) for s in (1, 1, 2))
    assert torch.equal(one.mixture.means, same.mixture.means)
    assert not torch.equal(one.mixture.means, other.mixture.means)
    assert bool(((one.minima - 50.0).abs() < 5.0).all())


def test_bad_calls_are_explained() -> None:
    def bowl(x: Tensor) -> Tensor:
        return x.square().sum(-1)

    with pytest.raises(ValueError, match="components is a whole number, at least 1, got 0"):
        br.find_minima(bowl, dim=2, components=0)
    with pytest.raises(ValueError, match="spread must be positive and finite, got inf"):
        br.find_minima(bowl, dim=2, spread=math.inf)
    with pytest.raises(ValueError, match=r"centre is a number or a point \(2,\), got \(3,\)"):
        br.find_minima(bowl, dim=2, centre=torch.zeros(3))
    with pytest.raises(ValueError, match=r"gave \(\)\. Sum over the last axis only"):
        br.find_minima(lambda x: x.square().sum(), dim=2)
    with pytest.raises(ValueError, match=r"use explore\.minimise"):
        br.find_minima(lambda x: x.detach().sum(-1), dim=2)
    with pytest.raises(ValueError, match="not finite at"):
        br.find_minima(lambda x: x.log().sum(-1), dim=2)
    with pytest.raises(RuntimeError, match="No component came to a minimum"):
        br.find_minima(lambda x: x.sum(-1), dim=2, steps=20)
