"""The expected loss by moment propagation: closed forms, finite differences, draws, learning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

import bayesrule as br
from bayesrule.curvature import Here, Problem
from bayesrule.likelihoods import Likelihood
from bayesrule.matrices import BlockMatrix, Diagonal, DiagonalMatrix, KnownMatrix, Matrix
from bayesrule.moments import LocallyLinear, MomentMatched
from bayesrule.posteriors import Gaussian
from bayesrule.types import Local, Params
from curvature.brute_force import problem_of

NOISE = 0.5


def variances(problem: Problem, spread: float = 0.2) -> Params:
    """A variance for each weight, around `spread` squared."""
    params = problem.network.params()
    return {k: spread**2 * (0.5 + torch.rand(v.shape)) for k, v in params.items()}


def look(problem: Problem, variance: Params | Matrix, **changes: Any) -> Local:
    """What the batch says."""
    changed = dataclasses.replace(problem, **changes)
    return expected(changed, problem.network.params(), variance, MomentMatched())


def expected(
    problem: Problem, mean: Params, variance: Params | Matrix, activations: br.moments.Activations
) -> Local:
    """The expected loss of a belief, and its derivatives."""
    if isinstance(variance, dict):
        variance = DiagonalMatrix({k: 1.0 / v for k, v in variance.items()})
    belief = Gaussian(mean, variance)
    (point,) = br.Moments(activations).points(belief, problem.targets)
    return br.curvature.ExpectedLoss().local(problem, Here(point, Diagonal(), belief))


def diagonal(local: Local) -> Params:
    """The curvature, one number for each weight that has one."""
    assert isinstance(local.curvature, DiagonalMatrix)
    return local.curvature.values


def line(num: int = 6, likelihood: Likelihood | None = None) -> Problem:
    """A linear layer with two outputs."""
    likelihood = likelihood or br.GaussianLikelihood(noise=NOISE)
    noise = likelihood.init(torch.zeros(1))
    x, y = torch.randn(num, 3), torch.randn(num, 2)
    return problem_of(nn.Linear(3, 2), x, y, likelihood, noise=noise, training=True)


def deep(activation: nn.Module, depth: int = 1) -> nn.Module:
    """A net with hidden layers of eight units."""
    inner = [layer for _ in range(depth - 1) for layer in (nn.Linear(8, 8), activation)]
    return nn.Sequential(nn.Linear(3, 8), activation, *inner, nn.Linear(8, 2))


def image_net(activation: nn.Module, *norm: nn.Module) -> nn.Module:
    """Convolution, pooling and a linear layer, for images (n, 1, 6, 6)."""
    head = nn.Conv2d(1, 3, 3, padding=1), *norm, activation, nn.MaxPool2d(2)
    return nn.Sequential(*head, nn.Conv2d(3, 2, 2), activation, nn.Flatten(), nn.Linear(8, 2))


def of_net(model: nn.Module, likelihood: Likelihood | None = None) -> Problem:
    """Six examples for a net."""
    images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    x = torch.randn(6, 1, 6, 6) if images else torch.randn(6, 3)
    y = torch.arange(6) % 2 if likelihood else torch.randn(6, 2)
    likelihood = likelihood or br.GaussianLikelihood(noise=NOISE)
    return problem_of(model, x, y, likelihood, training=True)


def test_a_linear_layer_has_the_closed_form() -> None:
    """`Σ [(y − m)² + s] / 2σ²` with `s = x² v + v_b`, and its derivatives by hand."""
    problem = line()
    x, y = problem.x, problem.y
    assert isinstance(x, Tensor)
    params, variance = problem.network.params(), variances(problem)
    found = look(problem, variance, weight=3.0)
    error = x @ params["weight"].mT + params["bias"] - y
    spread = x.square() @ variance["weight"].mT + variance["bias"]
    loss = (error.square() + spread) / (2.0 * NOISE**2) + 0.5 * math.log(2 * math.pi * NOISE**2)
    assert_close(found.loss, loss.sum())
    assert_close(found.gradient["weight"], 3.0 * error.mT @ x / NOISE**2)
    assert_close(found.gradient["bias"], 3.0 * error.sum(0) / NOISE**2)
    sharp = 3.0 * x.square().sum(0).expand(2, 3) / NOISE**2
    assert_close(diagonal(found)["weight"], sharp)
    assert_close(diagonal(found)["bias"], torch.full((2,), 3.0 * len(x) / NOISE**2))


NETS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: deep(nn.ReLU(), 2),
    "tanh": lambda: deep(nn.Tanh(), 2),
    "softplus": lambda: deep(nn.Softplus(), 2),
    "hardsigmoid": lambda: deep(nn.Hardsigmoid()),
    "convolutions": lambda: image_net(nn.ReLU()),
    "smooth convolutions": lambda: image_net(nn.Softplus()),
    "batch norm": lambda: image_net(nn.Tanh(), nn.BatchNorm2d(3)),
    "group norm": lambda: image_net(nn.Softplus(), nn.GroupNorm(1, 3)),
}


@pytest.mark.parametrize("activations", [MomentMatched(), LocallyLinear()], ids=["full", "linear"])
@pytest.mark.parametrize("likelihood", [None, br.CategoricalLikelihood()], ids=["real", "classes"])
@pytest.mark.parametrize("name", NETS)
def test_derivatives_are_those_of_finite_differences(
    name: str, likelihood: Likelihood | None, activations: br.moments.Activations
) -> None:
    """Along a direction in which all means and variances move."""
    problem = of_net(NETS[name](), likelihood)
    mean, variance = problem.network.params(), variances(problem)

    def at(step: float) -> Local:
        moved = {k: v + step * ways[k] for k, v in mean.items()}
        wider = {k: v * (1.0 + step * ways[k].sin()) for k, v in variance.items()}
        buffers = {k: v.clone() for k, v in problem.buffers.items()}
        given = dataclasses.replace(problem, buffers=buffers)
        return expected(given, moved, wider, activations)

    ways = {k: torch.randn(v.shape) for k, v in mean.items()}
    found = at(0.0)
    rise = (at(1e-5).loss - at(-1e-5).loss) / 2e-5
    slopes = [
        (found.gradient[k] * ways[k] + 0.5 * diagonal(found)[k] * variance[k] * ways[k].sin()).sum()
        for k in mean
    ]
    assert_close(torch.stack(slopes).sum(), rise, rtol=3e-5, atol=3e-5)


def draws(problem: Problem, variance: Params, num: int) -> tuple[Params, Tensor, Params]:
    """Offsets of the weights over their variances, and loss and gradient at each draw."""
    params, network = problem.network.params(), problem.network

    def loss(weights: Params) -> Tensor:
        outputs = functional_call(network.model, weights, (problem.x,))
        return problem.nll(outputs, problem.y)

    offsets = {k: v.sqrt() * torch.randn(num, *v.shape) for k, v in variance.items()}
    weights = {k: v + offsets[k] for k, v in params.items()}
    gradients, losses = torch.func.vmap(torch.func.grad_and_value(loss))(weights)
    return {k: v / variance[k] for k, v in offsets.items()}, losses, gradients


def assert_mean(found: Tensor, values: Tensor, errors: float = 5.0) -> None:
    """Within some standard errors of the mean of draws."""
    error = values.std(0) / math.sqrt(len(values))
    assert ((found - values.mean(0)).abs() <= errors * error + 1e-5).all()


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.Softplus()])
def test_one_hidden_layer_and_gaussian_noise_is_exact(activation: nn.Module) -> None:
    """Loss, E[∇ℓ] (Bonnet) and the diagonal of E[∇²ℓ] (Price) against draws of the weights."""
    problem = of_net(deep(activation))
    variance = variances(problem)
    found = look(problem, variance)
    ratios, losses, gradients = draws(problem, variance, 20_000)
    assert_mean(found.loss, losses)
    for name, gradient in found.gradient.items():
        assert_mean(gradient, gradients[name])
        # The gradient at the mean is subtracted, which leaves less noise and the same average.
        assert_mean(diagonal(found)[name], (gradients[name] - gradient) * ratios[name])


@pytest.mark.parametrize("likelihood", [None, br.CategoricalLikelihood()], ids=["real", "classes"])
@pytest.mark.parametrize(
    "name", ["relu", "tanh", "softplus", "convolutions", "smooth convolutions"]
)
def test_deeper_nets_are_close_to_draws(name: str, likelihood: Likelihood | None) -> None:
    """Covariances between units are left out, so that the largest of a pool of neighbours is taken
    for larger than it is: less than a quarter of what the variance adds, and three per cent in all.
    """
    problem = of_net(NETS[name](), likelihood)
    variance = variances(problem, 0.15)
    found = look(problem, variance).loss
    _, losses, _ = draws(problem, variance, 4000)
    added = losses.mean() - look(problem, variances(problem, 1e-4)).loss
    error = 4.0 * losses.std() / math.sqrt(len(losses))
    off = (found - losses.mean()).abs()
    assert added > error
    assert off < 0.25 * added + error
    assert off < 0.03 * losses.mean()


def test_weights_without_a_variance_are_known() -> None:
    problem = of_net(deep(nn.Tanh()))
    variance = variances(problem)
    names = ("2.weight", "2.bias")
    others = tuple(k for k in variance if k not in names)
    uncertain = DiagonalMatrix({k: 1.0 / variance[k] for k in names})
    blocks: dict[str, Matrix] = {"2.*": uncertain, "*": KnownMatrix()}
    found = look(problem, BlockMatrix(blocks, {"2.*": names, "*": others}))
    sure = {k: v if k in names else torch.full_like(v, 1e-14) for k, v in variance.items()}
    whole = look(problem, sure)
    assert set(diagonal(found)) == set(names)
    assert_close(found.loss, whole.loss)
    for name, gradient in whole.gradient.items():
        assert_close(found.gradient[name], gradient, rtol=1e-5, atol=1e-5)


def test_only_the_derivatives_are_scaled() -> None:
    problem = line(likelihood=br.GaussianLikelihood())
    variance = variances(problem)
    once, scaled = look(problem, variance), look(problem, variance, weight=7.0)
    assert once.loss == scaled.loss
    pairs = [(once.gradient, scaled.gradient), (diagonal(once), diagonal(scaled))]
    for one, seven in [*pairs, (once.statistics, scaled.statistics)]:
        for name, value in one.items():
            assert_close(seven[name], 7.0 * value)


def test_the_noise_learns_from_expected_squares() -> None:
    problem = line(likelihood=br.GaussianLikelihood())
    x, variance = problem.x, variances(problem)
    assert isinstance(x, Tensor)
    squares = (problem.y - problem.network.model(x)).square()
    spread = x.square() @ variance["weight"].mT + variance["bias"]
    found = look(problem, variance).statistics
    assert_close(found, {"squares": (squares + spread).sum(0).detach()})


def test_running_averages_move_and_leave_the_graph() -> None:
    problem = of_net(image_net(nn.ReLU(), nn.BatchNorm2d(3)))
    before = problem.buffers["1.running_mean"].clone()
    found = look(problem, variances(problem))
    assert not torch.equal(problem.buffers["1.running_mean"], before)
    tensors = [found.loss, *found.gradient.values(), *diagonal(found).values()]
    assert not any(one.requires_grad for one in [*tensors, *problem.buffers.values()])


class TwoShifts(nn.Module):
    """A linear layer and two shifts that have the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (self.a + self.b)


