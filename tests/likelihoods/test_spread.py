"""What classes say of epistemic uncertainty, against draws and their inequalities."""

from __future__ import annotations

import math

import pytest
import torch
from exact import DTYPE, close, generator, randn
from torch import Tensor

import bayesrule as br
from bayesrule.likelihoods import Likelihood, Marginal
from bayesrule.likelihoods._classes import ClassLikelihood
from bayesrule.likelihoods._spread import Spread, entropy, spread
from bayesrule.predicting import Prediction

BINARY = br.BernoulliLikelihood()
CLASSES: list[ClassLikelihood] = [
    br.CategoricalLikelihood(),
    br.likelihoods.OneHotLikelihood(),
    br.likelihoods.RemaxLikelihood(),
    br.likelihoods.SoftmaxLikelihood(),
    br.likelihoods.HierarchicalLikelihood(num_classes=8),
]
VARIANCES = (1e-4, 0.1, 1.0, 4.0, 25.0, 400.0, 1e5)


def grid(size: int) -> tuple[Tensor, Tensor]:
    """Means from none to far, beside variances from none to those of far inputs."""
    pairs = [(m, v) for m in (0.0, 1.0, 4.0) for v in VARIANCES]
    mean = torch.stack([m * randn(size, seed=i) for i, (m, _) in enumerate(pairs)])
    factors = [0.5 + randn(size, seed=99 + i).sigmoid() for i in range(len(pairs))]
    variance = torch.stack([v * f for (_, v), f in zip(pairs, factors, strict=True)])
    return mean, variance


def drawn(likelihood: Likelihood, mean: Tensor, root: Tensor, num: int = 10_000) -> Prediction:
    """By plain Monte Carlo."""
    white = torch.randn(num, *mean.shape, 1, dtype=DTYPE, generator=generator(7))
    outputs = mean + (root @ white).squeeze(-1)
    return Prediction.mixture(likelihood.distribution(outputs, likelihood.init(mean)))


def near(found: Tensor, wanted: Tensor, least: float) -> None:
    """Within ten per cent, or `least` where that is less."""
    error = (found - wanted).abs()
    assert (error <= (0.1 * wanted).clamp_min(least)).all(), float((error - 0.1 * wanted).max())


def ordered(p: Prediction) -> None:
    """`0 ≤ information ≤ entropy ≤ log K`, and no part of the variance below zero."""
    classes = p.probs.shape[1]
    assert (p.mutual_information >= 0).all()
    assert (p.mutual_information <= p.entropy).all()
    assert (p.entropy <= math.log(classes) + 1e-12).all()
    assert (p.epistemic >= 0).all()
    assert (p.aleatoric >= 0).all()
    close(p.variance, p.mean * (1 - p.mean), 1e-12)


