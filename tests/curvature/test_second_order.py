"""Variational Laplace: its objective and gradient against enumeration and finite differences."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from exact import DTYPE, randn
from torch import Generator, Tensor, nn
from torch.testing import assert_close

from bayesrule import (
    BernoulliLikelihood,
    CategoricalLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    Learner,
    smooth,
    variational_laplace,
)
from bayesrule.curvature import Here, Problem, SecondOrder
from bayesrule.likelihoods import Likelihood, OneHotLikelihood
from bayesrule.matrices import Diagonal
from bayesrule.posteriors import MeanField, StdSlope
from bayesrule.tensors.network import Network
from bayesrule.types import Local, Params

SCALE = 2.5


def _net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Softplus(), nn.Linear(3, outputs)).to(DTYPE)


class _Fixed(CategoricalLikelihood):
    """Draws the targets that it is told to draw."""

    drawn: Tensor

    def sample(self, outputs: Tensor, noise: Params, generator: Generator) -> Tensor:
        return self.drawn


def _problem(net: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor) -> Problem:
    noise = likelihood.init(x)
    source = torch.Generator().manual_seed(0)
    return Problem(Network(net), likelihood, noise, {}, x, y, source, weight=SCALE)


def _variance(net: nn.Module) -> Params:
    return {k: 0.1 * randn(*v.shape, seed=7).exp() for k, v in net.named_parameters()}


def _belief(params: Params, variance: Params) -> MeanField:
    return MeanField(params, {k: 0.5 * v.log() for k, v in variance.items()})


def _local(problem: Problem, params: Params, variance: Params, exact: bool) -> Local:
    belief = _belief(params, variance)
    return SecondOrder(exact).local(problem, Here(belief.at_mean(), Diagonal(), belief))


def _slope(function: Callable[[Params], Tensor], params: Params, step: float = 1e-5) -> Params:
    """Central differences of a scalar function."""
    found = {}
    for name, value in params.items():
        slope = torch.zeros_like(value)
        for place in itertools.product(*map(range, value.shape)):
            ends = []
            for sign in (1.0, -1.0):
                moved = {k: v.clone() for k, v in params.items()}
                moved[name][place] += sign * step
                ends.append(function(moved))
            slope[place] = (ends[0] - ends[1]) / (2.0 * step)
        found[name] = slope
    return found


def _params(net: nn.Module) -> Params:
    return {k: v.detach() for k, v in net.named_parameters()}


def _gradient(net: nn.Module, params: Params, problem: Problem, targets: Tensor) -> Params:
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    outputs = torch.func.functional_call(net, leaves, (problem.x,))
    found = torch.autograd.grad(problem.nll(outputs, targets), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def _weighted(variance: Params, squares: Params) -> Tensor:
    return torch.stack([(variance[k] * squares[k]).sum() for k in variance]).sum()


def test_sampled_objective_and_gradient_with_the_targets_held_fixed() -> None:
    net, x, y = _net(), randn(4, 2, seed=1), torch.tensor([0, 2, 1, 1])
    likelihood = _Fixed()
    likelihood.drawn = torch.tensor([1, 2, 0, 1])
    problem, params, variance = _problem(net, likelihood, x, y), _params(net), _variance(net)
    found = _local(problem, params, variance, exact=False)

    def objective(given: Params) -> Tensor:
        score = _gradient(net, given, problem, likelihood.drawn)
        price = _weighted(variance, {k: v.square() for k, v in score.items()})
        outputs = torch.func.functional_call(net, given, (x,))
        return SCALE * (problem.nll(outputs, y) + 0.5 * price)

    wanted = _slope(objective, params)
    score = _gradient(net, params, problem, likelihood.drawn)
    assert isinstance(found.curvature, StdSlope)
    for name in params:
        assert_close(found.gradient[name], wanted[name], rtol=1e-6, atol=1e-7)
        slope = SCALE * variance[name].sqrt() * score[name].square()
        assert_close(found.curvature.values[name], slope)
    outputs = torch.func.functional_call(net, params, (x,))
    assert_close(found.loss, problem.nll(outputs, y))


def test_a_difference_of_gradients_comes_close() -> None:
    net, x, y = _net(), randn(4, 2, seed=1), torch.tensor([0, 2, 1, 1])
    likelihood = _Fixed()
    likelihood.drawn = torch.tensor([1, 2, 0, 1])
    problem, params, variance = _problem(net, likelihood, x, y), _params(net), _variance(net)
    belief = _belief(params, variance)
    wanted = _local(problem, params, variance, exact=False)
    assert isinstance(wanted.curvature, StdSlope)
    for size in (1e-2, 1e-4, 1e-6):
        curvature = SecondOrder(difference=size)
        found = curvature.local(problem, Here(belief.at_mean(), Diagonal(), belief))
        assert isinstance(found.curvature, StdSlope)
        for name in params:
            error = (found.gradient[name] - wanted.gradient[name]).abs().max()
            assert error < 100.0 * size * wanted.gradient[name].abs().max()
            assert_close(found.curvature.values[name], wanted.curvature.values[name])


def test_a_difference_keeps_its_digits_under_autocast() -> None:
    net, x, y = _net().float(), randn(4, 2, seed=1).float(), torch.tensor([0, 2, 1, 1])
    likelihood = _Fixed()
    params, variance = _params(net), {k: v.float() for k, v in _variance(net).items()}
    belief = _belief(params, variance)

    def gradient(half: bool, share: float) -> Params:
        likelihood.drawn = torch.tensor([1, 2, 0, 1])[: round(share * len(y))]
        problem = _problem(net, likelihood, x, y)
        curvature = SecondOrder(difference=1e-3, share=share)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return curvature.local(problem, Here(belief.at_mean(), Diagonal(), belief)).gradient

    for name, value in gradient(half=False, share=1.0).items():
        assert_close(gradient(half=True, share=1.0)[name], value, rtol=0.0, atol=0.0)
    # The loss of the whole batch is free to be rounded.
    rounded, plain = gradient(half=True, share=0.5), gradient(half=False, share=0.5)
    assert any((rounded[k] != plain[k]).any() for k in plain)
    for name, value in plain.items():
        assert_close(rounded[name], value, rtol=0.03, atol=0.03 * float(value.abs().max()))


def test_a_difference_keeps_the_averages_of_one_look() -> None:
    def learner(difference: float | None) -> Learner:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 2))
        likelihood = CategoricalLikelihood()
        return variational_laplace(net.to(DTYPE), likelihood, num_data=9, difference=difference)

    batch = randn(6, 2, seed=1), torch.tensor([0, 1, 1, 0, 1, 0])
    exact, close = (each.step(each.init(), batch)[0] for each in map(learner, (None, 1e-5)))
    for name, value in exact.buffers.items():
        assert_close(close.buffers[name], value)
    for name, value in exact.posterior.mean.items():
        assert_close(close.posterior.mean[name], value, rtol=1e-3, atol=1e-5)


def test_differences_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        SecondOrder(difference=2.0)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="at most 1"):
            SecondOrder(share=share)
    with pytest.raises(ValueError, match="exact=True"):
        SecondOrder(exact=True, difference=0.1)
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 2)).to(DTYPE)
    learner = variational_laplace(net, CategoricalLikelihood(), num_data=9, difference=1e-3)
    with pytest.raises(ValueError, match=r"'1' \(Dropout\) is random"):
        learner.step(learner.init(), (randn(2, 2, seed=1), torch.tensor([0, 1])))


@pytest.mark.parametrize("difference", [None, 1e-6])
def test_a_share_of_the_batch_pays_for_the_whole(difference: float | None) -> None:
    """Loss of all four examples, price of the first two, twice."""
    net, x, y = _net(), randn(4, 2, seed=1), torch.tensor([0, 2, 1, 1])
    likelihood = _Fixed()
    likelihood.drawn = torch.tensor([1, 2])
    problem, params, variance = _problem(net, likelihood, x, y), _params(net), _variance(net)
    belief = _belief(params, variance)
    curvature = SecondOrder(difference=difference, share=0.4)
    found = curvature.local(problem, Here(belief.at_mean(), Diagonal(), belief))
    half = replace(problem, x=x[:2], y=y[:2], weight=2.0 * SCALE)
    priced = _local(half, params, variance, exact=False)
    assert isinstance(found.curvature, StdSlope)
    assert isinstance(priced.curvature, StdSlope)
    whole, part = _gradient(net, params, problem, y), _gradient(net, params, half, y[:2])
    for name in params:
        price = priced.gradient[name] - 2.0 * SCALE * part[name]
        wanted = SCALE * whole[name] + price
        assert_close(found.gradient[name], wanted, rtol=1e-4, atol=1e-5)
        assert_close(found.curvature.values[name], priced.curvature.values[name])
    assert_close(found.loss, problem.nll(torch.func.functional_call(net, params, (x,)), y))


def _fisher_diagonal(net: nn.Module, params: Params, x: Tensor) -> Params:
    """`Σ_i Σ_c p_c ∇log p_c²`, enumerated example by example and class by class."""
    total = {k: torch.zeros_like(v) for k, v in params.items()}
    for row in x:
        logits = torch.func.functional_call(net, params, (row[None],))[0]
        for c, p in enumerate(logits.softmax(-1)):

            def log_prob(given: Params, row: Tensor = row, c: int = c) -> Tensor:
                return torch.func.functional_call(net, given, (row[None],))[0].log_softmax(-1)[c]

            slope = torch.func.grad(log_prob)(params)
            total = {k: v + p * slope[k].square() for k, v in total.items()}
    return total


def test_the_expected_squared_sampled_gradient_is_the_fisher_diagonal() -> None:
    """All targets that can be drawn, weighted by their probability: no Monte Carlo."""
    net, x, y = _net(), randn(3, 2, seed=1), torch.tensor([0, 2, 1])
    likelihood = _Fixed()
    problem, params, variance = _problem(net, likelihood, x, y), _params(net), _variance(net)
    probabilities = torch.func.functional_call(net, params, (x,)).softmax(-1)
    total = {k: torch.zeros_like(v) for k, v in params.items()}
    for drawn in itertools.product(range(3), repeat=3):
        likelihood.drawn = torch.tensor(drawn)
        weight = probabilities[torch.arange(3), likelihood.drawn].prod()
        curvature = _local(problem, params, variance, exact=False).curvature
        assert isinstance(curvature, StdSlope)
        total = {k: v + weight * curvature.values[k] for k, v in total.items()}
    wanted = _fisher_diagonal(net, params, x)
    exact = _local(problem, params, variance, exact=True).curvature
    assert isinstance(exact, StdSlope)
    for name in params:
        slope = SCALE * variance[name].sqrt() * wanted[name]
        assert_close(total[name], slope, rtol=1e-10, atol=1e-12)
        assert_close(exact.values[name], slope, rtol=1e-10, atol=1e-12)


def test_the_exact_gradient_is_that_of_the_enumerated_objective() -> None:
    net, x, y = _net(), randn(3, 2, seed=1), torch.tensor([0, 2, 1])
    problem = _problem(net, CategoricalLikelihood(), x, y)
    params, variance = _params(net), _variance(net)

    def objective(given: Params) -> Tensor:
        price = _weighted(variance, _fisher_diagonal(net, given, x))
        outputs = torch.func.functional_call(net, given, (x,))
        return SCALE * (problem.nll(outputs, y) + 0.5 * price)

    found, wanted = _local(problem, params, variance, exact=True), _slope(objective, params)
    for name in params:
        assert_close(found.gradient[name], wanted[name], rtol=1e-6, atol=1e-7)


def _mean_price_gradient(net: nn.Module, likelihood: _Fixed, x: Tensor) -> Params:
    """The expected gradient of the sampled price alone, over all targets."""
    y = torch.zeros(len(x), dtype=torch.long)
    problem, params, variance = _problem(net, likelihood, x, y), _params(net), _variance(net)
    plain = _gradient(net, params, problem, y)
    probabilities = torch.func.functional_call(net, params, (x,)).softmax(-1)
    total = {k: torch.zeros_like(v) for k, v in params.items()}
    for drawn in itertools.product(range(3), repeat=len(x)):
        likelihood.drawn = torch.tensor(drawn)
        weight = probabilities[torch.arange(len(x)), likelihood.drawn].prod()
        found = _local(problem, params, variance, exact=False).gradient
        total = {k: v + weight * (found[k] - SCALE * plain[k]) for k, v in total.items()}
    return total


def test_what_the_sampled_price_leaves_out() -> None:
    """For a linear softmax model it has no gradient on average, while the exact one has."""
    torch.manual_seed(1)
    net, x = nn.Linear(2, 3).to(DTYPE), randn(2, 2, seed=1)
    mean = _mean_price_gradient(net, _Fixed(), x)
    y = torch.zeros(len(x), dtype=torch.long)
    problem = _problem(net, CategoricalLikelihood(), x, y)
    exact = _local(problem, _params(net), _variance(net), exact=True).gradient
    plain = _gradient(net, _params(net), problem, y)
    for name, value in mean.items():
        assert_close(value, torch.zeros_like(value), rtol=0.0, atol=1e-12)
        assert (exact[name] - SCALE * plain[name]).abs().max() > 1e-3


def test_for_gaussian_targets_the_sampled_price_is_right_on_average() -> None:
    net, x = _net(1), randn(2, 2, seed=1)
    likelihood = GaussianLikelihood(noise=0.7)
    problem = _problem(net, likelihood, x, randn(2, 1, seed=2))
    params, variance = _params(net), _variance(net)
    exact = _local(problem, params, variance, exact=True).gradient
    draws = [_local(problem, params, variance, exact=False).gradient for _ in range(1500)]
    for name in params:
        rows = torch.stack([draw[name] for draw in draws])
        error = rows.std(0) / len(rows) ** 0.5
        assert ((rows.mean(0) - exact[name]).abs() < 5.0 * error + 1e-9).all()


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y"),
    [
        (GaussianLikelihood(), 2, randn(4, 2, seed=3)),
        (HeteroscedasticLikelihood(), 2, randn(4, 1, seed=3)),
        (BernoulliLikelihood(), 1, torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=DTYPE)),
        (OneHotLikelihood(), 3, torch.tensor([0, 1, 2, 0])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_likelihood_that_can_be_sampled(
    likelihood: Likelihood, outputs: int, y: Tensor
) -> None:
    learner = variational_laplace(_net(outputs), likelihood, num_data=8)
    state = learner.init()
    for _ in range(3):
        state, info = learner.step(state, (randn(4, 2, seed=1), y))
    assert torch.isfinite(info.elbo)


def test_piecewise_linear_layers_are_warned_about_and_can_be_smoothed() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.LeakyReLU(), nn.Linear(3, 1)))
    with pytest.warns(UserWarning, match=r"1 \(ReLU\) and 1 more.*smooth"):
        variational_laplace(net, GaussianLikelihood(), num_data=1)
    soft = smooth(net, beta=2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variational_laplace(soft, GaussianLikelihood(), num_data=1)
    assert isinstance(net[1], nn.ReLU)
    assert repr(soft[1]) == "Softplus(beta=2.0, threshold=20.0)"
    assert [k for k, _ in soft.named_parameters()] == [k for k, _ in net.named_parameters()]
    assert isinstance(smooth(nn.ReLU()), nn.Softplus)
    with pytest.raises(ValueError, match="beta must be positive"):
        smooth(net, beta=0.0)