def test_no_two_gradients_share_memory() -> None:
    found = look(problem := of_net(TwoShifts()), variances(problem))
    before = found.gradient["b"].clone()
    found.gradient["a"].zero_()
    assert_close(found.gradient["b"], before)


def test_what_is_not_finite_is_named() -> None:
    problem = of_net(deep(nn.ReLU()))
    variance = variances(problem)
    assert isinstance(problem.x, Tensor)
    broken = problem.x.clone()
    broken[2, 1] = torch.nan
    with pytest.raises(ValueError, match="not finite in columns 1"):
        look(problem, variance, x=broken)
    with pytest.raises(FloatingPointError, match=r"'linear' gives is inf .*Layer '0', Linear"):
        look(problem, {**variance, "0.weight": torch.full((8, 3), 1e308)})
    targets = problem.y.clone()
    targets[0] = torch.nan
    with pytest.raises(ValueError, match=r"2 numbers that are NaN.*leave these examples out"):
        look(problem, variance, y=targets)


def test_it_needs_moment_propagation() -> None:
    with pytest.raises(ValueError, match=r"Moments\(\) with ExpectedLoss\(\)"):
        br.Learner(
            nn.Linear(3, 2),
            br.GaussianLikelihood(noise=NOISE),
            num_data=6,
            posterior=br.MeanFieldFamily(),
            expectation=br.Draws(1),
            curvature=br.curvature.ExpectedLoss(),
            rule=br.Elbo(),
        )


