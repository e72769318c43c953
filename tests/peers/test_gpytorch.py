"""Gaussian processes of GPyTorch, on the same rows: regression, and answers by variational Bayes.

Runs after `pip install --no-deps -r tests/peers/requirements.txt`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import DTYPE, close, generator, randn
from torch import Tensor
from torch.distributions import Bernoulli

import bayesrule as br
from bayesrule.graphical import GP
from bayesrule.graphical.kernels import RBF, Kernel, Matern

gpytorch = pytest.importorskip("gpytorch")

X, NEW = 2.0 * randn(30, 2), 2.0 * randn(9, 2, seed=2)
Y = X[:, 0].sin() + 0.5 * X[:, 1] + 0.2 * randn(30, seed=1)
ANSWERS = torch.bernoulli((2.0 * X[:, 0]).sigmoid(), generator=generator(3))


def kernel_of(own: Any, variance: float, lengths: list[float]) -> Any:
    """One of theirs with a variance and lengths."""
    kernel = gpytorch.kernels.ScaleKernel(own)
    kernel.outputscale = variance
    own.lengthscale = torch.tensor(lengths, dtype=DTYPE)
    return kernel.double()


def rbf() -> Any:
    return kernel_of(gpytorch.kernels.RBFKernel(ard_num_dims=2), 1.5, [0.9, 2.0])


def matern() -> Any:
    return kernel_of(gpytorch.kernels.MaternKernel(nu=1.5), 0.8, [1.3])


def exact(kernel: Any, likelihood: Any) -> Any:
    """Their regression with mean zero."""

    class Exact(gpytorch.models.ExactGP):
        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), kernel(x))

    return Exact(X, Y, likelihood).double()


@pytest.mark.parametrize(
    ("ours", "other"), [(RBF(1.5, [0.9, 2.0]), rbf), (Matern(0.8, 1.3, 1.5), matern)]
)
def test_regression_is_that_of_gpytorch(ours: Kernel, other: Any) -> None:
    model = GP(kernel=ours, noise=0.3, mean=0.0, learn=False).fit(X, Y)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.09
    theirs = exact(other(), likelihood)
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, theirs)
    with torch.no_grad():
        wanted = 30 * evidence(theirs.train()(X), Y)
        latent = theirs.eval()(NEW)
    assert model.log_evidence == pytest.approx(float(wanted), abs=1e-6)
    p = model.predict(NEW)
    close(p.mean, latent.mean, 1e-6)
    close(p.epistemic, latent.variance, 1e-6)


class Latent(gpytorch.models.ApproximateGP):
    """Their variational belief with a place at every row, moved by natural gradients."""

    def __init__(self, kernel: Any) -> None:
        belief = gpytorch.variational.NaturalVariationalDistribution(len(X))
        strategy = gpytorch.variational.UnwhitenedVariationalStrategy(
            self, X, belief, learn_inducing_locations=False
        )
        super().__init__(strategy)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(x.new_zeros(len(x)), self.kernel(x))


class Logistic(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
    """Yes or no by the logistic function; theirs has the normal distribution's."""

    def forward(self, function_samples: Tensor, *args: Any, **kwargs: Any) -> Bernoulli:
        return Bernoulli(logits=function_samples)


def test_answers_have_the_belief_and_the_bound_of_gpytorch() -> None:
    model = GP(
        kernel=RBF(1.5, [0.9, 2.0]), likelihood=br.BernoulliLikelihood(), mean=0.0, learn=False,
        tol=1e-10,
    ).fit(X, ANSWERS)  # fmt: skip
    theirs, likelihood = Latent(rbf()).double(), Logistic()
    bound = gpytorch.mlls.VariationalELBO(likelihood, theirs, num_data=30)
    steps = gpytorch.optim.NGD(theirs.variational_parameters(), num_data=30, lr=0.5)
    for _ in range(60):
        steps.zero_grad()
        (-bound(theirs(X), ANSWERS)).backward()
        steps.step()
    with torch.no_grad():
        reached, latent = 30 * bound(theirs(X), ANSWERS), theirs.eval()(X)
    assert model.log_evidence == pytest.approx(float(reached), abs=1e-3)
    q = model._process.marginals()
    close(q.mean, latent.mean, 1e-3)
    close(q.variance, latent.variance, 1e-3)
