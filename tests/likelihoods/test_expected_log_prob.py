"""E[log p(y | f)] of Gaussian outputs, held against fine grids over f and against draws of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from exact import DTYPE, randn
from torch import Tensor
from torch.testing import assert_close

import bayesrule as br
from bayesrule.likelihoods import Likelihood
from bayesrule.likelihoods._expectations import expected_logsumexp, expected_softplus
from bayesrule.types import Params

NUM = 6


def _case(kind: str) -> tuple[Likelihood, int, Tensor, Params]:
    """A likelihood, how many outputs it has for each example, targets, and a state of it."""
    real, whole = randn(NUM, 2, seed=1), torch.arange(NUM)
    learned = {"a": torch.tensor(7.0, dtype=DTYPE), "b": torch.tensor([2.0, 5.0], dtype=DTYPE)}
    cases: dict[str, tuple[Likelihood, int, Tensor, Params]] = {
        "gaussian": (br.GaussianLikelihood(noise=0.7), 2, real, {}),
        "learned noise": (br.GaussianLikelihood(), 2, real, learned),
        "heteroscedastic": (br.HeteroscedasticLikelihood(), 4, real, {}),
        "negative binomial": (
            *(br.NegativeBinomialLikelihood(dispersion=0.7), 1),
            *(whole.to(DTYPE).unsqueeze(1), {}),
        ),
        "poisson": (br.PoissonLikelihood(), 1, whole.to(DTYPE).unsqueeze(1), {}),
        "bernoulli": (br.BernoulliLikelihood(), 2, (real > 0).to(DTYPE), {}),
        "categorical": (br.CategoricalLikelihood(), 4, whole % 4, {}),
    }
    return cases[kind]


KINDS = (
    *("gaussian", "learned noise", "heteroscedastic", "poisson", "negative binomial"),
    *("bernoulli", "categorical"),
)


def _outputs(width: int) -> tuple[Tensor, Tensor]:
    """Means and variances, from 0.02 to 1.5."""
    return randn(NUM, width, seed=2), torch.linspace(0.02, 1.5, NUM * width, dtype=DTYPE).reshape(
        NUM, width
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_mean_over_draws(kind: str) -> None:
    likelihood, width, targets, noise = _case(kind)
    mean, variance = _outputs(width)
    found = likelihood.expected_log_prob(mean, variance, targets, noise)
    draws = mean + variance.sqrt() * randn(40_000, NUM, width, seed=3)
    values = torch.func.vmap(lambda f: likelihood.log_prob(f, targets, noise))(draws)
    error = values.std(0) / math.sqrt(len(draws))
    assert found.shape == (NUM,)
    assert ((found - values.mean(0)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("kind", KINDS)
def test_without_variance_it_is_the_log_probability(kind: str) -> None:
    likelihood, width, targets, noise = _case(kind)
    mean, _ = _outputs(width)
    found = likelihood.expected_log_prob(mean, torch.zeros_like(mean), targets, noise)
    assert_close(found, likelihood.log_prob(mean, targets, noise), rtol=0, atol=2e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    likelihood, width, targets, noise = _case(kind)
    given = [one.requires_grad_() for one in _outputs(width)]

    def total(mean: Tensor, variance: Tensor) -> Tensor:
        return likelihood.expected_log_prob(mean, variance, targets, noise).sum()

    found = torch.autograd.grad(total(*given), given)
    for which, slope in enumerate(found):
        for place in range(0, slope.numel(), 3):
            away = torch.zeros_like(slope).flatten()
            away[place] = 1e-3
            ends = []
            for sign in (1.0, -1.0):
                moved = [one.detach() for one in given]
                moved[which] = moved[which] + sign * away.reshape(slope.shape)
                ends.append(total(*moved))
            rise = (ends[0] - ends[1]) / 2e-3
            assert_close(slope.flatten()[place], rise, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_outputs_that_are_known_have_finite_gradients(kind: str) -> None:
    likelihood, width, targets, noise = _case(kind)
    for variance in (0.0, 1e-30):
        mean = (3.0 * _outputs(width)[0]).requires_grad_()
        spread = torch.full_like(mean, variance).requires_grad_()
        loss = -likelihood.expected_log_prob(mean, spread, targets, noise).sum()
        slopes = torch.autograd.grad(loss, [mean, spread])
        exact = torch.func.grad(lambda f: -likelihood.log_prob(f, targets, noise).sum())(mean)
        assert_close(slopes[0], exact.detach(), rtol=1e-4, atol=1e-5)
        # Half of the second derivative, p (1 − p) for both.
        p = mean.sigmoid() if kind == "bernoulli" else mean.softmax(-1)
        assert_close(slopes[1], (0.5 * p * (1.0 - p)).detach(), rtol=1e-4, atol=1e-5)


def _by_grid(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """`E g(f)` of single numbers by twenty thousand points."""
    t = torch.linspace(-9.0, 9.0, 20_001, dtype=DTYPE)
    weight = torch.exp(-0.5 * t.square())
    values = function(mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * t)
    return (values * weight).sum(-1) / weight.sum()


@pytest.mark.parametrize(
    ("variance", "off"), [(0.1, 1e-12), (1.0, 1e-8), (4.0, 1e-4), (25.0, 2e-2)]
)
def test_softplus_is_as_good_as_it_says(variance: float, off: float) -> None:
    mean = torch.linspace(-6.0, 6.0, 13, dtype=DTYPE)
    spread = torch.full_like(mean, variance)
    exact = _by_grid(lambda f: torch.logaddexp(f, torch.zeros_like(f)), mean, spread)
    assert_close(expected_softplus(mean, spread), exact, rtol=0, atol=off)


@pytest.mark.parametrize(("variance", "off"), [(0.1, 1e-6), (1.0, 1e-6), (4.0, 1e-4), (16.0, 1e-2)])
def test_two_classes_are_one_answer(variance: float, off: float) -> None:
    """`log(e^f + e^g) = g + softplus(f − g)`, which is an expectation in one dimension."""
    mean, spread = 2.0 * randn(20, 2), variance * torch.rand(20, 2, dtype=DTYPE)
    apart, both = mean[:, 0] - mean[:, 1], spread.sum(1)
    rest = _by_grid(lambda f: torch.logaddexp(f, torch.zeros_like(f)), apart, both)
    assert_close(expected_logsumexp(mean, spread), mean[:, 1] + rest, rtol=0, atol=off)


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_many_classes_are_closer_to_draws_than_expansion_and_bound(classes: int) -> None:
    mean, variance = 2.0 * randn(8, classes), 0.5 + torch.rand(8, classes, dtype=DTYPE)
    away = variance.sqrt() * randn(4000, 8, classes)
    # Draws in pairs on both sides of the mean, which takes away most of their noise.
    draws = 0.5 * ((mean + away).logsumexp(-1) + (mean - away).logsumexp(-1))
    error = 4.5 * draws.std(0) / math.sqrt(len(draws))
    p = mean.softmax(-1)
    expansion = mean.logsumexp(-1) + 0.5 * (p * (1.0 - p) * variance).sum(-1)
    bound = (mean + 0.5 * variance).logsumexp(-1)
    off = [(one - draws.mean(0)).abs() for one in (expansion, bound)]
    found = (expected_logsumexp(mean, variance) - draws.mean(0)).abs()
    assert (found < error).all()
    assert all(2.0 * found.mean() < one.mean() for one in off)


def test_slopes_of_logsumexp_are_probabilities_that_add_up_to_one() -> None:
    mean, variance = (3.0 * randn(5, 8)).requires_grad_(), torch.rand(5, 8, dtype=DTYPE)
    (slope,) = torch.autograd.grad(expected_logsumexp(mean, variance).sum(), mean)
    assert (slope > 0).all()
    assert_close(slope.sum(-1), torch.ones(5, dtype=DTYPE), rtol=0, atol=1e-5)


def test_single_precision_and_far_logits_stay_finite() -> None:
    mean = torch.tensor([[80.0, -80.0, 0.0], [1e4, -1e4, 3.0]], requires_grad=True)
    variance = torch.tensor([[1e-12, 100.0, 900.0], [4.0, 1e4, 1.0]], requires_grad=True)
    found = expected_logsumexp(mean, variance)
    slopes = torch.autograd.grad(found.sum(), [mean, variance])
    assert_close(found.detach(), torch.tensor([80.0, 1e4]), rtol=0.02, atol=0.0)
    assert all(slope.isfinite().all() for slope in slopes)


def test_a_class_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="class 3, but the network has 3 outputs"):
        br.CategoricalLikelihood().expected_log_prob(
            torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([3]), {}
        )


def test_a_likelihood_without_it_names_those_that_have_it() -> None:
    with pytest.raises(TypeError, match=r"RemaxLikelihood does not know .* CategoricalLike"):
        br.likelihoods.RemaxLikelihood().expected_log_prob(
            torch.zeros(1, 3), torch.ones(1, 3), torch.tensor([1]), {}
        )