def curve(num: int = 60) -> tuple[Tensor, Tensor]:
    """A noisy sine with a gap in the middle."""
    x = torch.cat([torch.linspace(-2.0, -0.7, num // 2), torch.linspace(0.7, 2.0, num // 2)])
    return x.unsqueeze(1), torch.sin(2.0 * x).unsqueeze(1) + 0.1 * torch.randn(num, 1)


def test_a_net_learns_without_any_noise() -> None:
    x, y = curve()
    learner = br.Learner(
        nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)),
        br.GaussianLikelihood(noise=0.1),
        num_data=len(x),
        posterior=br.MeanFieldFamily(),
        expectation=br.Moments(),
        curvature=br.curvature.ExpectedLoss(),
        rule=br.Elbo(learning_rate=0.02),
        predictive=br.Moments(),
    )
    state, bounds = learner.init(seed=0), []
    for _ in range(300):
        state, info = learner.step(state, (x, y), donate=True)
        bounds.append(float(info.elbo))
    _, info = learner.step(learner.init(seed=5), (x, y))
    assert bounds[0] == float(info.elbo)
    assert bounds[-1] > 0.1 * bounds[0]
    found = br.predict(learner, state, x)
    assert (found.mean - y).square().mean().sqrt() < 0.2
    assert (found.epistemic > 0).all()
    # What it believes it has gained is there when weights are drawn, too.
    drawn = br.predict(learner, state, x, how=br.Draws(2000))
    assert_close(found.mean, drawn.mean, rtol=0.0, atol=0.02)
    assert_close(found.epistemic, drawn.epistemic, rtol=0.2, atol=0.0)