@pytest.mark.parametrize("likelihood", CLASSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("together", [False, True])
def test_classes(likelihood: ClassLikelihood, classes: int, together: bool) -> None:
    if isinstance(likelihood, br.likelihoods.HierarchicalLikelihood):
        likelihood = br.likelihoods.HierarchicalLikelihood(classes)
    mean, variance = grid(likelihood.num_outputs(classes))
    root = torch.diag_embed(variance.sqrt())
    state = likelihood.init(mean)
    if together:
        alone = 0.2 * torch.eye(root.shape[-1], dtype=DTYPE)
        root = root @ torch.linalg.cholesky(torch.full_like(root, 0.8) + alone)
        p = Prediction.closed_form(likelihood.joint_marginal(mean, root @ root.mT, state))
    else:
        p = Prediction.closed_form(likelihood.marginal(mean, variance, state))
    ordered(p)
    exact = drawn(likelihood, mean, root)
    # Where the link's own mean is off, the parts keep their shares of its whole.
    found = Spread(exact.mean, exact.epistemic, exact.mutual_information)
    variance, information = found.within(p.mean)
    # Codes turn sharply with their outputs, which few draws see less exactly than a softmax.
    near(p.mutual_information, information, 0.03 if likelihood.probit_marginal else 0.09)
    near(p.epistemic, variance, 0.025 if likelihood.probit_marginal else 0.05)
    near(p.epistemic.sum(1), variance.sum(1), 0.03 if likelihood.probit_marginal else 0.09)
    right = (p.mean - exact.mean).abs().amax(1) < 0.02
    near(p.mutual_information[right], exact.mutual_information[right], 0.09)
    assert right.any()


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_yes_and_no(shape: tuple[int, ...]) -> None:
    m, v = torch.meshgrid(
        torch.tensor([-9.0, -3.0, 0.0, 0.5, 20.0], dtype=DTYPE),
        torch.tensor(VARIANCES, dtype=DTYPE),
        indexing="ij",
    )
    found = BINARY.marginal(m.reshape(shape), v.reshape(shape), {})
    p = Prediction.closed_form(found)
    ordered(p)
    exact = drawn(BINARY, m.reshape(-1, 1), v.reshape(-1, 1, 1).sqrt(), 200_000)
    near(p.mutual_information, exact.mutual_information, 2e-3)
    near(p.epistemic.flatten(), exact.epistemic.flatten(), 1e-3)


def test_far_inputs_of_ten_classes() -> None:
    """Nothing is known there: nearly all of log 10 nats is information, but not more."""
    mean, variance = torch.zeros(1, 10, dtype=DTYPE), torch.full((1, 10), 900.0, dtype=DTYPE)
    found = br.CategoricalLikelihood().marginal(mean, variance, {})
    assert found.information is not None
    assert 2.0 < float(found.information) < math.log(10.0)
    assert (found.aleatoric > 0).all()


@pytest.mark.parametrize("likelihood", [BINARY, *CLASSES[:1]], ids=lambda one: type(one).__name__)
def test_small_variances_are_those_of_the_delta_method(likelihood: Likelihood) -> None:
    mean = randn(5, 1 if likelihood is BINARY else 4, seed=3)
    variance = 1e-6 * randn(*mean.shape, seed=4).square()
    found = likelihood.marginal(mean, variance, {})

    def probs(f: Tensor) -> Tensor:
        return likelihood.moments(f[None], {})[0][0]

    slopes = torch.func.vmap(torch.func.jacrev(probs))(mean)
    wanted = (slopes.square() * variance.unsqueeze(-2)).sum(-1)
    torch.testing.assert_close(found.epistemic, wanted, rtol=1e-3, atol=0.0)


def test_what_is_the_same_everywhere_says_nothing() -> None:
    f = randn(3, 4)
    half = torch.tensor([0.5], dtype=f.dtype)
    found = spread(lambda f: f.log_softmax(-1), f, [(f[None], half), (f[None], half)])
    close(found.variance, torch.zeros(3, 4), 1e-15)
    close(found.information, torch.zeros(3), 1e-12)
    close(entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=DTYPE))[0], math.log(2.0))


def test_an_input_has_the_same_prediction_beside_others() -> None:
    mean, variance = grid(3)
    likelihood = br.CategoricalLikelihood()

    def one(rows: slice) -> Marginal:
        return likelihood.marginal(mean[rows], variance[rows], {})

    assert torch.equal(one(slice(4, 5)).epistemic, one(slice(0, None)).epistemic[4:5])


def test_single_precision_outputs_that_vary_as_one() -> None:
    """A covariance that is singular has no Cholesky factor of its own."""
    mean = torch.zeros(3, 2)
    found = br.CategoricalLikelihood().joint_marginal(mean, torch.ones(3, 2, 2), {})
    close(found.epistemic, torch.zeros(3, 2), 1e-5)
    nothing = br.CategoricalLikelihood().joint_marginal(mean, torch.zeros(3, 2, 2), {})
    close(nothing.epistemic, torch.zeros(3, 2), 1e-7)
